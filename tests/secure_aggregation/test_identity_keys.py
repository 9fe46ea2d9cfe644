"""Whose keys a site accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from certificates import Authority
from cohorts import checked, keys_of, makers

from pmtl.errors import PmtlError, PublicError
from pmtl.secure_aggregation.identity import Attempt, Identity, SignedKey
from pmtl.secure_aggregation.protocol import SiteMasking


def test_honest_keys_are_accepted(authority):
    parts = makers(authority)
    keys = keys_of(parts)
    for part in parts.values():
        assert checked(part, keys).keys == keys


def _other(authority, attempt="x", **certificate):
    """A key of site b with another certificate or for another attempt."""
    return SiteMasking(authority.identity("b", **certificate)).key("r", 0, attempt)


@pytest.mark.parametrize(
    ("said", "change"),
    {
        "is not of this federation": lambda a, k: {"b": _other(Authority())},
        "is not valid now": lambda a, k: {"b": _other(a, days=(-9, -1))},
        "in another name": lambda a, k: {"b": _other(a, name="c")},
        "is not that of a site": lambda a, k: {"b": _other(a, role=None)},
        "not that of a site": lambda a, k: {"b": _other(a, role="lead")},
        "not signed by this site for this attempt": lambda a, k: {"b": _other(a, "y")},
        "are the same": lambda a, k: {"b": replace(k["b"], key=k["c"].key)},
        "was not signed": lambda a, k: {"b": replace(k["b"], key=bytes(31) + b"\x09")},
        "own key is not among": lambda a, k: {
            "a": SiteMasking(a.identity("a")).key("r", 0, "x"),
        },
        "is not a site of this run": lambda a, k: {"d": keys_of(makers(a, "d"))["d"]},
        "of one site": lambda a, k: {"again": k["b"]},
    }.items(),
)
def test_swapped_foreign_and_invented_keys_are_refused(authority, said, change):
    parts = makers(authority)
    keys = keys_of(parts)
    with pytest.raises(PublicError, match=said):
        checked(parts["a"], {**keys, **change(authority, keys)})


@pytest.mark.parametrize("what", ["federation", "run", "round", "attempt", "agreement"])
def test_a_signature_is_for_one_attempt_of_one_round_of_one_run(authority, what):
    first = Attempt("f", "r", 0, "x", "g")
    other = replace(first, **{what: 1 if what == "round" else "other"})
    mine, its = authority.identity("a"), authority.identity("b")
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    signed = its.sign(first, X25519PrivateKey.generate())
    mine.check(first, signed)
    with pytest.raises(PublicError, match="not signed by this site for this attempt"):
        mine.check(other, signed)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"site": "b"},
        None,
        "text",
        {"site": "b", "key": "zz", "signature": "", "certificate": ""},
        {"site": "b", "key": "00", "signature": "", "certificate": ""},
        {"site": "b", "key": "00" * 32, "signature": "", "certificate": 7},
    ],
)
def test_what_is_no_key_is_refused(broken):
    with pytest.raises(PublicError, match="A key is refused"):
        SignedKey.from_dict(broken)


def test_a_key_reads_back(authority):
    key = keys_of(makers(authority))["a"]
    assert SignedKey.from_dict(key.to_dict()) == key


def test_a_kit_without_certificates_is_a_sentence(tmp_path):
    with pytest.raises(PmtlError, match=r"client\.crt cannot be read"):
        Identity.read("a", tmp_path)
    for name in ("client.crt", "client.key", "rootCA.pem"):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(PmtlError, match="The certificates of site 'a' cannot be read"):
        Identity.read("a", tmp_path)
