"""The estimators: never more than the truth (with the stated confidence), and not much less."""

import math

import numpy as np
import pytest
from scipy import stats

from pmtl.audit.estimators import (
    discriminant,
    epsilon_from_rates,
    mu_from_rates,
    one_run,
    one_run_gaussian,
    one_run_gaussian_refutes,
    one_run_p_value,
    threshold_bound,
    upper_limit,
)
from pmtl.errors import PmtlError
from pmtl.privacy.accounting import gaussian

DELTA = 0.005


def gaussian_game(mu, trials, random):
    bits = np.arange(trials) % 2 == 1
    return random.normal(size=trials) + mu * bits, bits


@pytest.mark.parametrize(("count", "trials"), [(0, 10), (3, 50), (49, 50), (400, 1000)])
def test_the_limit_is_the_rate_at_which_so_few_become_too_rare(count, trials):
    limit = float(upper_limit(count, trials, 0.01))
    assert stats.binom.cdf(count, trials, limit) == pytest.approx(0.01)


def test_limits_at_the_ends():
    assert float(upper_limit(7, 7, 0.01)) == 1.0
    assert float(upper_limit(0, 100, 0.01)) == pytest.approx(1 - 0.01**0.01)


def test_rates_become_the_least_epsilon_that_allows_them():
    # Randomised response with ε = log 3 is wrong a quarter of the time, in both directions.
    assert float(epsilon_from_rates(0.25, 0.25, 0.0)) == pytest.approx(math.log(3))
    assert float(epsilon_from_rates(0.05, 0.9, 0.01)) == pytest.approx(math.log(0.09 / 0.05))
    assert float(epsilon_from_rates(0.9, 0.05, 0.01)) == pytest.approx(math.log(0.09 / 0.05))
    assert float(epsilon_from_rates(0.5, 0.5, 0.0)) == 0.0
    assert float(epsilon_from_rates(1.0, 1.0, 0.01)) == 0.0


@pytest.mark.parametrize("threshold", [-1.0, 0.4, 2.0])
def test_any_threshold_gives_mu_back(threshold):
    fpr, fnr = stats.norm.sf(threshold), stats.norm.cdf(threshold - 1.3)
    assert float(mu_from_rates(fpr, fnr)) == pytest.approx(1.3)


@pytest.mark.parametrize("curve", [True, False])
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_coverage_on_exact_gaussians(mu, curve):
    """At 90% confidence, at most 10% of 400 bounds exceed the truth; twice √(.1·.9/400) leaves
    room for the luck of this seed."""
    random = np.random.default_rng(4)
    truth = gaussian.epsilon(mu, DELTA)
    bounds = [
        threshold_bound(*gaussian_game(mu, 400, random), DELTA, 0.9, curve=curve).epsilon
        for _ in range(400)
    ]
    assert np.mean(np.array(bounds) > truth) <= 0.1 + 0.03


@pytest.mark.parametrize(
    ("mu", "with_curve", "without"), [(0.8, 0.5, 0.25), (2.0, 0.7, 0.33)], ids=["low", "high"]
)
def test_tightness_on_exact_gaussians(mu, with_curve, without):
    """99.9% confidence and 4000 trials: the median share of the truth over 20 games, and the
    least of them where the curve is granted."""
    random = np.random.default_rng(5)
    truth = gaussian.epsilon(mu, DELTA)
    games = [gaussian_game(mu, 4000, random) for _ in range(20)]
    tight = [threshold_bound(*game, DELTA, 0.999, curve=True).epsilon / truth for game in games]
    plain = [threshold_bound(*game, DELTA, 0.999, curve=False).epsilon / truth for game in games]
    assert max(tight + plain) <= 1
    assert min(tight) >= 0.3
    assert np.median(tight) >= with_curve
    assert np.median(plain) >= without


@pytest.mark.parametrize("curve", [True, False])
def test_nothing_to_see_proves_nothing(curve):
    bits = np.arange(1000) % 2 == 1
    assert threshold_bound(np.zeros(1000), bits, DELTA, 0.999, curve=curve).epsilon == 0
    noise = np.random.default_rng(6).normal(size=1000)
    assert threshold_bound(noise, bits, DELTA, 0.999, curve=curve).epsilon < 0.05


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e300])
def test_a_score_that_is_no_number_tells_everything(odd):
    bits = np.arange(1000) % 2 == 1
    scores = np.where(bits, odd, np.random.default_rng(7).normal(size=1000))
    bound = threshold_bound(scores, bits, DELTA, 0.999, curve=False)
    assert (bound.false_positives, bound.false_negatives) == (0, 0)
    rate = 1 - 0.0005 ** (1 / 250)  # no mistake in 250 trials of either kind
    assert bound.epsilon == pytest.approx(math.log((1 - DELTA - rate) / rate))


def test_too_few_trials_are_refused():
    with pytest.raises(PmtlError, match="both federations in each half"):
        threshold_bound(np.zeros(3), np.array([True, False, True]), DELTA, 0.9, curve=False)
    with pytest.raises(PmtlError, match="one score and one bit"):
        threshold_bound(np.zeros(3), np.array([True]), DELTA, 0.9, curve=False)


def test_the_discriminant_is_blind_to_the_second_half_and_finds_the_direction():
    random = np.random.default_rng(8)
    bits = np.arange(2000) % 2 == 1
    signal = np.array([1.0, -1.0, 0.0]) / math.sqrt(2)
    views = random.normal(size=(2000, 3)) + 2.0 * bits[:, None] * signal
    views = np.column_stack([views, views[:, 0], np.full(2000, 3.0)])  # copies and constants
    scores = discriminant(views, bits)
    second = scores[1000:]
    gap = second[bits[1000:]].mean() - second[~bits[1000:]].mean()
    assert gap / second[bits[1000:]].std() == pytest.approx(2.0, abs=0.15)
    changed = views.copy()
    changed[1000:] = 0
    assert np.array_equal(discriminant(changed, bits)[:1000], scores[:1000])
    views[::2, 1] = np.nan
    assert np.isfinite(discriminant(views, bits)).all()


