"""Runs of pooling: what is charged and printed, resuming, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from weights import personal

import pmtl
from pmtl.algorithms.default.pooling import Pooling
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.privacy.accounting.accountant import epsilon as epsilon_of
from pmtl.privacy.grid import GridNoise
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release
from pmtl.runs.budget import Budget
from pmtl.runs.folder import RunFolder
from pmtl.runs.result import statement_of
from pmtl.simulation.released_metrics import ReleasedMetrics

COMPARED = (
    *("metrics.jsonl", "checkpoint.safetensors", "personal.safetensors", "shared.safetensors"),
    *("alone.safetensors", "result.json", "privacy.json"),
)


def federation(m=150, rows=6, seed=0, task="regression"):
    random = np.random.default_rng(seed)
    client = np.repeat([f"site-{k:03d}" for k in range(m)], rows)
    x = random.normal(size=(len(client), 2)).astype(np.float32)
    y = 20 + 3 * x[:, 0] + np.repeat(random.normal(size=m), rows) + random.normal(size=len(client))
    y = y if task == "regression" else (y > 20).astype(np.int64)
    return FederatedData.from_arrays(x, y, client, task=task)


@pytest.fixture
def many():
    return federation()


@pytest.fixture
def ledger(many, tmp_path):
    path = tmp_path / "ledger.db"
    Ledger.create(path, many.clients).close()
    return path


def charged(ledger, kind="training"):
    with Ledger.open(ledger, write=False) as opened:
        charges = [entry for entry in opened.entries() if entry.kind == "charge"]
        return [entry.round for entry in charges if entry.values["kind"] == kind]


# ---- what it costs ----


@pytest.mark.parametrize(("task", "releases"), [("regression", 13), ("classification", 11)])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_epsilon_is_the_accountants_for_as_many_equal_releases(task, releases, epsilon):
    run = pmtl.train(federation(400, task=task), privacy=epsilon)
    plan = run.facts.plan
    assert (plan.rounds, plan.clip_norm, plan.cohort, plan.sampling) == (releases, 1.0, 400, "full")
    assert len(run.metrics) == releases
    assert run.privacy.epsilon == pytest.approx(epsilon, rel=1e-3)
    same = PrivacyPlan(400, 400, "full", 1.0, plan.noise_std, releases, 1 / 4000)
    assert run.privacy.epsilon == pytest.approx(epsilon_of(same), rel=1e-9)
    assert run.privacy.epsilon <= epsilon
    assert "3 for a vote on the penalties" in " ".join(str(run.privacy).split())


def test_it_is_the_default_for_linear_models_only(many):
    assert pmtl.train(many, privacy=2.0).facts.algorithm.startswith("pooling")
    given = {"privacy": {"rounds": 2}, "local": {"steps": 1}}
    for changed in ({"privacy": {"rounds": 2}}, given, {**given, "model": "mlp:hidden=3"}):
        assert pmtl.train(many, **changed).facts.algorithm.startswith("pmtl")
    frozen = pmtl.train(many, "mlp:hidden=3", privacy=2.0, frozen="1.*")
    assert frozen.facts.algorithm.startswith("pooling")


def test_in_production_every_release_is_charged_once_and_hardened(
    many, ledger, tmp_path, monkeypatch
):
    gates = []
    publish = Release.publish

    def watching(self, tally, shared, *step):
        gates.append((type(self.noise), tally.sum.dtype, len(charged(ledger))))
        return publish(self, tally, shared, *step)

    monkeypatch.setattr(Release, "publish", watching)
    run = pmtl.train(many, privacy=2.0, mode="production", ledger=ledger, out=tmp_path / "run")
    releases = run.facts.plan.rounds
    assert releases == 13
    assert charged(ledger) == list(range(releases))
    assert charged(ledger, "validation") == [releases]
    assert {gate[0] for gate in gates} == {GridNoise}
    assert {gate[1] for gate in gates} == {torch.int64}
    assert [gate[2] for gate in gates[:releases]] == list(range(releases)), "one charge for each"
    assert run.facts.hardened
    assert run.privacy.epsilon <= 2.0
    assert personal(run).isfinite().all()
    loaded = pmtl.load_run(tmp_path / "run", data=many)
    assert torch.equal(personal(loaded), personal(run))
    with pytest.raises(PmtlError, match="withholds"):
        run.evaluate()
    names = {file.name for file in (tmp_path / "run/public").iterdir()}
    assert not names & {"alone.safetensors", "personal.safetensors"}


@pytest.mark.parametrize("every", [1, 5, 10])
def test_metrics_are_released_once_when_clients_have_models(every, monkeypatch):
    """The plan pays for one release, and before the last round there is nothing to measure."""
    released = []
    release = ReleasedMetrics.release

    def watching(self, round, values):
        released.append(round)
        return release(self, round, values)

    monkeypatch.setattr(ReleasedMetrics, "release", watching)
    data = federation(task="classification")
    asked = {"epsilon": 8.0, "metrics": 0.2}
    run = pmtl.train(data, privacy=asked, evaluate_every=every)
    assert released == [run.facts.plan.rounds] == [11]
    assert run.facts.metrics_plan.rounds == 1
    assert run.released()[0]["personal"]["accuracy_mean"] > 0.7


def test_it_never_passes_the_cap(many, ledger):
    with Ledger.open(ledger) as opened:
        opened.cap(1.0)
    with pytest.raises(PmtlError, match="cannot be paid for"):
        pmtl.train(many, privacy=2.0, mode="production", ledger=ledger)
    assert charged(ledger) == []


def test_clients_have_models_if_the_releases_end_early(many, ledger, monkeypatch):
    """Somebody lowers the cap during the run: clients use what was published until then."""
    monkeypatch.setattr(Budget, "refuse_unaffordable", lambda self: None)
    with Ledger.open(ledger) as opened:
        opened.cap(1.2)
    asked = {"epsilon": 2.0, "metrics": 0.0}
    run = pmtl.train(many, privacy=asked, mode="production", ledger=ledger)
    assert 0 < len(charged(ledger)) < run.facts.plan.rounds
    assert run.privacy.epsilon <= 1.2
    answers = np.array([run.predict(name, many.x[:1])[0] for name in many.clients[:20]])
    assert np.abs(answers - 20).max() < 15, "the target is 20 ± 3"


# ---- stopping and going on ----


def contents(folder):
    return {name: (folder / name).read_bytes() for name in COMPARED}


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("rounds", [1, 2, 7, 11])
def test_a_resumed_run_equals_an_uninterrupted_one(task, rounds, tmp_path, monkeypatch):
    """Stopped between size and level, before and between the weights, and before votes."""
    data = federation(task=task)
    pmtl.train(data, privacy=2.0, seed=3, out=tmp_path / "whole")
    save = RunFolder.save_round

    def save_and_die(self, line):
        save(self, line)
        if line["round"] == rounds:
            raise SystemError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", save_and_die)
        with pytest.raises(SystemError):
            pmtl.train(data, privacy=2.0, seed=3, out=tmp_path / "cut", checkpoint_seconds=0.0)
    assert RunFolder(tmp_path / "cut").facts().state == "running"
    pmtl.resume(tmp_path / "cut", data=data)
    assert contents(tmp_path / "whole") == contents(tmp_path / "cut")


def test_a_run_is_a_function_of_its_seed(many):
    one, two, other = (pmtl.train(many, privacy=2.0, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(personal(one), personal(two))
    assert not torch.equal(personal(one), personal(other))


def test_a_folder_has_the_models_of_training_alone(many, tmp_path):
    run = pmtl.train(many, privacy=2.0, out=tmp_path / "run")
    loaded = pmtl.load_run(tmp_path / "run", data=many)
    everybody = np.arange(many.m)
    for view in ("personal", "shared", "alone"):
        assert torch.equal(loaded.views()[view](everybody), run.views()[view](everybody))
    assert str(loaded.privacy) == str(run.privacy) == str(statement_of(loaded.facts))


# ---- what is refused, and what is not there ----


@pytest.mark.parametrize("given", [{"rounds": 5}, {"clip": 0.5}])
def test_rounds_and_clip_are_its_own(given, many, pmtl_command):
    with pytest.raises(PmtlError, match="leave rounds and clip out"):
        pmtl.train(many, algorithm="pooling", privacy={"epsilon": 1.0, **given})
    ((name, value),) = given.items()
    done = pmtl_command("train", "--algorithm", "pooling", f"--{name}", value)
    assert done.status == 2
    assert "leave rounds and clip out" in done.err


def test_a_model_that_is_not_linear_is_refused(many, pmtl_command):
    with pytest.raises(PmtlError, match="solves linear models exactly"):
        pmtl.train(many, "mlp", "pooling")
    done = pmtl_command("train", "--algorithm", "pooling", "--model", "mlp")
    assert done.status == 2
    assert "freeze the other layers" in done.err


def test_few_clients_use_their_own_units_and_have_no_shared_model():
    run = pmtl.train(federation(12), privacy=1.0)
    assert run.facts.plan.rounds == 11
    assert set(run.views()) == {"personal", "alone"}
    for ask in (lambda: run.shared, lambda: run.shared_for("site-003")):
        with pytest.raises(PmtlError, match="own units of the target"):
            ask()
    assert "shared" not in run.evaluate()["test"]
    assert np.isfinite(run.client_losses("test")["personal"]).all()


def test_noise_can_be_given_instead_of_an_epsilon(many):
    run = pmtl.train(many, algorithm="pooling", privacy={"noise": 0.01})
    assert run.facts.plan.noise_std == 0.01
    assert run.privacy.epsilon == pytest.approx(epsilon_of(run.facts.plan), rel=1e-9)
    open_run = pmtl.train(many, algorithm="pooling", privacy={"noise": 0.0})
    assert math.isinf(open_run.privacy.epsilon)


@pytest.mark.parametrize("sampling", ["full", "poisson", "fixed"])
def test_clients_count_with_the_noise_that_the_gate_adds(many, sampling, monkeypatch):
    """Also with cohorts smaller than the federation: the vote's insurance depends on it."""
    published = []
    step = Pooling.server_step

    def watched(method, shared, update, memory):
        published.append((method.noise, update))
        return step(method, shared, update, memory)

    monkeypatch.setattr(Pooling, "server_step", watched)
    monkeypatch.setattr(Release, "add", lambda *given: None)  # Nothing but noise is published.
    privacy = {"epsilon": 2.0, "sampling": sampling}
    pmtl.train(many, privacy=privacy | ({} if sampling == "full" else {"cohort": 15}))
    drawn = torch.cat([update.flatten() for _, update in published])
    assert len(drawn) > 100
    assert float(drawn.std()) == pytest.approx(published[0][0], rel=0.25)


def test_a_start_that_it_does_not_use_is_said(many, tmp_path):
    file = tmp_path / "start.safetensors"
    save_file({"linear.weight": torch.ones(1, 2), "linear.bias": torch.ones(1)}, file)
    told: list[str] = []
    run = pmtl.train(many, privacy=math.inf, init=file, warn=told.append)
    without = pmtl.train(many, privacy=math.inf)
    assert torch.equal(personal(run), personal(without))
    assert any("ignores the start's values" in sentence for sentence in told)
    told.clear()
    pmtl.train(many, algorithm="pmtl", privacy={"rounds": 1}, init=file, warn=told.append)
    assert not any("ignores the start" in sentence for sentence in told)
