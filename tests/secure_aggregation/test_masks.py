"""Masks: uniform for the server, bound to everything, and zero in the sum."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cohorts import SITES
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pmtl.errors import PublicError
from pmtl.secure_aggregation.identity import Attempt, SignedKey
from pmtl.secure_aggregation.masks import cohort_digest, mask

FIRST = Attempt("f", "r", 0, "x", "g")


@pytest.fixture
def secret():
    return {site: X25519PrivateKey.generate() for site in SITES}


def _keys(secret, sites=SITES):
    public = {site: secret[site].public_key().public_bytes_raw() for site in sites}
    return {site: SignedKey(site, key, b"", b"") for site, key in public.items()}


def test_masks_of_all_sites_cancel_and_of_fewer_do_not(secret):
    keys = _keys(secret)
    made = {site: mask(site, secret[site], keys, FIRST, 500) for site in SITES}
    assert not sum(made.values()).any()
    for pair in itertools.combinations(SITES, 2):
        part = made[pair[0]] + made[pair[1]]
        assert abs(np.unpackbits(part.view(np.uint8)).mean() - 0.5) < 0.02


def test_a_mask_is_what_the_page_says(secret):
    """HKDF-SHA256 of the X25519 secret, bound to attempt, pair and cohort; ChaCha20 from there."""
    keys = _keys(secret, ("a", "b"))
    shared = secret["a"].exchange(secret["b"].public_key())
    context = FIRST.to_bytes("a", "b", cohort_digest(keys))
    seed = HKDF(hashes.SHA256(), 32, salt=None, info=context).derive(shared)
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(80))
    numbers = np.frombuffer(stream, dtype="<u8")
    assert np.array_equal(mask("a", secret["a"], keys, FIRST, 10), numbers)
    assert np.array_equal(mask("b", secret["b"], keys, FIRST, 10), -numbers)


def test_masks_differ_in_everything_that_they_are_bound_to(secret):
    keys = _keys(secret)

    def masks(attempt=FIRST, keys=keys, of="a"):
        return mask(of, secret[of], keys, attempt, 50)

    renewed = {**secret, "c": X25519PrivateKey.generate()}
    changes = {"federation": "h", "run": "s", "round": 1, "attempt": "y", "agreement": "o"}
    made = [
        masks(),
        *(masks(replace(FIRST, **{name: value})) for name, value in changes.items()),
        masks(keys=_keys(secret, ("a", "b"))),
        masks(keys=_keys(renewed)),  # The pair a, b is bound to c's key, too.
        masks(of="b"),
    ]
    for one, other in itertools.combinations(made, 2):
        assert not (one == other).any()
    assert np.array_equal(made[0], masks())


def test_the_pair_mask_of_two_sites_depends_on_the_whole_cohort(secret):
    """A server that shows different cohorts to two sites gets masks that do not cancel."""
    wide, narrow = _keys(secret), _keys(secret, ("a", "b"))
    a = mask("a", secret["a"], narrow, FIRST, 50)
    b_and_c = mask("b", secret["b"], wide, FIRST, 50)
    c = mask("c", secret["c"], wide, FIRST, 50)
    assert ((a + b_and_c + c) != 0).all()


def test_a_cohort_is_its_sites_and_their_keys(secret):
    keys = _keys(secret)
    other = replace(keys["c"], key=X25519PrivateKey.generate().public_key().public_bytes_raw())
    digests = {
        cohort_digest(keys),
        cohort_digest({**keys, "c": other}),
        cohort_digest({"a": keys["a"], "b": keys["b"], "d": keys["c"]}),
        cohort_digest({"a": keys["a"], "b": keys["b"]}),
    }
    assert len(digests) == 4
    assert cohort_digest(dict(reversed(keys.items()))) == cohort_digest(keys)


def test_a_weak_key_is_refused(secret):
    keys = _keys(secret)
    keys["b"] = replace(keys["b"], key=bytes(32))
    with pytest.raises(PublicError, match="weak"):
        mask("a", secret["a"], keys, FIRST, 3)
