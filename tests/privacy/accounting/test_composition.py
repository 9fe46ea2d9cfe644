"""Sums of different releases: against plans, against brute force, against each other."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import accountant, colluders, composition, gaussian
from pmtl.privacy.accounting.composition import epsilon
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan


def event(sampling, z, cohort=50, clients=100, kind="training"):
    cohort = clients if sampling == "full" else cohort
    return GaussianEvent(sampling, clients, cohort, 1.0, z / cohort, kind)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["full", "poisson", "fixed"]),
    st.floats(0.3, 50),
    st.integers(1, 100),
    st.integers(1, 3000),
    st.sampled_from([1e-3, 1e-5, 1e-9]),
)
def test_one_kind_of_round_is_a_plan(sampling, z, cohort, rounds, delta):
    one = event(sampling, z, cohort)
    plan = PrivacyPlan(100, one.cohort, sampling, 1.0, one.noise_std, rounds, delta)
    expected = accountant.epsilon(plan)
    assert epsilon({one: rounds}, delta) == pytest.approx(expected, rel=1e-12)
    # The same rounds under two names, or with a hair's difference, which takes the general way.
    half = rounds // 2
    named = {one: half, event(sampling, z, cohort, kind="validation"): rounds - half}
    assert epsilon(named, delta) == pytest.approx(expected, rel=1e-12)
    apart = {one: half, event(sampling, z * (1 - 1e-9), cohort): rounds - half}
    total = epsilon(apart, delta)
    assert expected * (1 - 2e-4) - 1e-9 <= total <= expected * (1 + 1e-3) + 1e-9


def test_nothing_published_and_nothing_hidden():
    silent, bare = event("poisson", 0.0), GaussianEvent("full", 100, 100, math.inf, 1.0)
    assert epsilon({}, 1e-5) == 0
    assert epsilon({silent: 0, event("full", 1.0): 0}, 1e-5) == 0
    assert epsilon({silent: 1, event("full", 100.0): 1}, 1e-5) == math.inf
    assert epsilon({bare: 1}, 1e-5) == math.inf


def test_full_participation_is_exact():
    total = epsilon({event("full", 10): 30, event("full", 4): 5}, 1e-6)
    mu = math.sqrt(30 * (2 / 10) ** 2 + 5 * (2 / 4) ** 2)
    assert total == pytest.approx(gaussian.epsilon(mu, 1e-6), rel=1e-12)
    # A cohort of everybody is full participation by any name, and stays exact.
    everybody = GaussianEvent("poisson", 100, 100, 1.0, 0.1)
    mu = math.sqrt(3 * (2 / 5) ** 2 + 2 * (2 / 10) ** 2)
    assert epsilon({event("full", 5): 3, everybody: 2}, 1e-6) == pytest.approx(
        gaussian.epsilon(mu, 1e-6), rel=1e-12
    )
    same = {GaussianEvent(s, 9, 9, 1.0, 1.0): 1 for s in ("full", "poisson", "fixed")}
    assert epsilon(same, 1e-6) == pytest.approx(
        gaussian.epsilon(2 * math.sqrt(3) / 9, 1e-6), rel=1e-12
    )


def test_known_participation_against_the_sum_over_all_cases():
    groups = [("fixed", 3.0, 20, 8), ("fixed", 5.0, 60, 12), ("poisson", 2.0, 10, 6)]
    events = {event(s, z, q): count for s, z, q, count in groups} | {event("full", 7.0): 4}
    for delta in (1e-3, 1e-6, 1e-10):
        total = epsilon(events, delta)
        exact = 0.0
        for times in itertools.product(*(range(count + 1) for *_, count in groups)):
            square = 4 * (2 / 7.0) ** 2
            chance = 1.0
            for n, (_, z, q, count) in zip(times, groups, strict=True):
                chance *= stats.binom.pmf(n, count, q / 100)
                square += n * (2 / z) ** 2
            exact += chance * gaussian.delta(total, math.sqrt(square))
        # δ at the reported ε: no more than was promised, and nearly all of it.
        assert 0.99 * delta < exact <= delta * (1 + 1e-9)


def test_merging_values_of_mu_only_ever_rounds_up():
    """Of 40,000 values of μ² most are merged; the exact sum has them all."""
    groups = [(1.0, 10, 33), (7.0, 30, 33), (40.0, 60, 33)]
    squares, chances = np.zeros(1), np.ones(1)
    for z, cohort, count in groups:
        times = np.arange(count + 1)
        squares = np.add.outer(squares, times * (2 / z) ** 2).ravel()
        chances = np.multiply.outer(chances, stats.binom.pmf(times, count, cohort / 100)).ravel()
    exact = chances @ special.erf(np.sqrt(squares / 8))
    found = composition.distance({event("fixed", z, cohort): n for z, cohort, n in groups})
    assert exact <= found <= exact * (1 + 1e-3)


def test_no_probability_is_lost_in_the_tails(monkeypatch):
    """With next to no noise, whoever was drawn once is found out: the chance of that, however
    much of it is left out of the sum, and once only."""
    for tail in (1e-9, 1e-3, 0.01):
        monkeypatch.setattr(composition, "DISTANCE_TAIL", tail)
        found = composition.distance({event("fixed", 1e-3, 1): 10})
        assert found == pytest.approx(1 - 0.99**10, abs=1e-12)


def test_many_groups_stay_near_the_one_they_nearly_are():
    many = {event("fixed", 10 + i * 1e-9): 500 for i in range(12)}
    one = colluders.epsilon(10, 0.5, 6000, 1e-5, 2)
    assert one * (1 - 1e-8) <= epsilon(many, 1e-5) <= one * 1.001


def test_secret_coins_against_simulated_losses():
    """Monte Carlo: the loss of 30 full and 40 Poisson rounds, drawn from the worst pair."""
    z_full, z_coin, p, delta = 12.0, 6.0, 0.3, 1e-2
    total = epsilon({event("full", z_full): 30, event("poisson", z_coin, 30): 40}, delta)
    random = np.random.default_rng(1)
    draws = 200_000
    x = random.normal(1, z_full / math.sqrt(30), draws)  # the mean of the full rounds
    losses = 2 * x * 30 / z_full**2
    for _ in range(40):
        y = random.normal(random.random(draws) < p, z_coin)

        def log_density(mean, y=y):
            return np.log1p(p * np.expm1((2 * y * mean - 1) / (2 * z_coin**2)))

        losses += log_density(1) - log_density(-1)
    simulated = np.maximum(-np.expm1(total - losses), 0)
    error = simulated.std() / math.sqrt(draws)
    assert abs(simulated.mean() - delta) < 4 * error + 0.01 * delta


def test_secret_coins_are_never_worse_than_known_ones():
    full = {event("full", 10): 20}
    for z, q, count in [(10, 50, 50), (1, 1, 500), (0.5, 99, 3)]:
        secret = epsilon(full | {event("poisson", z, q): count}, 1e-5)
        known = epsilon(full | {event("fixed", z, q): count}, 1e-5)
        assert epsilon(full, 1e-5) < secret < known


def test_where_the_transform_has_no_digits_left_the_cap_answers():
    events = {event("poisson", 10): 50, event("full", 10): 3}
    assert epsilon(events, 1e-12) < epsilon(events, 1e-13)
    known = {event("fixed", 10): 50, event("full", 10): 3}
    assert epsilon(events, 1e-13) == epsilon(known, 1e-13)


SOME = st.dictionaries(
    st.builds(
        event,
        st.sampled_from(["full", "poisson", "fixed"]),
        st.sampled_from([1e-300, 0.001, 0.5, 3.0, 20.0, 1e7, 1e300]),
        st.sampled_from([1, 30, 99, 100]),
    ),
    st.integers(0, 400),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(SOME, SOME)
def test_more_releases_never_cost_less(some, others):
    both = dict(some)
    for one, count in others.items():
        both[one] = both.get(one, 0) + count
    parts, whole = epsilon(some, 1e-5), epsilon(both, 1e-5)
    assert whole >= parts * (1 - 1e-3) - 1e-9
    assert epsilon(dict(reversed(both.items())), 1e-5) == whole


@pytest.mark.parametrize("faint", ["full", "poisson"])
@pytest.mark.parametrize("z", [1e7, 1e12, 1e300])
def test_a_release_that_tells_nothing_costs_nothing(faint, z):
    """However much noise it has: it must not bring the bound of those who know all coins."""
    alone = epsilon({event("poisson", 0.5, 1): 1}, 1e-5)
    total = epsilon({event("poisson", 0.5, 1): 1, event(faint, z): 1}, 1e-5)
    assert total == pytest.approx(alone, rel=1e-4)


def test_orders_of_magnitude_apart():
    """One loud release and ten thousand faint ones share a grid."""
    total = epsilon({event("full", 0.5): 1, event("poisson", 100): 10_000}, 1e-5)
    # With p = 1/2 and much noise a secret coin is worth a factor p of μ.
    near = gaussian.epsilon(math.sqrt(16 + 10_000 / 100**2), 1e-5)
    assert near * 0.999 < total < near * 1.005


@pytest.mark.parametrize("delta", [0, 1, -1e-5, math.nan])
def test_delta_is_a_probability(delta):
    with pytest.raises(PmtlError, match="between 0 and 1"):
        epsilon({}, delta)


@pytest.mark.parametrize("count", [-1, 1.5, True])
def test_counts_are_whole(count):
    with pytest.raises(PmtlError, match="whole number of times"):
        epsilon({event("full", 1.0): count}, 1e-5)


def exact_delta(total, groups):
    """δ at ε = `total` of groups (z, rate, rounds) whose coins are known, over all cases."""
    exact = 0.0
    for times in itertools.product(*(range(count + 1) for *_, count in groups)):
        square, chance = 0.0, 1.0
        for n, (z, rate, count) in zip(times, groups, strict=True):
            chance *= stats.binom.pmf(n, count, rate)
            square += n * (2 / z) ** 2
        exact += chance * gaussian.delta(total, math.sqrt(square))
    return exact


@pytest.mark.parametrize("tail", [1e-7, 1e-2, 0.5])
def test_what_is_left_out_of_a_sum_is_charged(tail, monkeypatch):
    """However much of the binomial's tails is left out, the bound stays one."""
    monkeypatch.setattr(colluders, "TAIL", tail)
    delta = 0.02 * (1 + tail / 10)  # Answers are remembered: each tail has its own question.
    alone = colluders.epsilon(2.0, 0.3, 30, delta, 2)
    assert exact_delta(alone, [(2.0, 0.3, 30)]) <= delta * (1 + 1e-9)
    events = {event("fixed", 2.0, 30): 20, event("fixed", 3.0, 40): 10}
    both = epsilon(events, delta)
    assert exact_delta(both, [(2.0, 0.3, 20), (3.0, 0.4, 10)]) <= delta * (1 + 1e-9)


