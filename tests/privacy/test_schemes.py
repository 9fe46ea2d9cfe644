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


class TestDistribution:
    """The accountant needs the whole distribution of cohorts, and a mean is not enough.

    Production's coins are others each time: a correct sampler fails one of these tests with a
    chance of at most 1e-6.
    """

    LUCK = 1e-7  #: of each of the p-values below; there are fewer than ten

    @pytest.fixture(params=[7, None], ids=["seeded", "production"])
    def table(self, request):
        return membership(sampler("poisson", seed=request.param))

    def test_sizes_of_cohorts_are_binomial(self, table):
        sizes = table.sum(axis=1)
        edges = stats.binom(CLIENTS, COHORT / CLIENTS).ppf(np.linspace(0, 1, 9)[1:-1])
        seen = np.bincount(np.searchsorted(edges, sizes), minlength=8)
        cdf = np.concatenate([[0], stats.binom.cdf(edges, CLIENTS, COHORT / CLIENTS), [1]])
        assert stats.chisquare(seen, ROUNDS * np.diff(cdf)).pvalue > self.LUCK

    def test_the_others_say_nothing_about_a_client(self, table):
        """Given any number of the others, a client is in with probability p; a fixed draw, whose
        mean is the same, puts it in exactly where they are one too few."""
        rate = COHORT / CLIENTS
        for client in (0, 17, CLIENTS - 1):
            others = np.delete(table, client, axis=1).sum(axis=1)
            few, many = others < np.median(others), others > np.median(others)
            counts = [
                [table[part, client].sum(), (~table[part, client]).sum()] for part in (few, many)
            ]
            assert stats.chi2_contingency(counts).pvalue > self.LUCK
            low, high = stats.binom(ROUNDS, rate).interval(1 - self.LUCK)
            assert low <= table[:, client].sum() <= high

    def test_pairs_of_clients_are_independent(self, table):
        """Over all pairs together: P[both] is p², neither more nor less."""
        both = table.T.astype(float) @ table
        pairs = both[np.triu_indices(CLIENTS, 1)]
        rate = (COHORT / CLIENTS) ** 2
        expected, spread = ROUNDS * rate, (ROUNDS * rate * (1 - rate)) ** 0.5
        worst = stats.norm.isf(self.LUCK / len(pairs))
        assert np.abs(pairs - expected).max() < worst * spread
        # A fixed draw has P[both] = q(q−1)/m(m−1), a hundredth less, which only the sum shows: of
        # sizes s it is Σ s(s−1)/2, with the variance that independent coins give.
        sums = table.sum(axis=1).astype(float)
        chosen = sums * (sums - 1) / 2
        mean = CLIENTS * (CLIENTS - 1) / 2 * rate
        assert abs(chosen.mean() - mean) < 6 * chosen.std() / ROUNDS**0.5
        assert sums.var() == pytest.approx(CLIENTS * 0.24, rel=0.25)

    def test_rounds_are_independent(self, table):
        stayed = (table[1:] & table[:-1]).sum()
        trials, rate = (ROUNDS - 1) * CLIENTS, (COHORT / CLIENTS) ** 2
        low, high = stats.binom(trials, rate).interval(1 - self.LUCK)
        assert low * 0.97 <= stayed <= high * 1.03
