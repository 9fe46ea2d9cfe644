"""Shares of noise: what their sum is worth, by computations that do not use the proof."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from cohorts import GRID, words_of
from scipy import stats

from pmtl.errors import PublicError
from pmtl.privacy.accounting import gaussian
from pmtl.privacy.grid import Grid
from pmtl.privacy.noise import rounded
from pmtl.secure_aggregation import shares


def _rounded_normal(scale, reach):
    """The probabilities of a rounded share at −reach … reach."""
    edges = [mpmath.ncdf((mpmath.mpf(k) - 0.5) / scale) for k in range(-reach, reach + 2)]
    return [high - low for low, high in itertools.pairwise(edges)]


def _convolved(one, times):
    total = one
    for _ in range(times - 1):
        size = len(total) + len(one) - 1
        total = [
            mpmath.fsum(
                total[i] * one[k - i]
                for i in range(max(0, k - len(one) + 1), min(k + 1, len(total)))
            )
            for k in range(size)
        ]
    return total


def _smooth(scale, shares_, reach):
    """The density of N(0, n·s²) + n uniform numbers at whole numbers: the n-th difference of the
    n-fold integral of the normal density, by the recurrence of repeated integrals of erfc."""
    deviation = scale * mpmath.sqrt(shares_)

    def integrals(x):
        z = -x / (deviation * mpmath.sqrt(2))
        before, last = 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-(z**2)), mpmath.erfc(z)
        for order in range(1, shares_):
            before, last = last, (before / 2 - z * last) / order
        return last * (deviation * mpmath.sqrt(2)) ** (shares_ - 1) / 2

    found = []
    for k in range(-reach, reach + 1):
        terms = [
            (-1) ** j * mpmath.binomial(shares_, j) * integrals(k + mpmath.mpf(shares_) / 2 - j)
            for j in range(shares_ + 1)
        ]
        found.append(mpmath.fsum(terms))
    return found


@pytest.mark.parametrize(
    ("scale", "honest"), [(1.0, 2), (1.0, 3), (2.0, 2), (2.0, 3), (1.5, 5), (3.0, 4)]
)
def test_the_sum_of_shares_is_a_rounded_gaussian_with_more_noise(scale, honest):
    """The step of the proof that is our own, with 90 digits: the two distributions differ by less
    than the bound, and by more than nothing."""
    with mpmath.workdps(90):
        one = math.ceil(22 * scale)
        sums = _convolved(_rounded_normal(scale, one), honest)
        smooth = _smooth(scale, honest, honest * one)
        assert abs(mpmath.fsum(smooth) - 1) < mpmath.mpf(10) ** -60
        distance = mpmath.fsum(abs(a - b) for a, b in zip(sums, smooth, strict=True)) / 2
        found = float(mpmath.log10(distance))
    assert found <= shares.log10_distance(scale, honest, 1)
    # What Poisson summation says about the largest term that is left out.
    assert abs(found + 2 * math.pi**2 * scale**2 * (1 - 1 / honest) / math.log(10)) < 1.5


@pytest.mark.parametrize("sensitivity", [3, 8])
@pytest.mark.parametrize(("scale", "honest"), [(2.0, 4), (3.0, 2), (5.0, 7)])
def test_a_sum_of_shares_hides_no_less_than_the_gaussian(scale, honest, sensitivity):
    """The exact distribution of sums of small shares against the Gaussian that the plan accounts
    for: δ at several ε is no larger, up to the distance of the proof."""
    reach = math.ceil(12 * scale)
    k = np.arange(-reach, reach + 1)
    one = stats.norm.cdf((k + 0.5) / scale) - stats.norm.cdf((k - 0.5) / scale)
    total = one
    for _ in range(honest - 1):
        total = np.convolve(total, one)
    mu = sensitivity / (scale * math.sqrt(honest))
    moved = np.concatenate([np.zeros(sensitivity), total])
    total = np.concatenate([total, np.zeros(sensitivity)])
    bound = 10 ** shares.log10_distance(scale, honest, 1)
    assert bound < 1e-3
    for epsilon in (0.0, 0.5, 1.0, 2.0, 3.0):
        delta = np.maximum(moved - math.exp(epsilon) * total, 0).sum()
        wanted = gaussian.delta(epsilon, mu)
        assert delta <= wanted + (1 + math.exp(epsilon)) * bound
        if wanted > 1e-6:
            assert delta > 0.7 * wanted, "the comparison would notice nothing"


def test_the_distance_of_the_proof_is_nothing():
    assert shares.log10_distance(shares.LEAST_SHARE, 30, 10**6) < -2000
    assert shares.log10_distance(shares.LEAST_SHARE, 1000, 10**9) < -1800
    assert shares.log10_distance(2.0, 4, 10) == pytest.approx(shares.log10_distance(2.0, 4, 1) + 1)


@pytest.mark.parametrize(("sites", "colluders"), [(3, 1), (10, 3), (30, 10), (4, 3), (2, 0)])
def test_the_shares_of_honest_sites_have_the_noise_of_the_plan(sites, colluders):
    """Their variances add up, and so do those of samples, within five standard errors."""
    scale = shares.scale(GRID, sites, colluders)
    assert scale**2 * (sites - colluders) == pytest.approx(GRID.noise**2, rel=1e-12)
    size, honest = 50_000, sites - colluders
    total = sum(rounded(words_of(f"{sites} {site}")(0), (size,), scale) for site in range(honest))
    deviation = float(total.double().std())
    assert abs(deviation / GRID.noise - 1) < 5 / math.sqrt(2 * size)


def test_a_third_of_the_sites_may_collude_unless_stated_otherwise():
    assert [shares.default_colluders(sites) for sites in (2, 3, 5, 6, 30)] == [0, 1, 1, 2, 10]


@pytest.mark.parametrize(
    ("grid", "sites", "colluders", "said"),
    [
        (GRID, 3, 3, "against 3 colluding sites is not possible with 3"),
        (GRID, 1, 0, "needs two sites or more"),
        (GRID, 3, -1, "is not possible"),
        (Grid(1.0, 4, 40.0), 10, 3, "would be 15.1 steps of the grid, and 32 are needed"),
        (Grid(1.0, 4, 32 * 100.0), 10_000, 1, "does not cover 10000 sites"),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(grid, sites, colluders, said):
    with pytest.raises(PublicError, match=said):
        shares.scale(grid, sites, colluders)