def test_a_delta_of_the_size_of_what_is_left_out_is_a_bound():
    for value in (100.0, 150.0, 200.0):
        found = colluders.delta(1.0, 0.1, 100, value, 2)
        assert found >= exact_delta(value, [(1.0, 0.1, 100)]) * (1 - 1e-9)


def test_the_distance_charges_what_is_left_out(monkeypatch):
    events = {event("fixed", 1.0, 30): 40}
    exact = composition.distance(events)
    monkeypatch.setattr(composition, "DISTANCE_TAIL", 0.2)
    assert composition.distance(events) >= exact


def test_runs_with_the_same_cohorts_cost_more_than_their_sum():
    """16 experiments with one seed draw one cohort in each round: 16 Gaussians or none. The numbers
    are those of docs/privacy.md."""
    clients, cohort, rounds, runs, z = 500, 25, 20, 16, 4.0
    one = GaussianEvent("poisson", clients, cohort, 1.0, z / cohort)
    counted = epsilon({one: rounds * runs}, 1 / 5000)
    same = GaussianEvent("poisson", clients, cohort, 1.0, z / math.sqrt(runs) / cohort)
    true = epsilon({same: rounds}, 1 / 5000)
    assert (round(counted, 2), round(true, 2)) == (1.41, 1.73)
