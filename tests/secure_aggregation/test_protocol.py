"""Secure aggregation: what a curious or active server, or a site, can do with it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cohorts import GRID, SITES, attempt, checked, keys_of, makers, words_of
from scipy import stats

from pmtl.errors import PublicError
from pmtl.privacy.noise import rounded
from pmtl.secure_aggregation import shares
from pmtl.secure_aggregation.protocol import unmasked


def _steps(size, value=0):
    return {site: torch.full((size,), value, dtype=torch.int64) for site in SITES}


def test_the_sum_is_that_of_uploads_and_shares_to_the_last_bit(authority):
    totals = {site: torch.arange(500) * (k - 1) for k, site in enumerate(SITES)}
    sent = attempt(makers(authority, seeded=True), totals)
    scale = shares.scale(GRID, 3, 1)
    noise = sum(rounded(words_of(site)(0), (500,), scale) for site in SITES)
    assert torch.equal(unmasked(sent, 500), sum(totals.values()) + noise)


def test_what_the_server_sees_of_one_site_is_uniform(authority):
    """Every bit and byte of masked uploads, over many attempts, with the same upload and the same
    seeded share: only the masks differ."""
    parts = makers(authority, seeded=True)
    seen = np.array([attempt(parts, _steps(64, 3), f"t{k}")["a"] for k in range(150)])
    counts = np.bincount(seen.view(np.uint8).ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4
    bits = np.unpackbits(seen.view(np.uint8)).mean()
    assert abs(bits - 0.5) < 5 * 0.5 / math.sqrt(seen.size * 64)
    assert len(np.unique(seen)) == seen.size
    # Differences of attempts: a mask that is used twice would cancel.
    pair = (seen[:-1] - seen[1:]).view(np.uint8).ravel()
    assert stats.chisquare(np.bincount(pair, minlength=256)).pvalue > 1e-4


def test_the_server_cannot_tell_two_uploads_of_a_site_apart(authority):
    """A site sends zero or the longest upload there is; over 200 rounds, no statistic of what it
    sends tells which: the sum, its sign, single bits, or the parity."""
    parts, longest = makers(authority), 2**GRID.bits
    scores: dict[bool, list[list[float]]] = {False: [], True: []}
    for k in range(200):
        is_long = k % 2 == 1
        totals = {**_steps(16), "a": torch.full((16,), longest if is_long else 0)}
        numbers = attempt(parts, totals, f"t{k}")["a"].view(np.int64)
        signed = numbers.astype(np.float64)
        scores[is_long].append(
            [signed.sum(), np.sign(signed).sum(), *((numbers >> bit & 1).sum() for bit in (0, 24))]
        )
    for zero, long in zip(*(np.array(scores[kind]).T for kind in (False, True)), strict=True):
        assert stats.ks_2samp(zero, long).pvalue > 1e-4


def test_a_subset_of_the_sum_is_hidden(authority):
    sent = attempt(makers(authority), _steps(1000))
    whole = unmasked(sent, 1000).double()
    reach = 10 * shares.scale(GRID, 3, 1) * math.sqrt(3)
    assert whole.abs().max() < reach
    for count in (1, 2):
        for some in itertools.combinations(SITES, count):
            part = unmasked({site: sent[site] for site in some}, 1000).double()
            assert (part.abs() < reach).double().mean() < 0.01, some


def test_a_server_that_mixes_cohorts_gets_noise(authority):
    """Each of three sites is shown another cohort; no sum of what they send is small."""
    parts = makers(authority)
    keys = keys_of(parts)
    cohorts = {"a": "ab", "b": "abc", "c": "bc"}
    sent = {
        site: parts[site].masked(
            checked(parts[site], {other: keys[other] for other in cohorts[site]}, 0),
            _steps(500)[site],
        )
        for site in SITES
    }
    for count in (1, 2, 3):
        for some in itertools.combinations(SITES, count):
            part = unmasked({site: sent[site] for site in some}, 500).double()
            assert float(part.abs().median()) > 2**60, some


def test_colluding_sites_and_server_find_the_noise_that_is_stated(authority):
    """c sites that give their keys and shares away leave the noise of the others."""
    sites, size, colluders = tuple("abcdef"), 20_000, 2
    assert shares.default_colluders(len(sites)) == colluders
    parts = makers(authority, sites, seeded=True)
    totals = dict.fromkeys(sites, torch.zeros(size, dtype=torch.int64))
    sent = attempt(parts, totals, colluders=colluders)
    scale = shares.scale(GRID, len(sites), colluders)
    left = unmasked(sent, size)
    for site in sites[:colluders]:
        left -= rounded(words_of(site)(0), (size,), scale)
    deviation = float(left.double().std())
    assert abs(deviation / GRID.noise - 1) < 5 / math.sqrt(2 * size)
    # Outsiders: more, by √(N/(N − c)).
    whole = float(unmasked(sent, size).double().std())
    assert abs(whole / GRID.noise / math.sqrt(6 / 4) - 1) < 5 / math.sqrt(2 * size)


def test_no_key_is_used_for_another_round_attempt_or_twice(authority):
    parts = makers(authority)
    keys, part = keys_of(parts), parts["a"]
    for other in ({"round": 1}, {"attempt": "y"}, {"run": "s"}):
        with pytest.raises(PublicError, match="no key for this attempt"):
            checked(part, keys, **other)
    with pytest.raises(PublicError, match="no key is made twice"):
        part.key("r", 0, "x")
    cohort = checked(part, keys)
    part.masked(cohort, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(PublicError, match="no key for this attempt"):
        part.masked(cohort, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(PublicError, match="no key for this attempt"):
        checked(part, keys)


def test_a_cohort_is_for_its_own_attempt(authority):
    """A server that begins a new attempt cannot get a mask of the old one with the new key."""
    parts = makers(authority)
    old = checked(parts["a"], keys_of(parts))
    keys_of(parts, "y")
    with pytest.raises(PublicError, match="no key for this attempt"):
        parts["a"].masked(old, torch.zeros(3, dtype=torch.int64))


def test_a_cohort_that_is_too_small_is_refused_before_anything_is_made(authority):
    parts = makers(authority)
    keys = keys_of(parts)
    with pytest.raises(PublicError, match="against 2 colluding sites is not possible with 2"):
        checked(parts["a"], {site: keys[site] for site in "ab"}, 2)
    parts["a"].masked(checked(parts["a"], keys, 2), torch.zeros(3, dtype=torch.int64))


def test_only_whole_steps_are_masked(authority):
    parts = makers(authority)
    cohort = checked(parts["a"], keys_of(parts))
    with pytest.raises(PublicError, match="whole steps"):
        parts["a"].masked(cohort, torch.zeros(3, dtype=torch.float64))


def test_sums_are_modulo_two_to_the_64(authority):
    """Whatever the masks are, a negative sum comes out negative."""
    sent = attempt(makers(authority), _steps(200, -(2**40)))
    assert float((unmasked(sent, 200).double() / (-3 * 2**40) - 1).abs().max()) < 1e-3


@pytest.mark.parametrize(
    "nonsense", [np.zeros(2, np.uint64), np.zeros(3), np.zeros(3, np.int64), np.zeros((3, 1))]
)
def test_an_answer_of_another_form_is_nonsense(nonsense):
    fine = np.zeros(3, np.uint64)
    assert unmasked({"a": fine, "b": fine}, 3) is not None
    assert unmasked({"a": fine, "b": nonsense}, 3) is None


def test_a_weak_key_is_refused(authority):
    parts = makers(authority)
    keys = keys_of(parts)
    cohort = checked(parts["a"], keys)
    weak = replace(cohort, keys={**keys, "b": replace(keys["b"], key=bytes(32))})
    with pytest.raises(PublicError, match="weak"):
        parts["a"].masked(weak, torch.zeros(3, dtype=torch.int64))
