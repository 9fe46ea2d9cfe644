"""Failure cases of the noise and of the plan: never the same twice, never another variance than the
plan's, never another plan than the one that is charged; on a federation's own gate, ordinary and
hardened. (`test_failure_cases.py` lists all cases.)"""

from __future__ import annotations

import copy
import os
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from silent import GATES, SIGMA, plan_for, silent_federation

from pmtl.algorithms import PMTL
from pmtl.errors import PmtlError
from pmtl.privacy.grid import Grid, GridNoise
from pmtl.privacy.noise import seeded_source
from pmtl.privacy.release import Release, noise_of
from pmtl.simulation import simulate

pytestmark = GATES


def test_a_noise_stream_reused_across_rounds_workers_or_forks_is_refused(hardened):
    federation = silent_federation(hardened)
    progress = federation.start()
    federation.advance(progress)
    progress.round = 0
    with pytest.raises(PmtlError, match="Round 0 was published already"):
        federation.advance(progress)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(PmtlError, match="cannot be copied"):
            duplicate(federation.server.gate)
    zeros = torch.zeros(1, 3, dtype=torch.float64)
    tally = federation.server.gate.open(1, zeros)
    child = os.fork()
    if child == 0:
        try:
            federation.server.gate.publish(tally, zeros)
        except PmtlError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    first = federation.server.gate.publish(tally, zeros)
    second = federation.server.gate.publish(federation.server.gate.open(2, zeros), zeros)
    assert not torch.isin(first, second).any()


PARAMETERS = 400_000  # The deviation of an estimated variance is then 0.22% of it.


def noise_variance(hardened, monkeypatch, dtype=torch.float32, level=64.0, size=PARAMETERS):
    """Of a release by a federation that is trained client by client, over σ²."""
    for limit in ("CHUNK_FLOATS", "THREADS_FLOATS", "SPARSE_FLOATS"):
        monkeypatch.setattr(f"pmtl.engines.choose.{limit}", 1)
    federation = silent_federation(hardened, features=size - 1, dtype=dtype)
    everybody = np.arange(federation.data.m)
    assert len(federation.sites.pieces(everybody)) == federation.data.m
    progress = federation.start()
    progress.shared += level
    own = progress.store.vectors
    own[:, :size] += level
    progress.store.scatter(np.arange(len(own)), own)
    # Where oneDNN knows of narrow instructions that a guest may not use, it cannot be relied on.
    with torch.backends.mkldnn.flags(enabled=False):
        federation.advance(progress)
    assert progress.shared.dtype == dtype
    # The last coordinate is the offset, which does learn something.
    return float((progress.shared[0, :-1].double() - level).square().mean()) / SIGMA**2


# Whether noise is added in half precision shows where the weights themselves are wide and large,
# or narrow and small.
@pytest.mark.parametrize(
    ("dtype", "level"),
    [(torch.float64, 64), (torch.float32, 64), (torch.float16, 0), (torch.bfloat16, 0)],
)
def test_the_variance_of_the_noise_is_the_plans_within_one_percent(
    hardened, dtype, level, monkeypatch
):
    assert abs(noise_variance(hardened, monkeypatch, dtype, level) - 1) < 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_rounded_once_after_wide_noise(hardened, dtype):
    # Runs in other precision have other noise of their own, so both are given the same.
    noise = noise_of(plan_for(), seeded_source(0), hardened)
    wide = silent_federation(hardened, noise=noise).server.gate
    narrow = silent_federation(hardened, dtype=dtype, noise=noise).server.gate
    before = torch.full((1, 500), 1 / 3).to(dtype)
    expected = wide.publish(wide.open(1, before), before.double())
    after = narrow.publish(narrow.open(1, before), before)
    assert torch.equal(after, expected.to(dtype))
    assert not torch.equal(after, before + (expected - before).to(dtype))


def in_half_precision(self, tally, noisy):
    return noisy(tally).half()


def twice(self, tally, noisy):
    return noisy(tally) + noisy(self.open(tally.round + 100, tally.sum))


def per_shard(self, tally, noisy):
    empty = [self.open(tally.round + 100 + shard, tally.sum) for shard in range(4)]
    return self.average(tally) + sum(noisy(part) for part in empty)


def per_shard_of_its_share(self, tally, noisy):
    empty = [self.open(tally.round + 100 + shard, tally.sum) for shard in range(4)]
    return self.average(tally) + sum(noisy(part) for part in empty) / 4


def on_the_sum(self, tally, noisy):
    average = self.average(tally)
    return average + (noisy(tally) - average) / self.plan.cohort


@pytest.mark.parametrize(
    "mutant", [in_half_precision, twice, per_shard, per_shard_of_its_share, on_the_sum]
)
def test_noise_added_in_half_precision_twice_per_shard_or_to_the_sum_is_caught_by_the_variance(
    hardened, mutant, monkeypatch
):
    noisy, publish = Release._noisy, Release.publish
    monkeypatch.setattr(
        Release, "_noisy", lambda self, tally: mutant(self, tally, lambda t: noisy(self, t))
    )
    if mutant is in_half_precision:

        def narrow(self, tally, shared, *how):
            return publish(self, tally, shared.half(), *how).to(shared.dtype)

        monkeypatch.setattr(Release, "publish", narrow)
    assert abs(noise_variance(hardened, monkeypatch, size=PARAMETERS // 10) - 1) > 0.05


# --- one plan ---


def test_a_sampler_and_an_accountant_that_disagree_cannot_be_constructed(hardened):
    """Both are the plan's; nothing that was made for another plan is taken."""
    federation = silent_federation(hardened, plan_for(4, cohort=2, sampling="poisson"))
    plan = federation.plan
    assert federation.server.sampler.plan is plan is federation.server.gate.plan
    for name in ("sampling", "cohort", "clients", "noise_std", "rounds"):
        with pytest.raises(FrozenInstanceError):
            setattr(plan, name, getattr(plan, name))
    with pytest.raises(PmtlError, match="cohort of all 4 clients"):
        replace(plan, sampling="full")
    with pytest.raises(PmtlError, match="plan is for 4 clients, but keys"):
        plan.sampler(0, np.arange(5, dtype=np.uint64))
    with pytest.raises(PmtlError, match="protects 4 clients, but 5"):
        Release(plan, np.zeros(5, dtype=np.int64), federation.server.gate.noise)
    data = federation.data.select(federation.data.clients[:3])
    with pytest.raises(PmtlError, match="plan is for 4 clients, but the data has 3"):
        simulate(data, federation.model, PMTL(), plan, federation.sites.local, 0, hardened=hardened)
    other = GridNoise(Grid.of(replace(plan, noise_std=2 * SIGMA)), seeded_source(0))
    with pytest.raises(PmtlError, match="another plan"):
        Release(plan, np.zeros(4, dtype=np.int64), other)
    with pytest.raises(PmtlError, match="outside the privacy plan"):
        federation.server.sampler.draw(plan.rounds)
