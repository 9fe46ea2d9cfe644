"""The gate: the only place that clips, sums, draws noise and publishes.

One round is (Algorithm 1, line 8, with the divisor fixed at q):

    w̃ᵗ⁺¹ = w̃ᵗ + (1/q) · Σ_{k ∈ S_t} g_k · min(1, γ/‖g_k‖₂) + N(0, σ²I)

ε rests on this: replacing one client's data moves the average by at most 2γ/q. So every upload
counts once and with equal weight, the divisor is a constant of the plan and never the size of the
cohort that turned up, the *whole* vector is clipped, and an upload that is not finite counts as
zero. (`min(1, γ/nan)` is 1 in Python, so a naive clip would let a NaN through.)

With `GridNoise` the gate is *hardened*: between clip and release there are whole numbers only
(`privacy/grid.py`), so the rounding of floats reveals nothing.

The billboard may have several vectors (`billboard.py`): a client writes to one of them, or to
several with weights whose squares sum to at most 1 (a relationship matrix). The noise multiplier is
common to all of them, and a vector's divisor is the expected cohort q·m_b/m of its m_b members.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.billboard import Billboard
from pmtl.errors import PmtlError
from pmtl.messages import UPLOAD
from pmtl.privacy.clipping import clip
from pmtl.privacy.grid import Grid, GridNoise
from pmtl.privacy.noise import CPU, Noise, Source, real
from pmtl.privacy.plan import PrivacyPlan

#: Bytes of one float64 copy that clipping works on at a time: on a CPU they should stay in a core's
#: cache through all passes, on a graphics card they should be enough to keep it busy.
_WORKSPACE, _CARD_WORKSPACE = 2 * 2**20, 256 * 2**20
#: From the billboard and the noisy average to the next billboard.
ServerStep = Callable[[Tensor, Tensor], Tensor]


def noise_of(
    plan: PrivacyPlan, source: Source, hardened: bool, device: torch.device = CPU
) -> Noise | GridNoise:
    """The noise for a gate of this plan, ordinary or hardened, on the device of the uploads."""
    if hardened:
        return GridNoise(Grid.of(plan), source, device)
    return lambda round, shape: real(source(round), shape, device)


def _vector(message: Mapping[str, Any], size: int) -> Tensor:
    """The upload in a message, or some error if there is none."""
    (name, sent), *others = message.items()
    if isinstance(sent, np.ndarray) and sent.dtype.kind == "f" and sent.itemsize <= 8:
        sent = torch.from_numpy(np.array(sent, dtype=np.float64))  # A copy, of any byte order.
    if others or name != UPLOAD or not sent.is_floating_point() or sent.shape != (size,):
        raise ValueError("not an upload")
    return cast(Tensor, sent.detach())


class Tally:
    """The clipped sum of one round: still private, for `Release.publish` and nobody else."""

    def __init__(
        self, round: int, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.round = round
        self.sum = torch.zeros(shape, dtype=dtype, device=device)
        self.cohort: frozenset[int] = frozenset()  #: the numbers of the clients that were drawn
        self.seen: set[int] = set()


class Release:
    """The gate of one run, made from its plan."""

    def __init__(
        self,
        plan: PrivacyPlan,
        board: Billboard | NDArray[np.int64],
        noise: Noise | GridNoise,
        charge: Callable[[int], None] | None = None,
        one_by_one: bool = False,
    ) -> None:
        """A gate that has published nothing yet.

        Args:
            plan: of what is published.
            board: the billboard, or just the block of each client.
            noise: from `noise_of`; `GridNoise` makes the gate hardened.
            charge: puts a round down in a ledger and returns when that is on disk.
            one_by_one: for production, where a clipped upload may not depend on others.
        """
        board = board if isinstance(board, Billboard) else Billboard(board)
        if board.blocks.shape != (plan.clients,):
            raise PmtlError(
                f"The plan protects {plan.clients} clients, but {len(board.blocks)} clients would "
                "write to the billboard: make the plan for this federation."
            )
        if isinstance(noise, GridNoise) and noise.grid != Grid.of(plan):
            raise PmtlError("The hardened noise was made for another plan: make it for this one.")
        self.plan = plan
        self.billboard = board
        self._noise = noise
        self._charge = charge
        self._one_by_one = one_by_one
        self._published: set[int] = set()
        self._owner = os.getpid()
        divisors = plan.cohort * board.members / plan.clients
        self._divisors = torch.from_numpy(divisors).unsqueeze(1)

    @property
    def blocks(self) -> int:
        """How many vectors the billboard carries."""
        return len(self._divisors)

    def __reduce__(self) -> NoReturn:
        """A copy, in this process or in a worker, would not know what was published already."""
        raise PmtlError("A gate cannot be copied or sent elsewhere: it has one run, and one noise.")

    def open(self, round: int, shared: Tensor) -> Tally:
        """An empty sum for a round."""
        dtype = torch.int64 if isinstance(self._noise, GridNoise) else torch.float64
        return Tally(round, tuple(shared.shape), shared.device, dtype)

    def receive(self, tally: Tally, client: int, round: int, message: Mapping[str, Any]) -> None:
        """Take what one site sent for a round, whatever it is.

        An upload of another round or from an unknown client is dropped. Anything that is not an
        upload (a wrong name, shape or kind of number, or something besides it) counts as zero,
        without an error: an error that names the client would be a release past the gate.

        Args:
            tally: of the round that is open.
            client: who sent it.
            round: for which it was sent.
            message: `{UPLOAD: vector}`, a tensor or a NumPy array.
        """
        if round != tally.round or not 0 <= client < self.plan.clients:
            return
        row = torch.zeros(1, tally.sum.shape[1], dtype=torch.float64, device=tally.sum.device)
        try:
            row[0] = _vector(message, row.shape[1])
        except Exception:  # Of what a client sent; nobody else is to hear of it.
            row.zero_()
        self.add(tally, np.array([client], dtype=np.int64), row)

    def add(self, tally: Tally, clients: NDArray[np.int64], uploads: Tensor) -> None:
        """Clip the uploads `[K, P]` of `clients` and add each to its block, once."""
        fresh = []
        for place, client in enumerate(clients.tolist()):
            if client not in tally.seen:
                tally.seen.add(client)
                fresh.append(place)
        workspace = _CARD_WORKSPACE if uploads.is_cuda else _WORKSPACE
        wide = 1 if self.billboard.mixture is None else self.blocks
        step = max(1, workspace // (8 * wide * max(1, uploads.shape[1])))
        for first in range(0, len(fresh), step):
            chosen = fresh[first : first + step]
            # Neighbours are looked at where they are; others have to be copied together.
            together = chosen[-1] - chosen[0] + 1 == len(chosen)
            rows = uploads[chosen[0] : chosen[-1] + 1] if together else uploads[chosen]
            clipped = clip(rows, self.plan.clip_norm, self._one_by_one)
            mixed = self.billboard.mixture is not None
            if mixed:  # All that a client writes is one vector, of norm γ at most.
                clipped = self.billboard.written(clients[chosen], clipped)
            if isinstance(self._noise, GridNoise):
                clipped = self._noise.grid.snap(clipped)
            if mixed:
                tally.sum += clipped.sum(dim=0).view_as(tally.sum)
                continue
            blocks = self.billboard.blocks[clients[chosen]]
            for block in np.unique(blocks).tolist():
                mine = np.flatnonzero(blocks == block)
                part = clipped if len(mine) == len(clipped) else clipped[mine.tolist()]
                tally.sum[block] += part.sum(dim=0)

    def average(self, tally: Tally) -> Tensor:
        """The average before noise: private, of sensitivity 2γ/q."""
        unit = self._noise.grid.step if isinstance(self._noise, GridNoise) else 1.0
        divisors = self._divisors.to(tally.sum.device, non_blocking=True)
        return unit * tally.sum.to(torch.float64) / divisors

    def publish(self, tally: Tally, shared: Tensor, step: ServerStep = torch.add) -> Tensor:
        """Charge the round, draw its noise, and return the next billboard.

        Args:
            tally: the round's clipped sum.
            shared: the billboard before the round.
            step: makes the next billboard of this one and the noisy average, both in float64. It
                works on what could be published as it is, so it is free.
        """
        if os.getpid() != self._owner:
            raise PmtlError(
                "This gate belongs to the process that made it: a copy of it in another process "
                "would draw the same noise again. Make a gate of its own there."
            )
        if tally.round in self._published:
            raise PmtlError(
                f"Round {tally.round} was published already: no round gets its noise twice."
            )
        self._published.add(tally.round)
        if self._charge is not None:
            self._charge(tally.round)  # Before the noise exists: a charge is never owed.
        update = self._noisy(tally).to(shared.device)
        return step(shared.to(torch.float64), update).to(shared.dtype)

    def _noisy(self, tally: Tally) -> Tensor:
        """The average with its noise.

        The noise multiplier z is common to all blocks: on a sum the noise has the deviation zγ, on
        the average of a block σ times q over the block's own divisor.
        """
        device, divisors = tally.sum.device, self._divisors.to(tally.sum.device, non_blocking=True)
        noise: Tensor | float = 0.0
        if self.plan.noise_std > 0:
            noise = self._noise(tally.round, tuple(tally.sum.shape)).to(device)
        if isinstance(self._noise, GridNoise):
            # Whole numbers up to here, so nothing was rounded; the noisy sum is public. (As
            # float64: a number times whole ones would be float32.)
            return self._noise.grid.step * (tally.sum + noise).to(torch.float64) / divisors
        return self.average(tally) + self.plan.noise_std * self.plan.cohort / divisors * noise
