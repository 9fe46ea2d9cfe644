"""An audit is worth what it finds: break the pipeline in the known ways, and look.

Every mutant is a change of the real classes. The audit is always the same one, at 99.9% confidence
and with fixed seeds; nothing tells it what it is facing.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from at_length import at_length

from pmtl.audit import default_method
from pmtl.audit.games import GAMES, audit
from pmtl.audit.setup import AuditSetup
from pmtl.privacy import release
from pmtl.privacy.grid import Grid, GridNoise
from pmtl.privacy.release import Release
from pmtl.privacy.sampler import Sampler
from pmtl.simulation import Simulation, Sites
from pmtl.simulation.released_metrics import ReleasedMetrics

SETUP = AuditSetup(epsilon=2.0, clients=20, trials=2000, seed=1)


def other_noise(change):
    """A gate whose noise is changed on its way in."""
    made = Release.__init__

    def init(self, plan, blocks, noise, *rest, **options):
        made(self, plan, blocks, change(noise), *rest, **options)

    return init


def half_the_noise(monkeypatch):
    halved = other_noise(lambda noise: lambda round, shape: 0.5 * noise(round, shape))
    monkeypatch.setattr(Release, "__init__", halved)


def noise_used_again(monkeypatch):
    first = other_noise(lambda noise: lambda round, shape: noise(0, shape))
    monkeypatch.setattr(Release, "__init__", first)


def no_clip(monkeypatch):
    def unclipped(uploads, clip_norm, *how):
        return torch.nan_to_num(uploads.to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)

    monkeypatch.setattr(release, "clip", unclipped)


def nan_passes_the_clip(monkeypatch):
    def naive(uploads, clip_norm, *how):
        rows = uploads.to(torch.float64)
        factors = [min(1.0, clip_norm / max(float(row.norm()), 1e-300)) for row in rows]
        return rows * torch.tensor(factors, dtype=torch.float64).unsqueeze(1)

    monkeypatch.setattr(release, "clip", naive)


def weights_by_rows(monkeypatch):
    """The authors' n_k: who has more rows moves the average further."""
    made = Simulation.__init__

    def init(self, *arguments, **options):
        made(self, *arguments, **options)
        counts = self.data.rows("train").counts
        self.server.gate.weights = torch.from_numpy(counts / counts.mean())

    def add(self, tally, clients, uploads):
        fresh = [place for place, k in enumerate(clients.tolist()) if k not in tally.seen]
        tally.seen.update(clients.tolist())
        rows = release.clip(uploads[fresh], self.plan.clip_norm)
        if hasattr(self, "weights"):
            rows = rows * self.weights[clients[fresh]].unsqueeze(1)
        tally.sum.index_add_(0, torch.from_numpy(self.billboard.blocks[clients[fresh]]), rows)

    monkeypatch.setattr(Simulation, "__init__", init)
    monkeypatch.setattr(Release, "add", add)


def divided_by_who_came(monkeypatch):
    def average(self, tally):
        came = self.billboard.blocks[np.array(sorted(tally.seen), dtype=np.int64)]
        divisors = np.maximum(np.bincount(came, minlength=self.billboard.size), 1)
        return tally.sum / torch.from_numpy(divisors).unsqueeze(1)

    monkeypatch.setattr(Release, "average", average)


def counted_every_time(monkeypatch):
    add = Release.add

    def forgetful(self, tally, clients, uploads):
        tally.seen.clear()
        add(self, tally, clients, uploads)

    monkeypatch.setattr(Release, "add", forgetful)


def newcomers_inherit(monkeypatch):
    """The authors' leak: a client's first training begins from the previous client's weights."""
    train = Sites.train_clients

    def leaking(self, clients, own, *rest):
        been = self.__dict__.setdefault("been", {"there": set(), "last": None})
        new = torch.tensor([k not in been["there"] for k in clients.tolist()])
        if been["last"] is not None:
            own = torch.where(new.unsqueeze(1), been["last"], own)
        trained = train(self, clients, own, *rest)
        been["there"].update(clients.tolist())
        been["last"] = trained.kept[-1].clone()
        return trained

    monkeypatch.setattr(Sites, "train_clients", leaking)


def divided_by_who_was_drawn(monkeypatch):
    """The mean over a round's cohort, taken by the loop; the gate is as it should be."""
    made = Simulation.__init__

    def init(self, *arguments, **options):
        made(self, *arguments, **options)
        publish = self.server.gate.publish

        def mean(tally, shared, *step):
            tally.sum *= self.plan.cohort / max(len(self.server.sampler.draw(tally.round)), 1)
            return publish(tally, shared, *step)

        self.server.gate.publish = mean

    monkeypatch.setattr(Simulation, "__init__", init)


def one_noise_for_all(monkeypatch):
    """Every coordinate of a release gets the same noise."""
    made = Release.__init__

    def init(self, plan, board, noise, *rest, **options):
        def common(round, shape):
            return noise(round, (1,) * len(shape)).expand(shape).clone()

        made(self, plan, board, common, *rest, **options)

    monkeypatch.setattr(Release, "__init__", init)


def one_noise_for_all_metrics(monkeypatch):
    made = ReleasedMetrics.__init__

    def init(self, *arguments, **options):
        made(self, *arguments, **options)
        noise = self.gate.noise
        self.gate.noise = lambda round, shape: noise(round, (1, 1)).expand(shape).clone()

    monkeypatch.setattr(ReleasedMetrics, "__init__", init)


