"""Cohorts are what the accountant assumes: own coins at rate p, or exactly q, and nothing else."""

import numpy as np
import pytest
from scipy import stats

from pmtl.errors import PmtlError
from pmtl.privacy.plan import PrivacyPlan
from pmtl.streams import name_keys

CLIENTS, COHORT, ROUNDS = 50, 20, 2000
KEYS = name_keys(tuple(f"client-{k}" for k in range(CLIENTS)))


def sampler(sampling, cohort=COHORT, clients=CLIENTS, keys=KEYS, seed=7):
    plan = PrivacyPlan(clients, cohort, sampling, 1.0, 0.1, ROUNDS, 1e-3)
    return plan.sampler(seed, keys)


def membership(draws):
    """[rounds, clients] of who was in."""
    table = np.zeros((ROUNDS, CLIENTS), dtype=bool)
    for t in range(ROUNDS):
        table[t, draws.draw(t)] = True
    return table


def test_full_is_everybody():
    assert np.array_equal(sampler("full", cohort=CLIENTS).draw(3), np.arange(CLIENTS))


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_every_client_is_drawn_at_the_rate_of_the_plan(sampling):
    counts = membership(sampler(sampling)).sum(axis=0)
    rate = COHORT / CLIENTS
    # One fixed seed; were it drawn anew, one of 50 clients would fall outside one time in 10,000.
    low, high = stats.binom(ROUNDS, rate).interval(1 - 2e-6)
    assert low <= counts.min()
    assert counts.max() <= high


def test_poisson_coins_are_independent_between_clients_and_between_rounds():
    table = membership(sampler("poisson")).astype(float)
    between = np.corrcoef(table.T)[np.triu_indices(CLIENTS, 1)]
    over_time = np.array([np.corrcoef(column[:-1], column[1:])[0, 1] for column in table.T])
    # Correlations of independent coins have deviation 1/√2000 = 0.022.
    assert abs(between).max() < 5 * 0.0224
    assert abs(over_time).max() < 5 * 0.0224
    sizes = table.sum(axis=1)
    assert sizes.var() == pytest.approx(CLIENTS * 0.4 * 0.6, rel=0.15)


def test_a_poisson_coin_does_not_depend_on_the_other_clients():
    few = PrivacyPlan(10, 4, "poisson", 1.0, 0.1, ROUNDS, 1e-3).sampler(7, KEYS[:10])
    many = sampler("poisson")
    for t in range(50):
        assert np.array_equal(few.draw(t), many.draw(t)[many.draw(t) < 10])


def test_poisson_may_draw_nobody():
    rare = PrivacyPlan(3, 1, "poisson", 1.0, 0.1, ROUNDS, 1e-3).sampler(1, KEYS[:3])
    empty = np.mean([len(rare.draw(t)) == 0 for t in range(ROUNDS)])
    assert empty == pytest.approx((2 / 3) ** 3, abs=0.05)


def test_fixed_draws_exactly_the_cohort():
    draws = sampler("fixed")
    assert {len(draws.draw(t)) for t in range(200)} == {COHORT}


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_at_rate_one_everybody_is_in(sampling):
    assert np.array_equal(sampler(sampling, cohort=CLIENTS).draw(0), np.arange(CLIENTS))


@pytest.mark.parametrize("sampling", ["full", "poisson", "fixed"])
def test_listing_the_clients_in_another_order_draws_the_same_clients(sampling):
    cohort = CLIENTS if sampling == "full" else COHORT
    order = np.random.default_rng(0).permutation(CLIENTS)
    straight, shuffled = sampler(sampling, cohort), sampler(sampling, cohort, keys=KEYS[order])
    for t in range(20):
        assert set(KEYS[straight.draw(t)]) == set(KEYS[order][shuffled.draw(t)])


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_draw_has_no_memory_and_is_sorted(sampling):
    draws, again = sampler(sampling), sampler(sampling)
    later = draws.draw(9)
    draws.draw(3)
    assert np.array_equal(draws.draw(9), later)
    assert np.array_equal(again.draw(9), later)
    assert np.array_equal(later, np.sort(later))
    assert later.dtype == np.int64
    assert not np.array_equal(sampler(sampling, seed=8).draw(9), later)


def test_keys_must_be_those_of_the_plan():
    with pytest.raises(PmtlError, match="plan is for 50 clients"):
        sampler("poisson", keys=KEYS[:49])
    with pytest.raises(PmtlError, match="same sampling key"):
        sampler("poisson", keys=np.concatenate([KEYS[:49], KEYS[:1]]))


@pytest.mark.parametrize("round_", [-1, ROUNDS])
def test_a_round_nobody_paid_for_is_not_drawn(round_):
    with pytest.raises(PmtlError, match="outside the privacy plan"):
        sampler("poisson").draw(round_)