def test_what_was_learned_from_half_of_the_trials_is_measured_on_the_other():
    """Sixty features of pure noise tell the first hundred trials apart, and no others."""
    bits = np.arange(200) % 2 == 1
    views = np.random.default_rng(10).normal(size=(200, 60))
    scores = discriminant(views, bits)
    gap = scores[:100][bits[:100]].mean() - scores[:100][~bits[:100]].mean()
    assert gap > 2 * scores[:100][bits[:100]].std()
    for curve in (True, False):
        assert threshold_bound(scores, bits, DELTA, 0.999, curve=curve).epsilon == 0


class TestOneRun:
    def test_published_values(self):
        """arXiv:2305.08846, appendix D and section 7, to the digits that are printed there."""
        assert one_run(1000, 100, 75, 1e-4, 0.95) == pytest.approx(0.673, abs=1e-3)
        assert one_run(100_000, 1510, 1439, 1e-5, 0.95) == pytest.approx(2.675, abs=1e-3)

    def test_without_delta_it_is_the_binomial_test(self):
        assert one_run_p_value(100, 100, 75, math.log(3), 0.0) == pytest.approx(
            stats.binom.sf(74, 100, 0.75)
        )

    def test_delta_and_confidence_only_weaken_it(self):
        strong = one_run(500, 500, 400, 0.0, 0.95)
        assert one_run(500, 500, 400, 1e-5, 0.95) < strong
        assert one_run(500, 500, 400, 0.0, 0.999) < strong
        assert one_run(500, 500, 250, 0.0, 0.95) == 0.0

    def test_coverage_on_randomised_response(self):
        """The mechanism for which the bound is tight: 2000 runs, 90% confidence."""
        right = np.random.default_rng(9).binomial(300, 1 / (1 + math.exp(-1.0)), size=2000)
        bounds = {count: one_run(300, 300, count, 0.0, 0.9) for count in set(right.tolist())}
        exceeds = np.mean([bounds[count] > 1.0 for count in right.tolist()])
        assert 0.05 < exceeds <= 0.1 + 0.014

    def test_impossible_counts_are_refused(self):
        with pytest.raises(PmtlError, match="cannot be"):
            one_run(10, 5, 6, 0.0, 0.9)


class TestOneRunWithACurve:
    """`one_run_gaussian`: never against a mechanism with the curve, and exact for one secret."""

    @pytest.mark.parametrize("mu", [0.1, 1.0, 2.5])
    def test_one_secret_is_the_best_guess_against_the_curve(self, mu):
        right = stats.norm.cdf(mu / 2)
        assert not one_run_gaussian_refutes(1, 1, 1, mu, right - 1e-6)
        assert one_run_gaussian_refutes(1, 1, 1, mu, right + 1e-6)

    @pytest.mark.parametrize("mu", [0.2, 0.8, 2.0])
    @pytest.mark.parametrize("secrets", [2, 7, 60])
    def test_independent_gaussians_are_never_refuted(self, mu, secrets):
        """Their exact chances of so many right guesses, for every number."""
        chance = stats.binom(secrets, stats.norm.cdf(mu / 2))
        for correct in range(1, secrets + 1):
            level = float(chance.sf(correct - 1))
            assert not one_run_gaussian_refutes(secrets, secrets, correct, mu, level)

    @pytest.mark.parametrize("mu", [0.5, 1.5])
    def test_nor_is_a_mechanism_whose_guesses_hang_together(self, mu):
        """One noise for two secrets that count half each: guesses are right or wrong together. The
        pair (½, ½)·s + n has the curve of μ for each secret by itself."""
        # Both secrets known to be equal or opposite: s₁ + s₂ ∈ {−2, 0, 2}, and one number is seen.
        random = np.random.default_rng(0)
        secrets = np.where(random.random((200_000, 2)) < 0.5, 1.0, -1.0)
        seen = mu / 2 * secrets.sum(axis=1) + random.normal(size=200_000)
        right = ((seen[:, None] > 0) == (secrets > 0)).sum(axis=1)
        for correct in (1, 2):
            level = np.mean(right >= correct) - 0.005
            assert not one_run_gaussian_refutes(2, 2, correct, mu, level)

    def test_coverage_with_a_share_of_the_guesses(self):
        """400 runs of 300 secrets, the surest third guessed, 90% confidence."""
        random = np.random.default_rng(11)
        mu, exceeds = 1.0, 0
        truth = gaussian.epsilon(mu, DELTA)
        for _ in range(400):
            bits = random.random(300) < 0.5
            scores = random.normal(size=300) + np.where(bits, mu / 2, -mu / 2)
            order = np.argsort(scores)
            correct = int((~bits[order[:50]]).sum() + bits[order[-50:]].sum())
            exceeds += one_run_gaussian(300, 100, correct, DELTA, 0.9) > truth
        assert exceeds <= 0.1 * 400 + 2 * (0.09 * 400) ** 0.5

    def test_it_grows_with_the_guesses_and_falls_with_confidence(self):
        bounds = [one_run_gaussian(2000, 200, right, DELTA, 0.999) for right in (100, 150, 180)]
        assert bounds[0] == 0 < bounds[1] < bounds[2]
        assert one_run_gaussian(2000, 200, 180, DELTA, 0.9) > bounds[2]
        with pytest.raises(PmtlError, match="cannot be"):
            one_run_gaussian(10, 5, 6, DELTA, 0.9)
