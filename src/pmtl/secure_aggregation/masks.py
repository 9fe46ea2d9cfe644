"""Masks in pairs: the masks of two sites cancel in the sum over all sites.

Sites i < j agree on a secret (X25519). HKDF binds it to the attempt and to the whole cohort, and
ChaCha20 expands it into numbers modulo 2⁶⁴. Site i adds them and site j subtracts them, so each
masked upload is uniformly distributed for anyone without one of the keys, and the masks of all
sites sum to zero (Bonawitz et al. 2017, without its recovery from dropouts: an attempt is all or
nothing).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from pmtl.errors import PublicError
from pmtl.secure_aggregation.identity import Attempt, SignedKey

Masks = NDArray[np.uint64]


def cohort_digest(keys: Mapping[str, SignedKey]) -> str:
    """A digest of all sites of an attempt and their keys."""
    state = hashlib.sha256()
    for site in sorted(keys):
        name = site.encode()
        state.update(len(name).to_bytes(8, "big") + name + keys[site].key)
    return state.hexdigest()


def mask(
    site: str, secret: X25519PrivateKey, keys: Mapping[str, SignedKey], attempt: Attempt, size: int
) -> Masks:
    """The sum of a site's masks with all others, modulo 2⁶⁴.

    Args:
        site: the site's name.
        secret: its key for this attempt, which must never be used again.
        keys: the checked keys of all sites of the attempt, its own included.
        attempt: what the keys are for.
        size: how many numbers are masked.
    """
    total = np.zeros(size, dtype=np.uint64)
    cohort = cohort_digest(keys)
    for other in sorted(keys):
        if other == site:
            continue
        first, second = sorted((site, other))
        try:
            shared = secret.exchange(X25519PublicKey.from_public_bytes(keys[other].key))
        except ValueError as error:  # A point of small order.
            raise PublicError(f"The key of site {other!r} is refused: it is weak.") from error
        context = attempt.to_bytes(first, second, cohort)
        seed = HKDF(hashes.SHA256(), 32, salt=None, info=context).derive(shared)
        numbers = _expanded(seed, size)
        total = total + numbers if site == first else total - numbers
    return total


def _expanded(seed: bytes, size: int) -> Masks:
    """`size` numbers from a seed that is used once, so that the nonce may be zero."""
    cipher = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * size)), dtype="<u8").astype(np.uint64)
