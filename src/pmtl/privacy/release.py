"""The gate: the only place that clips, sums, draws noise and publishes.

One round is (Algorithm 1, line 8, with the divisor fixed at q):

    w̃ᵗ⁺¹ = w̃ᵗ + (1/q) · Σ_{k ∈ S_t} g_k · min(1, γ/‖g_k‖₂) + N(0, σ²I)

Replacing one client's data moves the average by at most 2γ/q. This holds because every upload
counts once and with equal weight, the divisor is a constant of the plan and not the actual size of
the cohort, the *whole* vector is clipped, and an upload with NaN or infinity counts as zero.

With `GridNoise` the gate is *hardened* (`privacy/grid.py`). The billboard may have several vectors
(`billboard.py`); all have the same noise multiplier, and the divisor of a vector with m_b members
is its expected cohort q·m_b/m.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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

#: Bytes that clipping works on at a time: small enough for the cache of a CPU core, large enough to
#: keep a GPU busy.
WORKSPACE, _GPU_WORKSPACE = 2 * 2**20, 256 * 2**20
#: From the billboard and the noisy average to the next billboard.
ServerStep = Callable[[Tensor, Tensor], Tensor]


def noise_of(
    plan: PrivacyPlan, source: Source, hardened: bool, device: torch.device = CPU
) -> Noise | GridNoise:
    """The noise for a gate with this plan, ordinary or hardened, on the device of the uploads."""
    if hardened:
        return GridNoise(Grid.of(plan), source, device)
    return lambda round, shape: real(source(round), shape, device)


def _vector(message: Mapping[str, Any], size: int) -> Tensor:
    """The upload in a message; raises any error if there is none."""
    (name, sent), *others = message.items()
    if isinstance(sent, np.ndarray) and sent.dtype.kind == "f" and sent.itemsize <= 8:
        sent = torch.from_numpy(np.array(sent, dtype=np.float64))  # A copy, of any byte order.
    if others or name != UPLOAD or not sent.is_floating_point() or sent.shape != (size,):
        raise ValueError("not an upload")
    return cast(Tensor, sent.detach())


def _mark_seen(tally: Tally, clients: NDArray[np.int64]) -> list[int]:
    """Mark the clients as added, and return the positions of those that were not added before."""
    fresh = []
    for place, client in enumerate(clients.tolist()):
        if client not in tally.seen:
            tally.seen.add(client)
            fresh.append(place)
    return fresh


@dataclass(eq=False)
class Tally:
    """The clipped sum of one round. It is private: only `Release.publish` may use it."""

    round: int
    sum: Tensor  #: [vectors, U]
    cohort: frozenset[int] = frozenset()  #: the numbers of the clients that were drawn
    seen: set[int] = field(default_factory=set)  #: those whose uploads were added


class Release:
    """The gate of one run.

    In the methods:
        - tally: the sum of an open round.
        - round: its number, from 0.
        - shared: `[vectors, P]`, the billboard before it.
        - clients: the numbers of the clients whose uploads are added.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        billboard: Billboard | NDArray[np.int64],
        noise: Noise | GridNoise,
        charge: Callable[[int], None] | None = None,
        one_by_one: bool = False,
    ) -> None:
        """
        Args:
            plan: clip norm, noise, cohort and number of clients.
            billboard: the billboard, or the block of each client.
            noise: from `noise_of`; `GridNoise` makes the gate hardened.
            charge: writes a round to a ledger and returns when it is on disk.
            one_by_one: for production: a clipped upload never depends on other uploads.
        """
        billboard = billboard if isinstance(billboard, Billboard) else Billboard(billboard)
        if billboard.blocks.shape != (plan.clients,):
            raise PmtlError(
                f"The plan protects {plan.clients} clients, but {len(billboard.blocks)} clients "
                "would write to the billboard: make the plan for this federation."
            )
        if isinstance(noise, GridNoise) and noise.grid != Grid.of(plan):
            raise PmtlError("The hardened noise was made for another plan: make it for this one.")
        self.plan = plan
        self.billboard = billboard
        self.noise = noise
        self._charge = charge
        self._one_by_one = one_by_one
        self._published: set[int] = set()
        self._owner = os.getpid()
        divisors = plan.cohort * billboard.members / plan.clients
        self._divisors = torch.from_numpy(divisors).unsqueeze(1)

    def __reduce__(self) -> NoReturn:
        """A copy would not know which rounds were published already."""
        raise PmtlError("A gate cannot be copied or sent elsewhere: a run has exactly one gate.")

    def open(self, round: int, shared: Tensor, size: int | None = None) -> Tally:
        """An empty sum for a round.

        Args:
            size: the length of uploads; that of a vector of the billboard unless given.
        """
        dtype = torch.int64 if isinstance(self.noise, GridNoise) else torch.float64
        shape = (len(shared), shared.shape[1] if size is None else size)
        return Tally(round, torch.zeros(shape, dtype=dtype, device=shared.device))

    def receive(self, tally: Tally, client: int, round: int, message: Mapping[str, Any]) -> None:
        """Clip and add what one site sent.

        An upload for another round or from an unknown client is ignored. An invalid message counts
        as zero, without an error: an error about one client would be a release past the gate.

        Args:
            client: the number of the client that sent the message.
            round: the round for which it was sent.
            message: `{UPLOAD: vector}`, a tensor or a NumPy array.
        """
        numbers = isinstance(client, (int, np.integer)) and isinstance(round, (int, np.integer))
        if not numbers or round != tally.round or not 0 <= client < self.plan.clients:
            return
        row = torch.zeros(1, tally.sum.shape[1], dtype=torch.float64, device=tally.sum.device)
        try:
            row[0] = _vector(message, row.shape[1])
        except Exception:  # An error about one client must not be visible.
            row.zero_()
        self.add(tally, np.array([client], dtype=np.int64), row)

    def add(self, tally: Tally, clients: NDArray[np.int64], uploads: Tensor) -> None:
        """Clip uploads and add each to its client's block, once.

        Args:
            uploads: `[K, P]`, one for each of the clients.
        """
        fresh = _mark_seen(tally, clients)
        workspace = _GPU_WORKSPACE if uploads.is_cuda else WORKSPACE
        wide = 1 if self.billboard.mixture is None else self.billboard.size
        step = max(1, workspace // (8 * wide * max(1, uploads.shape[1])))
        for first in range(0, len(fresh), step):
            chosen = fresh[first : first + step]
            # A slice needs no copy.
            together = chosen[-1] - chosen[0] + 1 == len(chosen)
            rows = uploads[chosen[0] : chosen[-1] + 1] if together else uploads[chosen]
            clipped = clip(rows, self.plan.clip_norm, self._one_by_one)
            mixed = self.billboard.mixture is not None
            if mixed:  # All writes of a client are one vector, of norm at most γ.
                clipped = self.billboard.written(clients[chosen], clipped)
            if isinstance(self.noise, GridNoise):
                clipped = self.noise.grid.snap(clipped)
            if mixed:
                tally.sum += clipped.sum(dim=0).view_as(tally.sum)
                continue
            blocks = self.billboard.blocks[clients[chosen]]
            for block in np.unique(blocks).tolist():
                mine = np.flatnonzero(blocks == block)
                part = clipped if len(mine) == len(clipped) else clipped[mine.tolist()]
                tally.sum[block] += part.sum(dim=0)

    def add_steps(self, tally: Tally, clients: NDArray[np.int64], steps: Tensor) -> None:
        """Add uploads that sites have brought to the grid, each once.

        Args:
            steps: `[K, P]`, from `Grid.snap`. An upload that is too long counts as zero.
        """
        fresh = _mark_seen(tally, clients)
        sound = self._grid.keep_short(steps[fresh])
        blocks = torch.from_numpy(self.billboard.blocks[clients[fresh]])
        tally.sum.index_add_(0, blocks.to(tally.sum.device), sound.to(tally.sum.device))

    def add_sum(self, tally: Tally, clients: NDArray[np.int64], total: Tensor) -> None:
        """Add the sum of the uploads of one site's clients.

        The site is trusted to clip every client's upload. Here only the sum is bounded: a sum
        that clipped uploads cannot reach counts as zero.

        Args:
            total: `[P]`, the sum in steps of the grid.
        """
        if self.billboard.size != 1:
            raise PmtlError("Sites can send sums only if all clients read one shared model.")
        fresh = _mark_seen(tally, clients)
        if len(fresh) == len(clients):  # Otherwise a part of it was counted before.
            tally.sum[0] += self._grid.keep_short(total.unsqueeze(0), len(clients))[0]

    def charge(self, round: int) -> None:
        """Charge a round whose noise the sites will add. To be called before they are asked for
        their uploads, once for each attempt."""
        if self._charge is not None:
            self._charge(round)

    def add_noisy_sum(self, tally: Tally, total: Tensor, reach: float) -> None:
        """Take the sum of all sites, noise included, as the round's sum, which is still empty.

        Args:
            total: `[P]`, whole steps of the grid.
            reach: how far beyond the clients' longest sum noise can go, in steps. A number beyond
                that comes from a faulty site, and the attempt is refused.
        """
        most = self.plan.clients * 2**self._grid.bits + reach
        if self.billboard.size != 1 or tally.seen or total.shape != tally.sum[0].shape:
            raise PmtlError("This sum does not fit the round.")
        if bool((total.double().abs() > most).any()):
            raise PmtlError("The sum of the sites is too large: a site sent wrong numbers.")
        tally.seen.update(range(self.plan.clients))
        tally.sum[0] += total

    @property
    def _grid(self) -> Grid:
        if not isinstance(self.noise, GridNoise) or self.billboard.mixture is not None:
            raise PmtlError("This gate does not compute in whole numbers of steps.")
        return self.noise.grid

    def average(self, tally: Tally) -> Tensor:
        """The average before noise: private, with sensitivity 2γ/q."""
        unit = self.noise.grid.step if isinstance(self.noise, GridNoise) else 1.0
        divisors = self._divisors.to(tally.sum.device, non_blocking=True)
        return unit * tally.sum.to(torch.float64) / divisors

    def publish(
        self, tally: Tally, shared: Tensor, step: ServerStep = torch.add, noisy: bool = False
    ) -> Tensor:
        """Charge the round, draw its noise, and return the next billboard.

        Args:
            step: makes it from `shared` and the noisy average, both in float64. It uses only public
                values, so it costs no privacy.
            noisy: whether the sites added the noise (`add_noisy_sum`). `charge` was called before.
        """
        if os.getpid() != self._owner:
            raise PmtlError(
                "This gate belongs to the process that made it: a copy in another process would "
                "draw the same noise again. Make a new gate there."
            )
        if tally.round in self._published:
            raise PmtlError(
                f"Round {tally.round} was published already: no round gets its noise twice."
            )
        self._published.add(tally.round)
        if not noisy:
            self.charge(tally.round)  # Before the noise exists, so no release is ever uncharged.
        update = (self.average(tally) if noisy else self._noisy(tally)).to(shared.device)
        return step(shared.to(torch.float64), update).to(shared.dtype)

    def _noisy(self, tally: Tally) -> Tensor:
        """The average plus noise: zγ on the sum of every block, σ·q/divisor on its average."""
        device, divisors = tally.sum.device, self._divisors.to(tally.sum.device, non_blocking=True)
        noise: Tensor | float = 0.0
        if self.plan.noise_std > 0:
            noise = self.noise(tally.round, tuple(tally.sum.shape)).to(device)
        if isinstance(self.noise, GridNoise):
            # Whole numbers up to here, so nothing was rounded. float64, because a Python float
            # times an integer tensor would be float32.
            return self.noise.grid.step * (tally.sum + noise).to(torch.float64) / divisors
        return self.average(tally) + self.plan.noise_std * self.plan.cohort / divisors * noise
