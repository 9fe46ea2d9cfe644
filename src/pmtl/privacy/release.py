"""The gate: the only place that clips, sums, draws noise and publishes.

One round is (Algorithm 1, line 8, with the divisor fixed at q):

    w̃ᵗ⁺¹ = w̃ᵗ + (1/q) · Σ_{k ∈ S_t} g_k · min(1, γ/‖g_k‖₂) + N(0, σ²I)

What makes the noise worth its ε is that replacing one client's data moves the average by at most
2γ/q. Everything below serves that bound: every upload counts once and with equal weight, the
divisor is a constant of the plan and never the size of the cohort that turned up, the *whole*
vector is clipped, and an upload that is not finite counts as zero. (`min(1, γ/nan)` is 1 in Python,
so a naive clip would let a NaN through.)

The billboard may have several blocks, of which a client writes to one (clusters; one slot per
client in the naive joint method). The noise multiplier is common to all blocks, and a block's
divisor is its expected cohort q·m_b/m.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.errors import PmtlError
from pmtl.privacy.noise import Noise
from pmtl.privacy.plan import PrivacyPlan

#: Clipping aims this far below γ, so that rounding can never lift a norm above it.
_MARGIN = 1e-12
#: Bytes of one float64 copy that clipping works on at a time: on a CPU they should stay in a core's
#: cache through all passes, on a graphics card they should be enough to keep it busy.
_WORKSPACE, _CARD_WORKSPACE = 2 * 2**20, 256 * 2**20


def clip(uploads: Tensor, clip_norm: float) -> Tensor:
    """Scale every row to an L2 norm of at most `clip_norm`, in float64; not finite becomes zero."""
    rows = uploads.to(torch.float64)
    largest = rows.abs().amax(dim=1, keepdim=True)
    finite = torch.isfinite(largest)
    rows = torch.where(finite, rows, 0.0)
    if clip_norm == float("inf"):
        return rows
    # Dividing by the largest entry first keeps the squares from overflowing.
    largest = torch.where(finite & (largest > 0), largest, 1.0)
    unit = rows / largest
    # torch's sum cascades; its vector_norm adds one by one, which on millions of entries drifts
    # by more than the margin.
    norm = unit.square().sum(dim=1, keepdim=True).sqrt()
    shortened = unit * (clip_norm * (1 - _MARGIN) / norm.clamp(min=1e-300))
    return torch.where(norm * largest > clip_norm * (1 - _MARGIN), shortened, rows)


class Tally:
    """The clipped sum of one round: still private, for `Release.publish` and nobody else."""

    def __init__(self, round: int, shape: tuple[int, ...], device: torch.device) -> None:
        self.round = round
        self.sum = torch.zeros(shape, dtype=torch.float64, device=device)
        self.seen: set[int] = set()


class Release:
    """The gate of one run, made from its plan."""

    def __init__(
        self,
        plan: PrivacyPlan,
        blocks: NDArray[np.int64],
        noise: Noise,
        charge: Callable[[int], None] | None = None,
    ) -> None:
        """`charge` puts a round down in a ledger; it returns when that is on disk."""
        if blocks.shape != (plan.clients,):
            raise PmtlError(
                f"The plan protects {plan.clients} clients, but {len(blocks)} clients would write "
                "to the billboard: make the plan for this federation."
            )
        self.plan = plan
        self._blocks = blocks
        self._noise = noise
        self._charge = charge
        self._published: set[int] = set()
        members = np.bincount(blocks)
        if (members == 0).any():
            raise PmtlError("A block of the billboard has no client: number blocks without gaps.")
        self._divisors = torch.from_numpy(plan.cohort * members / plan.clients).unsqueeze(1)

    @property
    def blocks(self) -> int:
        """How many vectors the billboard carries."""
        return len(self._divisors)

    def open(self, round: int, shared: Tensor) -> Tally:
        """An empty sum for a round."""
        return Tally(round, tuple(shared.shape), shared.device)

    def add(self, tally: Tally, clients: NDArray[np.int64], uploads: Tensor) -> None:
        """Clip the uploads `[K, P]` of `clients` and add each to its block, once."""
        fresh = []
        for place, client in enumerate(clients.tolist()):
            if client not in tally.seen:
                tally.seen.add(client)
                fresh.append(place)
        workspace = _CARD_WORKSPACE if uploads.is_cuda else _WORKSPACE
        step = max(1, workspace // (8 * max(1, uploads.shape[1])))
        for first in range(0, len(fresh), step):
            chosen = fresh[first : first + step]
            rows = uploads if len(chosen) == len(uploads) else uploads[chosen]
            clipped = clip(rows, self.plan.clip_norm)
            blocks = self._blocks[clients[chosen]]
            for block in np.unique(blocks).tolist():
                mine = np.flatnonzero(blocks == block)
                part = clipped if len(mine) == len(clipped) else clipped[mine.tolist()]
                tally.sum[block] += part.sum(dim=0)

    def average(self, tally: Tally) -> Tensor:
        """The average before noise: private, of sensitivity 2γ/q."""
        return tally.sum / self._divisors.to(tally.sum.device)

    def publish(self, tally: Tally, shared: Tensor, step: float = 1.0) -> Tensor:
        """The next billboard: `step` times the average plus noise of standard deviation σ on it.

        Adding less than all of it is work on what could be published as it is, and free.
        """
        if tally.round in self._published:
            raise PmtlError(
                f"Round {tally.round} was published already: no round gets its noise twice."
            )
        self._published.add(tally.round)
        if self._charge is not None:
            self._charge(tally.round)  # Before the noise exists: a charge is never owed.
        update = self.average(tally)
        if self.plan.noise_std > 0:
            # σ is stated for an average over q; a block's average has a smaller divisor.
            scale = self.plan.noise_std * self.plan.cohort / self._divisors
            noise = self._noise(tally.round, tuple(shared.shape))
            update = update + (scale * noise).to(update.device)
        return (shared.to(torch.float64) + step * update).to(shared.dtype)
