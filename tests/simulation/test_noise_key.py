"""The key of an experiment's noise has all in it that decides what is published."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import pmtl
from pmtl.algorithms import PMTL, FedAvg
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.models.network import train
from pmtl.privacy.noise import CPU, real
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.sampling import SamplingScheme
from pmtl.runs.config import TrainConfig
from pmtl.runs.folder import RunFolder
from pmtl.runs.preparation import refuse_differences
from pmtl.simulation import LocalTraining, Team, simulate
from pmtl.simulation.noise_key import NoiseKey


class Turns(SamplingScheme):
    """Clients take turns."""

    def draw(self, sampler, round):
        plan = sampler.plan
        return np.sort((np.arange(plan.cohort) + round * plan.cohort) % plan.clients)

    def chance(self, rate):
        return 1.0


def first_clients(self, sampler, round):
    return np.arange(sampler.plan.cohort)


OWN = f"{__name__}:Turns"


def noise(key, release=""):
    return tuple(real(key.source(release)(0), (4,), CPU).tolist())


def test_runs_with_other_metrics_and_other_kinds_of_release_have_other_noise():
    none, few, many = (NoiseKey(0) for _ in range(3))
    few.add_metrics({"rounds": 1}, 2)
    many.add_metrics({"rounds": 3}, 2)
    found = [noise(none), noise(few), noise(many), noise(none, " metrics")]
    assert len(set(found)) == 4
    assert noise(NoiseKey(0)) == found[0] != noise(NoiseKey(1))


def test_metrics_are_decided_upon_before_noise_is_drawn():
    key = NoiseKey(0)
    noise(key)
    with pytest.raises(PmtlError, match="before the first round"):
        key.add_metrics({"rounds": 1})


def published(data, model="logistic", engine="axis", noise=None):
    """What the first round publishes, and the key of its noise."""
    flat = build_model(model, data.input_shape, data.outputs, data.task, 0)
    plan = PrivacyPlan(12, 12, "full", 0.5, 5.0, 1, 1e-2)
    local = LocalTraining(steps=3, batch=4, lr=0.5)
    made = simulate(data, flat, FedAvg(), plan, local, 0, engine=engine, noise=noise)
    state = made.start()
    made.advance(state)
    return state.shared.double(), made.noise_key.text


def no_noise(round, shape):
    return torch.zeros(shape, dtype=torch.float64)


def gives_the_sums(one, two, *runs):
    """Whether the difference of what two runs published is that of their sums, without noise. Each
    of `runs` gives what it publishes with the noise that it gets; `one` and `two` are without."""
    exact, found = one - two, runs[0] - runs[1]
    assert float(exact.norm()) > 1e-3
    return float((found - exact).norm()) < 1e-3 * float(exact.norm())


def dropping(input_shape, outputs):
    return nn.Sequential(nn.Linear(input_shape[0], 6), nn.Dropout(0.5), nn.Linear(6, outputs))


def test_two_engines_whose_dropout_differs_do_not_give_the_difference_of_their_sums(small):
    runs = [published(small, dropping, engine) for engine in ("axis", "debug")]
    bare = [published(small, dropping, engine, no_noise)[0] for engine in ("axis", "debug")]
    assert not gives_the_sums(*bare, *(shared for shared, _ in runs))
    again = published(small, dropping, "axis")
    assert again[1] == runs[0][1] != runs[1][1]
    assert torch.equal(again[0], runs[0][0])


def test_the_number_of_processes_decides_with_dropout_only(small):
    local, plan = LocalTraining(steps=1), PrivacyPlan(12, 12, "full", 0.5, 0.1, 1, 1e-2)
    for model, same in (("logistic", True), (dropping, False)):
        flat = build_model(model, small.input_shape, small.outputs, small.task, 0)
        keys = [
            simulate(small, flat, PMTL(), plan, local, 0, team=Team(0, size)).noise_key.text
            for size in (1, 2)
        ]
        assert (keys[0] == keys[1]) is same


def test_rows_that_were_changed_in_place_have_other_noise(small):
    """The federation is one object with one array, before and after."""
    data = replace(small, x=np.array(small.x))
    rows = data.rows("train").of(0)
    before, bare = published(data), published(data, noise=no_noise)[0]
    data.x[rows] *= -1
    after, bare_after = published(data), published(data, noise=no_noise)[0]
    assert before[1] != after[1]
    assert not gives_the_sums(bare, bare_after, before[0], after[0])


def test_two_sampling_schemes_of_one_name_do_not_share_noise(small, monkeypatch):
    model = build_model("logistic", small.input_shape, small.outputs, small.task, 0)
    local = LocalTraining(steps=1)

    def key(sampling):
        plan = PrivacyPlan(12, 4, sampling, 0.5, 0.1, 3, 1e-2)
        return simulate(small, model, PMTL(), plan, local, 0).noise_key

    turns, fixed = key(OWN), key("fixed")
    assert key(OWN).text == turns.text
    monkeypatch.setattr(Turns, "draw", first_clients)
    assert key(OWN).text != turns.text
    assert noise(key(OWN)) != noise(turns)
    assert key("fixed").text == fixed.text


def test_a_copied_plan_has_the_code_of_its_scheme_in_the_key(small, monkeypatch):
    """A copy keeps the chance of its scheme and not the code; it still draws by the code."""
    model = build_model("logistic", small.input_shape, small.outputs, small.task, 0)

    def key():
        plan = copy.copy(PrivacyPlan(12, 4, OWN, 0.5, 0.1, 3, 1e-2))
        return simulate(small, model, PMTL(), plan, LocalTraining(steps=1), 0).noise_key.text

    turns = key()
    assert key() == turns
    monkeypatch.setattr(Turns, "draw", first_clients)
    assert key() != turns


class Pair:
    """The first of two processes; it remembers what they compare."""

    size = 2

    def differing(self, parts):
        self.parts = parts
        return []


def test_processes_compare_the_code_of_a_copied_plans_scheme(small, monkeypatch):
    model = build_model("logistic", small.input_shape, small.outputs, small.task, 0)
    pair = Pair()

    def compared():
        plan = copy.copy(PrivacyPlan(12, 4, OWN, 0.5, 0.1, 3, 1e-2))
        refuse_differences(pair, small, TrainConfig(data="x"), [plan, None], model, PMTL())
        return pair.parts["the sampling scheme"]

    turns = compared()
    assert compared() == turns
    monkeypatch.setattr(Turns, "draw", first_clients)
    assert compared() != turns


@pytest.mark.parametrize("algorithm", ["anchored", "pmtl"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("subspace:k=5,seed=0", "subspace:k=5,seed=1"),
        ("lowrank:rank=1,seed=0", "lowrank:rank=1,seed=1"),
        ("*.bias", None),
    ],
)
def test_runs_that_share_different_parts_do_not_share_noise(
    small, monkeypatch, algorithm, one, other
):
    monkeypatch.setattr(train, "STEPS", 2)

    def key(share):
        chosen = {"algorithm": algorithm, "share": share}
        if algorithm == "pmtl":
            chosen |= {"privacy": {"rounds": 2}, "local": {"steps": 1}}
        run = pmtl.train(small, "mlp:hidden=3", **chosen, seed=0, evaluate_every=0)
        return run.facts.noise_key

    assert key(one) == key(one) != key(other)


def test_a_public_start_and_the_same_random_one_do_not_share_noise(small, tmp_path, monkeypatch):
    """The noise of anchored may be as large as a random start, but not as a public one."""
    monkeypatch.setattr(train, "STEPS", 2)
    model = build_model("mlp:hidden=3", small.input_shape, small.outputs, small.task, 0)
    save_file(model.module.state_dict(), tmp_path / "start.safetensors")
    keys = [
        pmtl.train(small, "mlp:hidden=3", algorithm="anchored", init=init, seed=0).facts.noise_key
        for init in (None, tmp_path / "start.safetensors")
    ]
    assert keys[0] != keys[1]


def test_a_run_whose_sampling_scheme_has_changed_does_not_go_on(small, tmp_path, monkeypatch):
    save = RunFolder.save_round

    def stop(self, line):
        save(self, line)
        if line["round"] == 2:
            raise SystemError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", stop)
        with pytest.raises(SystemError):
            pmtl.train(
                small,
                privacy={"rounds": 4, "cohort": 4, "sampling": OWN},
                local={"steps": 1},
                checkpoint_seconds=0.0,
                out=tmp_path / "run",
            )
    with monkeypatch.context() as patch:
        patch.setattr(Turns, "draw", first_clients)
        with pytest.raises(PmtlError, match="algorithm or sampling scheme"):
            pmtl.resume(tmp_path / "run", data=small)
    assert pmtl.resume(tmp_path / "run", data=small).facts.complete
