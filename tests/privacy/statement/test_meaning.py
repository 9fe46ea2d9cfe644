"""What (ε, δ) leaves an attacker: never less than the best attack on a known mechanism gets."""

import math

import numpy as np
import pytest
from scipy import stats

from pmtl.privacy.accounting import composition, gaussian
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.statement.meaning import Guarantee, hits, success


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.05])
def test_the_bounds_are_reached_by_the_mechanism_that_just_keeps_epsilon_and_delta(epsilon, delta):
    """With probability δ it says which data set it has; otherwise it is randomised response."""
    truth = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    # The attacker who believes it: right with δ + truth.
    assert success(epsilon, delta) == pytest.approx(delta + truth, rel=1e-12)
    # Raising alarms at random, as often as 1% allows, on what it says of the one data set.
    lie = (1 - delta) / (1 + math.exp(epsilon))
    if lie >= 0.01:
        assert hits(epsilon, delta) == pytest.approx(delta + truth * 0.01 / lie, rel=1e-9)
    else:
        assert hits(epsilon, delta) >= delta + truth + lie * (0.01 - lie) / (1 - lie) - 1e-12


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 4.0])
def test_no_attack_on_a_gaussian_does_better(mu):
    """The best attacks on N(0, 1) against N(μ, 1) are thresholds."""
    for delta in (1e-8, 1e-5, 1e-2):
        epsilon = gaussian.epsilon(mu, delta)
        assert success(epsilon, delta) >= stats.norm.cdf(mu / 2)
        assert hits(epsilon, delta) >= stats.norm.sf(stats.norm.isf(0.01) - mu)


def test_nothing_is_left_to_promise_without_privacy_and_guessing_with_perfect_privacy():
    assert success(math.inf, 0.1) == hits(math.inf, 0.1) == 1
    assert success(0.0, 0.0) == 0.5
    assert hits(0.0, 0.0) == pytest.approx(0.01)


def test_the_whole_curve_gives_the_gaussians_own_number():
    event = GaussianEvent("full", 10, 10, 1.0, 1.0)  # z = 10
    assert composition.distance({event: 25}) == pytest.approx(2 * stats.norm.cdf(0.5) - 1)
    assert composition.distance({}) == 0
    assert composition.distance({GaussianEvent("full", 10, 10, math.inf, 1.0): 1}) == 1


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_with_cohorts_it_is_that_of_those_who_know_who_was_in(sampling):
    event = GaussianEvent(sampling, 10, 3, 1.0, 0.5)  # z = 1.5
    times, chance = np.arange(8), stats.binom(7, 0.3)
    expected = (chance.pmf(times) * (2 * stats.norm.cdf(np.sqrt(times) / 1.5) - 1)).sum()
    assert composition.distance({event: 7}) == pytest.approx(expected, rel=1e-6)


def test_a_guarantee_is_read_off_the_composition():
    full = GaussianEvent("full", 10, 10, 1.0, 1.0)
    coins = GaussianEvent("poisson", 10, 3, 1.0, 1.0)
    for events in ({full: 3}, {coins: 3}, {full: 2, coins: 3}):
        point = Guarantee.of(events, 1e-4)
        assert point.epsilon == composition.epsilon(events, 1e-4)
        assert point.attacker_right == success(point.epsilon, 1e-4)
        assert point.attacker_hits == hits(point.epsilon, 1e-4)
        assert 0 < point.zero_out < point.epsilon
    # Half of what a replaced client moves.
    assert Guarantee.of({full: 4}, 1e-4).zero_out == pytest.approx(gaussian.epsilon(0.2, 1e-4))
