"""Noise in shares: ε for each adversary, and the published bound beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from pmtl.privacy.accounting import accountant, distributed
from pmtl.privacy.plan import PrivacyPlan

PLAN = PrivacyPlan(205, 205, "full", 1.0, 0.05, 20, 1e-3)


def test_what_each_adversary_knows_decides_the_noise_that_is_left():
    found = distributed.report(PLAN, 9, 3)
    assert distributed.epsilon(PLAN, 9, 3, 3) == pytest.approx(accountant.epsilon(PLAN))
    assert found["outsiders"] < accountant.epsilon(PLAN) < found["all_other_sites"]
    assert found["variance"] == 1.5
    # All other sites: one share is left, a sixth of the plan's variance.
    alone = PrivacyPlan(205, 205, "full", 1.0, 0.05 / math.sqrt(6), 20, 1e-3)
    assert found["all_other_sites"] == pytest.approx(accountant.epsilon(alone))


def test_if_all_other_sites_may_collude_the_epsilon_is_that_of_the_plan():
    found = distributed.report(PLAN, 3, 2)
    assert found["all_other_sites"] == pytest.approx(accountant.epsilon(PLAN))
    assert found["variance"] == 3


@pytest.mark.parametrize("rounds", [1, 20])
@pytest.mark.parametrize("z", [2.0, 10.0])
def test_the_published_bound_is_that_of_an_independent_accountant(z, rounds):
    """With shares of 32 steps or more, τ vanishes and the bound is the Rényi curve of a Gaussian.
    dp-accounting does not double the sensitivity of a replaced client: half the noise."""
    independent = RdpAccountant(np.linspace(1.01, 200, 4000).tolist())
    independent.compose(SelfComposedDpEvent(GaussianDpEvent(z / 2), rounds))
    found = distributed.discrete_gaussian_epsilon(z, 32.0, 6, 10**9, rounds, 1e-3)
    assert found == pytest.approx(independent.get_epsilon(1e-3), rel=2e-3)


@pytest.mark.parametrize(("share", "honest"), [(1.0, 3), (3.0, 4)])
def test_the_published_bound_holds_for_discrete_gaussians(share, honest):
    """Against the exact distribution of their sum, one number, moved by 2 deviations."""
    k = np.arange(-math.ceil(14 * share), math.ceil(14 * share) + 1)
    one = np.exp(-(k**2) / (2 * share**2))
    one /= one.sum()
    total = one
    for _ in range(honest - 1):
        total = np.convolve(total, one)
    step = math.ceil(2 * share * math.sqrt(honest))
    z = 2 * share * math.sqrt(honest) / step
    there = np.concatenate([np.zeros(step), total])
    here = np.concatenate([total, np.zeros(step)])
    for delta in (1e-2, 1e-4):
        epsilon = distributed.discrete_gaussian_epsilon(z, share, honest, 1, 1, delta)
        assert np.maximum(there - math.exp(epsilon) * here, 0).sum() <= delta


def test_small_shares_cost_more_by_the_published_bound():
    def bound(share, numbers):
        return distributed.discrete_gaussian_epsilon(4.0, share, 6, numbers, 1, 1e-3)

    assert bound(32.0, 10**9) == bound(1000.0, 1)
    assert bound(32.0, 1) < bound(0.6, 1) < bound(0.6, 100) < bound(0.5, 100)