def a_fixed_draw_for_coins(monkeypatch):
    """The cohort's mean is right; its distribution is not."""
    draw = Sampler.draw

    def fixed(self, round):
        if self.plan.sampling == "poisson":
            object.__setattr__(self, "plan", replace(self.plan, sampling="fixed"))
        return draw(self, round)

    monkeypatch.setattr(Sampler, "draw", fixed)


def coins_tossed_once(monkeypatch):
    """The first round's cohort, again and again."""
    draw = Sampler.draw

    def same(self, round):
        if "_first" not in self.__dict__:
            self._first = draw(self, round)
        return self._first

    monkeypatch.setattr(Sampler, "draw", same)


MUTANTS = {
    half_the_noise: "one-round",
    noise_used_again: "one-round",
    no_clip: "one-round",
    nan_passes_the_clip: "one-round",
    divided_by_who_came: "one-round",
    counted_every_time: "one-round",
    weights_by_rows: "billboard",
    newcomers_inherit: "billboard",
    divided_by_who_was_drawn: "billboard",
    one_noise_for_all: "canaries",
    one_noise_for_all_metrics: "metrics",
    a_fixed_draw_for_coins: "sampler",
    coins_tossed_once: "sampler",
}


@pytest.mark.parametrize("trials", [400, pytest.param(2000, marks=pytest.mark.thorough)])
def test_what_is_right_is_not_refuted(trials):
    results = list(audit(replace(SETUP, trials=trials)))
    assert [result.game for result in results] == list(GAMES)
    assert all(result.passed for result in results), [str(result) for result in results]


#: The other mutants of these games are caught in the same way, or take long.
OFTEN = {half_the_noise, no_clip, nan_passes_the_clip, weights_by_rows, one_noise_for_all}
OFTEN |= {one_noise_for_all_metrics, a_fixed_draw_for_coins, coins_tossed_once}


@pytest.mark.parametrize(
    "mutant", at_length(MUTANTS, OFTEN.__contains__), ids=lambda mutant: mutant.__name__
)
def test_every_mutant_is_caught(mutant, monkeypatch):
    """By the game that is there for such mistakes, whose scenarios are always all played."""
    mutant(monkeypatch)
    trials = SETUP.trials if mutant in (newcomers_inherit, divided_by_who_was_drawn) else 1200
    (caught,) = audit(replace(SETUP, trials=trials), MUTANTS[mutant])
    assert not caught.passed, str(caught)
    assert caught.lower_bound > caught.claim_epsilon
    assert caught.claim_epsilon == (0.0 if caught.game == "sampler" else 2.0)
    assert caught.confidence == 0.999


@pytest.mark.parametrize(
    "mutant", [half_the_noise, pytest.param(no_clip, marks=pytest.mark.thorough)]
)
def test_mutants_are_caught_in_a_run_of_the_default_methods(mutant, monkeypatch):
    monkeypatch.setattr(default_method, "SCENARIOS", default_method.SCENARIOS[:1])
    mutant(monkeypatch)
    (caught,) = audit(replace(SETUP, trials=4000), "default")
    assert not caught.passed, str(caught)


def other_grid_noise(monkeypatch, change):
    draw = GridNoise.__call__
    monkeypatch.setattr(
        GridNoise, "__call__", lambda self, round, shape: change(draw, self, round, shape)
    )


def half_the_grid_noise(monkeypatch):
    other_grid_noise(
        monkeypatch, lambda draw, noise, *rest: torch.div(draw(noise, *rest), 2).to(torch.int64)
    )


def grid_noise_used_again(monkeypatch):
    other_grid_noise(monkeypatch, lambda draw, noise, round, shape: draw(noise, 0, shape))


def neither_clip_nor_check(monkeypatch):
    no_clip(monkeypatch)
    monkeypatch.setattr(Grid, "snap", lambda self, rows: (rows / self.step).to(torch.int64))


@pytest.mark.parametrize("mode", ["experiment", "production"])
@pytest.mark.parametrize("mutant", [a_fixed_draw_for_coins, coins_tossed_once])
def test_a_wrong_draw_is_caught_in_production_too(mutant, mode, monkeypatch):
    mutant(monkeypatch)
    (result,) = audit(replace(SETUP, mode=mode, cohort=5), "sampler")
    assert not result.passed


def test_one_exact_noise_for_all_metrics_is_caught(monkeypatch):
    draw = GridNoise.__call__
    monkeypatch.setattr(
        GridNoise,
        "__call__",
        lambda self, round, shape: draw(self, round, (1, 1)).expand(shape).clone(),
    )
    for mode in ("experiment", "production"):
        (result,) = audit(replace(SETUP, hardened=True, mode=mode, trials=800), "metrics")
        assert not result.passed


@pytest.mark.parametrize(
    "mutant",
    [
        half_the_grid_noise,
        pytest.param(grid_noise_used_again, marks=pytest.mark.thorough),
        pytest.param(neither_clip_nor_check, marks=pytest.mark.thorough),
    ],
)
def test_mutants_of_the_hardened_gate_are_caught_too(mutant, monkeypatch):
    mutant(monkeypatch)
    (result,) = audit(replace(SETUP, hardened=True), "one-round")
    assert not result.passed
    assert result.lower_bound > 2.0
    assert result.confidence == 0.999


def test_the_hardened_gate_survives_a_clip_that_is_skipped(monkeypatch):
    """It looks at lengths itself, so whatever is too long counts as zero."""
    no_clip(monkeypatch)
    (result,) = audit(replace(SETUP, hardened=True), "one-round")
    assert result.passed, str(result)
