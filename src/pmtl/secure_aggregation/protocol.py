"""The two parts of secure aggregation: what a site does in an attempt, and what the server does.

1. The server asks for keys. Every site makes one for this attempt and signs it (`identity.py`).
2. The server charges the round, and sends all keys to all sites. A site checks them, trains, adds
   its share of the noise (`shares.py`) and its masks (`masks.py`), and sends that.
3. The server adds up. The masks cancel; what is left is the noisy sum.

An attempt is all or nothing: if an answer is missing or wrong, nothing of it is used, and a new
attempt begins with the sites that are there, new keys and new noise. Every attempt is charged,
which covers what an abandoned attempt reveals: the masked uploads of the others are uniformly
random without the keys of the missing sites; if these collude with the server (up to c of them),
the rest of the sum still has the noise of all honest sites, as in any other release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from torch import Tensor

from pmtl.errors import PublicError
from pmtl.privacy.grid import Grid
from pmtl.privacy.noise import Source, rounded, system_source
from pmtl.secure_aggregation import shares
from pmtl.secure_aggregation.identity import Attempt, Identity, SignedKey
from pmtl.secure_aggregation.masks import mask


@dataclass(frozen=True)
class Cohort:
    """The sites of an attempt, whose keys were checked."""

    keys: Mapping[str, SignedKey]
    attempt: Attempt
    share: float  #: the standard deviation of one site's share of the noise, in steps


class SiteMasking:
    """A site's part. It keeps the key of one attempt, and uses it once."""

    def __init__(self, identity: Identity, source: Source = system_source) -> None:
        """`identity` is the site's certificate, and `source` where the noise gets its random words
        from, for tests."""
        self._identity, self._source = identity, source
        self._open: tuple[Attempt, X25519PrivateKey, SignedKey] | None = None
        self._used: set[str] = set()

    def key(self, run: str, round: int, attempt: str, agreement: str = "") -> SignedKey:
        """A fresh key for an attempt of a run with this agreement (its digest). The key of an
        earlier attempt is forgotten."""
        if attempt in self._used:
            raise PublicError("This attempt was made before: no key is made twice.")
        self._used.add(attempt)
        known = Attempt(self._identity.federation, run, round, attempt, agreement)
        secret = X25519PrivateKey.generate()
        signed = self._identity.sign(known, secret)
        self._open = known, secret, signed
        return signed

    def check(
        self,
        run: str,
        round: int,
        attempt: str,
        keys: Iterable[Any],
        sites: frozenset[str],
        grid: Grid,
        colluders: int,
    ) -> Cohort:
        """The cohort of an attempt for which this site made a key, from the `keys` that the server
        sent. Refused are keys that are not of `sites` of this run, made for this attempt, and
        cohorts that are too small where c `colluders` may collude with the server."""
        if self._open is None:
            raise PublicError("This site has no key for this attempt.")
        known, _, mine = self._open
        if (run, round, attempt) != (known.run, known.round, known.attempt):
            raise PublicError("This site has no key for this attempt.")
        read = [SignedKey.from_dict(values) for values in keys]
        found = {signed.site: signed for signed in read}
        if len(found) != len(read) or len({signed.key for signed in read}) != len(read):
            raise PublicError("Two keys of the attempt are of one site, or are the same.")
        if found.get(mine.site) != mine:
            raise PublicError("This site's own key is not among those of the attempt.")
        if strangers := sorted(set(found) - sites):
            raise PublicError(f"{strangers[0]!r} is not a site of this run.")
        for signed in read:
            self._identity.check(known, signed)
        return Cohort(found, known, shares.scale(grid, len(found), colluders))

    def masked(self, cohort: Cohort, total: Tensor) -> NDArray[np.uint64]:
        """A site's `total`, the sum of its clients' uploads in whole steps of the grid, with its
        share of the noise and its masks; the key is forgotten. `check` makes the cohort."""
        if self._open is None or self._open[0] != cohort.attempt:
            raise PublicError("This site has no key for this attempt.")
        if total.dtype != torch.int64:
            raise PublicError("Only whole steps can be masked.")
        attempt, secret, mine = self._open
        self._open = None
        noise = rounded(self._source(attempt.round), (len(total),), cohort.share)
        own = (total + noise).numpy().view(np.uint64)
        return own + mask(mine.site, secret, cohort.keys, attempt, len(total))


def unmasked(answers: Mapping[str, NDArray[Any]], size: int) -> Tensor | None:
    """The noisy sum of all sites, modulo 2⁶⁴, as signed steps; None if an answer does not have
    `size` such numbers."""
    total = np.zeros(size, dtype=np.uint64)
    for numbers in answers.values():
        if numbers.shape != (size,) or numbers.dtype != np.uint64:
            return None
        total = total + numbers
    return torch.from_numpy(total.view(np.int64).copy())
