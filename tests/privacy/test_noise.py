"""Noise is standard normal, fresh, and in production not to be had again."""

from __future__ import annotations

import os

import mpmath
import numpy as np
import pytest
import torch
from drawn_noise import seeded_noise, system_noise
from scipy import stats

from pmtl.privacy import noise
from pmtl.privacy.noise import (
    rounded,
    seeded_source,
    system_source,
)


@pytest.mark.parametrize("draw", [seeded_noise(1), system_noise], ids=["seeded", "system"])
def test_it_is_standard_normal(draw):
    """400,000 numbers: the variance within 1%, and the whole distribution by Kolmogorov–Smirnov
    (which would be off by chance once in a million runs)."""
    values = draw(0, (4, 100_000)).numpy().reshape(-1)
    assert values.dtype == np.float64
    assert abs(values.var() - 1) < 0.012
    assert stats.kstest(values, "norm").pvalue > 1e-6
    assert abs(stats.spearmanr(values[::2], values[1::2]).statistic) < 0.012


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 5), (2, 0)])
def test_it_has_the_shape_asked_for(shape):
    assert system_noise(0, shape).shape == shape
    assert seeded_noise(0)(0, shape).shape == shape


def test_an_experiment_can_draw_it_again_and_production_cannot():
    assert torch.equal(seeded_noise(4)(2, (1, 50)), seeded_noise(4)(2, (1, 50)))
    assert not torch.equal(seeded_noise(4)(2, (1, 50)), seeded_noise(4)(3, (1, 50)))
    assert not torch.isin(system_noise(2, (1, 50)), system_noise(2, (1, 50))).any()


def test_production_noise_is_the_operating_systems_and_nothing_elses(monkeypatch):
    """Seeding everything that can be seeded changes nothing; a system that gives constant bytes
    gives constant noise."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    first = system_noise(0, (1, 20))
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert not torch.equal(first, system_noise(0, (1, 20)))
    monkeypatch.setattr(noise.os, "urandom", lambda size: b"\x80" * size)
    constant = system_noise(0, (1, 20))
    assert torch.equal(constant, constant[:, :1].expand(1, 20))


def test_a_forked_process_draws_other_noise():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, system_noise(0, (1, 4)).numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(reader, 32))
    os.close(reader)
    os.close(writer)
    assert not np.isin(theirs, system_noise(0, (1, 4)).numpy()).any()


def test_large_draws_cross_the_chunks_without_a_seam(monkeypatch):
    monkeypatch.setattr(noise, "CHUNK", 64)
    values = system_noise(0, (1, 1001))
    assert torch.isfinite(values).all()
    assert len(values.unique()) == 1001


def words_of(*values):
    """A source of words that gives out these, one after the other."""
    left = list(values)

    def give(count):
        given = [left.pop(0) for _ in range(count)]
        return np.array(given, dtype=np.uint64)

    give.left = left
    return give


def nearest(expansion, bits, scale):
    """round(scale·|g|) where g's distribution function begins with `expansion`, in 300 digits."""
    with mpmath.workdps(300):
        place = mpmath.ldexp(mpmath.mpf(expansion) + 0.5, -bits)
        g = -mpmath.sqrt(2) * mpmath.erfinv(2 * place - 1)
        return int(mpmath.floor(g * scale + 0.5))


