"""Secure aggregation: what a curious server, or a site, can do with it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from certificates import Authority
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats

from pmtl.errors import PmtlError, PublicError
from pmtl.privacy.accounting import gaussian
from pmtl.privacy.grid import Grid
from pmtl.privacy.noise import rounded, seeded_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.secure_aggregation import shares
from pmtl.secure_aggregation.identity import Attempt, SignedKey
from pmtl.secure_aggregation.masks import mask
from pmtl.secure_aggregation.protocol import SiteMasking, unmasked

SITES = ("a", "b", "c")
GRID = Grid.of(PrivacyPlan(6, 6, "full", 0.5, 0.2, 3, 0.01))


@pytest.fixture(scope="module")
def authority():
    return Authority()


def words_of(site):
    """The words of a site's shares, by round."""
    return lambda round: seeded_source(5, f"{site} {round}")(round)


def test_what_the_server_sees_of_one_site_is_uniform(authority):
    """Every bit and byte of masked uploads, over many attempts, with the same upload."""
    makers = {site: SiteMasking(authority.identity(site), words_of(site)) for site in SITES}
    total = torch.full((64,), 3, dtype=torch.int64)
    seen = []
    for attempt in range(150):
        keys = {site: maker.key("r", 0, f"t{attempt}") for site, maker in makers.items()}
        sent = {site: maker.masked(keys, total, GRID, 1) for site, maker in makers.items()}
        seen.append(sent["a"])
        # The noise is seeded, and the same each time: only the masks differ.
        assert torch.equal(unmasked(sent, 64), unmasked(sent, 64))
    numbers = np.array(seen)
    counts = np.bincount(numbers.view(np.uint8).ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4
    bits = np.unpackbits(numbers.view(np.uint8)).mean()
    assert abs(bits - 0.5) < 5 * 0.5 / math.sqrt(numbers.size * 64)
    assert len(np.unique(numbers)) == numbers.size
    # Two sites of three, without the third: still uniform.
    pair = (np.array(seen[:-1]) - np.array(seen[1:])).view(np.uint8).ravel()
    assert stats.chisquare(np.bincount(pair, minlength=256)).pvalue > 1e-4


def test_a_subset_of_the_sum_is_hidden(authority):
    makers = {site: SiteMasking(authority.identity(site)) for site in SITES}
    total = torch.zeros(1000, dtype=torch.int64)
    keys = {site: maker.key("r", 0, "x") for site, maker in makers.items()}
    sent = {site: maker.masked(keys, total, GRID, 1) for site, maker in makers.items()}
    whole = unmasked(sent, 1000).double()
    reach = 10 * shares.scale(GRID, 3, 1) * math.sqrt(3)
    assert whole.abs().max() < reach
    for pair in itertools.combinations(SITES, 2):
        part = unmasked({site: sent[site] for site in pair}, 1000).double()
        assert (part.abs() < reach).double().mean() < 0.01, pair


def test_colluding_sites_and_server_find_the_noise_that_is_stated(authority):
    """c sites that give their keys and shares away leave the noise of the others."""
    sites = tuple("abcdef")
    colluders = shares.default_colluders(len(sites))
    assert colluders == 2
    makers = {site: SiteMasking(authority.identity(site), words_of(site)) for site in sites}
    size = 20_000
    total = torch.zeros(size, dtype=torch.int64)
    keys = {site: maker.key("r", 0, "x") for site, maker in makers.items()}
    sent = {site: maker.masked(keys, total, GRID, colluders) for site, maker in makers.items()}
    scale = shares.scale(GRID, len(sites), colluders)
    left = unmasked(sent, size)
    for site in sites[:colluders]:
        left -= rounded(words_of(site)(0), (size,), scale)
    deviation = float(left.double().std())
    assert abs(deviation / GRID.noise - 1) < 5 / math.sqrt(2 * size)
    # Outsiders: more, by √(N/(N − c)).
    whole = float(unmasked(sent, size).double().std())
    assert abs(whole / GRID.noise / math.sqrt(6 / 4) - 1) < 5 / math.sqrt(2 * size)


def test_what_shares_are_worth_by_an_independent_computation():
    """The exact distribution of a sum of few, small rounded shares against the Gaussian that the
    plan accounts for: δ at several ε is no larger, up to the distance of the proof."""
    scale, honest, sensitivity = 2.0, 4, 6
    k = np.arange(-200, 201)
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
        assert delta <= gaussian.delta(epsilon, mu) + (1 + math.exp(epsilon)) * bound
        assert delta > 0.8 * gaussian.delta(epsilon, mu), "the comparison would notice nothing"


def test_the_distance_of_the_proof_is_nothing():
    assert shares.log10_distance(shares.LEAST, 30, 10**6) < -2000
    with pytest.raises(PmtlError, match="steps of the grid"):
        shares.scale(Grid(1.0, 4, 40.0), 10, 3)


def _keys(authority, attempt="x", sites=SITES, makers=None):
    makers = makers or {site: SiteMasking(authority.identity(site)) for site in sites}
    return makers, {site: maker.key("r", 0, attempt) for site, maker in makers.items()}


def _check(maker, keys, run="r", round=0, attempt="x", sites=SITES):
    given = [key.to_dict() for key in keys.values()]
    return maker.check(run, round, attempt, given, frozenset(sites))


def test_honest_keys_are_accepted(authority):
    makers, keys = _keys(authority)
    for maker in makers.values():
        assert _check(maker, keys) == keys


def test_swapped_and_foreign_keys_are_refused(authority):
    makers, keys = _keys(authority)
    maker = makers["a"]
    stranger = Authority()
    _, foreign = _keys(stranger)
    _, expired = _keys(authority, makers={"b": SiteMasking(authority.identity("b", days=(-9, -1)))})
    _, in_other_name = _keys(
        authority, makers={"b": SiteMasking(authority.identity("b", name="c"))}
    )
    _, of_other_attempt = _keys(authority, attempt="y")
    cases = {
        "is not of this federation": {**keys, "b": foreign["b"]},
        "is not valid now": {**keys, "b": expired["b"]},
        "in another name": {**keys, "b": in_other_name["b"]},
        "not signed by this site for this attempt": {**keys, "b": of_other_attempt["b"]},
        "own key is not among": {**keys, "a": of_other_attempt["a"]},
        "are the same": {**keys, "b": replace(keys["b"], key=keys["c"].key)},
        "was not signed": {**keys, "b": replace(keys["b"], key=bytes(31) + b"\x09")},
        "is not a site of this run": {**keys, "d": _keys(authority, sites="d")[1]["d"]},
    }
    for said, given in cases.items():
        with pytest.raises(PublicError, match=said):
            _check(maker, given)
    for broken in (
        {},
        {"site": "b"},
        {"site": "b", "key": "zz", "signature": "", "certificate": ""},
    ):
        with pytest.raises(PublicError, match="refused"):
            SignedKey.from_dict(broken)


def test_no_key_is_used_for_another_round_attempt_or_twice(authority):
    makers, keys = _keys(authority)
    maker = makers["a"]
    for other in ({"round": 1}, {"attempt": "y"}, {"run": "s"}):
        with pytest.raises(PublicError, match="no key for this attempt"):
            _check(maker, keys, **other)
    with pytest.raises(PublicError, match="no key is made twice"):
        maker.key("r", 0, "x")
    maker.masked(keys, torch.zeros(3, dtype=torch.int64), GRID, 1)
    with pytest.raises(PublicError, match="no key for this attempt"):
        maker.masked(keys, torch.zeros(3, dtype=torch.int64), GRID, 1)
    with pytest.raises(PublicError, match="no key for this attempt"):
        _check(maker, keys)


def test_masks_differ_in_everything_that_they_are_bound_to(authority):
    secrets = {site: X25519PrivateKey.generate() for site in SITES}
    identities = {site: authority.identity(site) for site in SITES}

    def masks(attempt, sites=SITES):
        keys = {site: identities[site].sign(attempt, secrets[site]) for site in sites}
        return mask("a", secrets["a"], keys, attempt, 50)

    first = Attempt("f", "r", 0, "x")
    made = [
        masks(first),
        masks(Attempt("g", "r", 0, "x")),
        masks(Attempt("f", "s", 0, "x")),
        masks(Attempt("f", "r", 1, "x")),
        masks(Attempt("f", "r", 0, "y")),
        masks(first, sites=("a", "b")),
    ]
    for one, other in itertools.combinations(made, 2):
        assert not (one == other).any()
    assert np.array_equal(made[0], masks(first))


def test_a_weak_key_is_refused(authority):
    makers, keys = _keys(authority)
    weak = {**keys, "b": replace(keys["b"], key=bytes(32))}
    with pytest.raises(PublicError, match="weak"):
        makers["a"].masked(weak, torch.zeros(3, dtype=torch.int64), GRID, 1)
