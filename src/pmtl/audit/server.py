"""The server game: what a server that colludes with a site finds out with secure aggregation.

Three sites take part, and one of them gives the server its key and its share of the noise. One
client of an honest site uploads +γu or −γu for a fixed direction u; all others upload zero. The
server has every masked upload. It may drop a site that has sent, or look at one site alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from torch import Tensor

from pmtl.audit.estimators import Bits, Floats
from pmtl.audit.gate import source_of
from pmtl.audit.result import AuditResult, Finding, seed_of
from pmtl.audit.setup import AuditSetup
from pmtl.privacy.clipping import clip
from pmtl.privacy.grid import Grid
from pmtl.privacy.noise import rounded
from pmtl.privacy.plan import PrivacyPlan
from pmtl.secure_aggregation import shares
from pmtl.secure_aggregation.identity import Attempt, SignedKey
from pmtl.secure_aggregation.masks import mask
from pmtl.secure_aggregation.protocol import unmasked

GAME = "server"
_SIZE = 8
_SITES, _COLLUDERS = ("a", "b", "c"), 1
_VICTIM, _HONEST, _COLLUDING = _SITES


class Attack:
    """One attempt, and all that the server has of it."""

    def __init__(self, plan: PrivacyPlan, upload: Tensor, seed: int | None) -> None:
        grid = Grid.of(plan)
        self.scale = shares.scale(grid, len(_SITES), _COLLUDERS)
        self.attempt = Attempt("audit", "run", 0, "attempt")
        # In an experiment keys are seeded, too: the same seed plays the same game.
        words = {site: source_of(seed, f"key of {site}")(0)(4) for site in _SITES}
        secret = {
            site: X25519PrivateKey.from_private_bytes(key.tobytes()) for site, key in words.items()
        }
        self.keys = {
            site: SignedKey(site, key.public_key().public_bytes_raw(), b"", b"")
            for site, key in secret.items()
        }
        steps = grid.snap(clip(upload.unsqueeze(0), plan.clip_norm))[0]
        self.sent: dict[str, NDArray[np.uint64]] = {}
        for site in _SITES:
            share = rounded(source_of(seed, f"share of {site}")(0), (_SIZE,), self.scale)
            total = share + (steps if site == _VICTIM else 0)
            hidden = mask(site, secret[site], self.keys, self.attempt, _SIZE)
            self.sent[site] = total.numpy().view(np.uint64) + hidden
            if site == _COLLUDING:
                self.its_share, self.its_secret = share, secret[site]

    def whole_sum(self) -> Tensor:
        """The sum of all, less the share of the colluding site."""
        return self._read(self.sent) - self.its_share

    def without_colluding(self) -> Tensor:
        """An abandoned attempt: the colluding site did not answer, and gives its masks away."""
        honest = {site: numbers for site, numbers in self.sent.items() if site != _COLLUDING}
        masks = mask(_COLLUDING, self.its_secret, self.keys, self.attempt, _SIZE)
        return self._read(honest | {_COLLUDING: masks})

    def one_site(self) -> Tensor:
        """The victim's site alone, less its masks with the colluding site."""
        pair = {site: self.keys[site] for site in (_VICTIM, _COLLUDING)}
        # Bound to the cohort of two, as if the server had mixed cohorts.
        masks = mask(_COLLUDING, self.its_secret, pair, self.attempt, _SIZE)
        return self._read({_VICTIM: self.sent[_VICTIM], _COLLUDING: masks})

    @staticmethod
    def _read(numbers: dict[str, NDArray[np.uint64]]) -> Tensor:
        total = unmasked(numbers, _SIZE)
        assert total is not None
        return total


SCENARIOS: dict[str, Callable[[Attack], Tensor]] = {
    "the sum, less the colluding site's share": Attack.whole_sum,
    "an abandoned attempt, with the colluding site's masks": Attack.without_colluding,
    "one site's upload, less a mask of another cohort": Attack.one_site,
}


def server(setup: AuditSetup) -> AuditResult:
    """Play all scenarios."""
    plan = setup.plan(1, full_participation=True)
    findings = []
    for index, (name, attack) in enumerate(SCENARIOS.items()):
        bits = np.arange(int(setup.trials * (0.15 if index else 0.5))) % 2 == 1
        scores = play(plan, attack, bits, seed_of(setup.noise_seed, GAME + name, 0))
        findings.append(Finding.of(name, setup, plan, scores, bits, len(SCENARIOS)))
    return AuditResult.of(GAME, setup, findings, setup.claimed_delta)


def play(
    plan: PrivacyPlan, attack: Callable[[Attack], Tensor], bits: Bits, seed: int | None
) -> Floats:
    """One score for every trial; a true bit plays +γu."""
    direction = torch.ones(_SIZE, dtype=torch.float64) / math.sqrt(_SIZE)
    scores = np.empty(len(bits))
    for trial, bit in enumerate(bits.tolist()):
        upload = (1 if bit else -1) * plan.clip_norm * direction
        found = attack(Attack(plan, upload, seed_of(seed, GAME, trial))).double()
        scores[trial] = float(found.sum()) / math.sqrt(_SIZE)
    return scores