class TestRounded:
    @pytest.mark.parametrize("scale", [0.3, 3.0, 2.0**20, 2.0**26])
    @pytest.mark.parametrize("source", [seeded_source(5), system_source], ids=["seeded", "system"])
    def test_it_has_the_probabilities_of_a_rounded_gaussian(self, scale, source):
        """A chi-squared test over cells, which would be off by chance once in a million runs."""
        values = rounded(source(0), (400_000,), scale).numpy()
        edges = np.round(scale * np.linspace(-2.5, 2.5, 12)) + 0.5
        edges = np.unique(edges)
        counts = np.histogram(values, np.concatenate([[-np.inf], edges, [np.inf]]))[0]
        bounds = stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]) / scale)
        assert stats.chisquare(counts, 400_000 * np.diff(bounds)).pvalue > 1e-6

    @pytest.mark.parametrize("scale", [0.3, 7.0, 1e6, 2.0**26])
    def test_each_number_is_the_one_that_exact_arithmetic_gives(self, scale):
        drawn = seeded_source(1)(0)(300)
        values = rounded(words_of(*drawn.tolist(), *[0] * 50), (300,), scale)
        for word, value in zip(drawn.tolist(), values.tolist(), strict=True):
            size = nearest(word % 2**63, 64, scale)
            assert value == (-size if word >> 63 else size)

    def test_where_float64_cannot_tell_more_bits_decide(self):
        """The word whose interval holds the border between 0 and 1 step: the next word settles
        it, and both answers occur."""
        scale = 1000.0
        with mpmath.workdps(100):
            border = mpmath.ncdf(mpmath.mpf(-0.5) / scale)
            place = int(mpmath.floor(mpmath.ldexp(border, 64)))
            below = int(mpmath.floor(mpmath.ldexp(border, 128))) % 2**64
        assert rounded(words_of(place, 0), (1,), scale).tolist() == [1]
        assert rounded(words_of(place, 2**64 - 1), (1,), scale).tolist() == [0]
        # One unit in the 128th bit from the border on either side, and on it a third word.
        assert rounded(words_of(place, below - 1), (1,), scale).tolist() == [1]
        assert rounded(words_of(place, below + 1), (1,), scale).tolist() == [0]
        more = words_of(place, below, 0)
        assert rounded(more, (1,), scale).tolist() == [1]
        assert more.left == []

    def test_the_far_tail_is_exact_too(self):
        for place in (1, 2, 3, 1000, 2**30, 2**40):
            value = int(rounded(words_of(place, 12345, 678), (1,), 2.0**26))
            assert value == nearest((place << 64) + 12345, 128, 2.0**26)
        # A place of 0 says only that g is very far out; further words say how far.
        far = int(rounded(words_of(0, 0, 5, 9), (1,), 10.0))
        assert far == nearest((5 << 64) + 9, 256, 10.0)
        assert far >= 160

    def test_the_sign_is_the_first_bit(self):
        word = 2**40
        plus = int(rounded(words_of(word, 1), (1,), 5.0))
        assert int(rounded(words_of(word + 2**63, 1), (1,), 5.0)) == -plus < 0

    def test_the_float64_inverse_is_as_exact_as_is_taken_for_granted(self):
        """Its error, the width of a word's interval included, is within a fifth of the margin up
        to five deviations: at random places, in the tail and around the seams of its formulas."""
        rng = np.random.default_rng(0)
        places = rng.integers(0, 2**63, 2000, dtype=np.uint64).tolist()
        far = stats.norm.cdf(-rng.uniform(3, 5, 500)) * 2.0**64
        seams = np.exp(-2.0) * 2.0**64 + rng.integers(-(2**20), 2**20, 200)
        places += [int(place) for place in np.concatenate([far, seams])]
        words = np.array(places, dtype=np.uint64)
        lengths = noise.real(lambda count: words, words.shape)
        with mpmath.workdps(40):
            for place, length in zip(places, lengths.tolist(), strict=True):
                # Newton's step from the float64 answer gives its error to first order.
                for end in (place, place + 1):
                    gap = mpmath.ncdf(-mpmath.mpf(length)) - mpmath.ldexp(end, -64)
                    assert abs(gap / mpmath.npdf(length)) < noise.ERROR / 5 + 2e-14

    def test_it_can_be_drawn_again_in_an_experiment_only(self):
        one, two = (rounded(seeded_source(4)(2), (50,), 1e6) for _ in range(2))
        assert torch.equal(one, two)
        assert not torch.equal(one, rounded(seeded_source(4)(3), (50,), 1e6))
        assert not torch.isin(
            rounded(system_source(2), (50,), 1e12), rounded(system_source(2), (50,), 1e12)
        ).any()
