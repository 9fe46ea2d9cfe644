"""The billboard: how many vectors it shows, who writes to which, and what each client reads.

As a rule a client belongs to one *block*: it writes to one vector of the billboard and reads the
same one. With a relationship matrix (`algorithms/related.py`) it writes to several, with weights of
its own, and reads a mixture.

What a client writes is its clipped upload, of norm γ at most, times its row of weights. That row
has a norm of at most 1, which is checked here, so all it writes together has a norm of at most γ:
whatever the board looks like, replacing a client costs what it costs on a single vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.errors import PmtlError


@dataclass(frozen=True)
class Mixture:
    """Client k writes `writes[k, r]` times its upload to vector r, and reads the sum of the vectors
    times `reads[k]`; the vectors are averages over so many `members`."""

    writes: NDArray[np.float64]  #: [m, R]
    reads: NDArray[np.float64]  #: [m, R]
    members: NDArray[np.int64]  #: [R]

    def __post_init__(self) -> None:
        if not (np.linalg.norm(self.writes, axis=1) <= 1).all():  # Also if it is not a number.
            raise PmtlError("A client would write to the billboard with a weight of more than 1.")


_PARTS = ("writes", "reads", "members")


class Billboard:
    """The billboard of a run."""

    def __init__(self, blocks: NDArray[np.int64], mixture: Mixture | None = None) -> None:
        """Each client's block; with a `mixture`, one of the vectors that the client has to do
        with."""
        self.blocks = blocks
        self.mixture = mixture
        self.members = np.bincount(blocks) if mixture is None else mixture.members
        if (self.members == 0).any():
            raise PmtlError("A block of the billboard has no client: number blocks without gaps.")

    @property
    def size(self) -> int:
        """How many vectors there are."""
        return len(self.members)

    def first(self, common: Tensor) -> Tensor:
        """The board `[R, P]` when every client holds `common`."""
        if self.mixture is None:
            return common.repeat(self.size, 1)
        weights = self.mixture.writes.sum(axis=0) / self.members
        return torch.outer(torch.from_numpy(weights).to(common), common)

    def read(self, shared: Tensor, clients: NDArray[np.int64], one_by_one: bool = False) -> Tensor:
        """What the clients read of the board, `[K, P]`. A mixture computed `one_by_one` does not
        depend, in its last bits, on who else reads."""
        if self.mixture is not None:
            shares = torch.from_numpy(self.mixture.reads[clients]).to(shared)
            if one_by_one and len(clients):
                return torch.stack([share.clone() @ shared for share in shares])
            return shares @ shared
        if len(shared) == 1:
            return shared.expand(len(clients), -1)  # One vector for all; no copy.
        # Without waiting for what a graphics card is busy with.
        return shared[torch.from_numpy(self.blocks[clients]).to(shared.device, non_blocking=True)]

    def written(self, clients: NDArray[np.int64], rows: Tensor) -> Tensor:
        """All that each client writes, `[K, R · P]`, given its part `rows` [K, P]; only for a
        mixture."""
        assert self.mixture is not None
        weights = torch.from_numpy(self.mixture.writes[clients]).to(rows)
        return torch.einsum("kr,kp->krp", weights, rows).flatten(1)

    def tensors(self) -> dict[str, Tensor]:
        """What a file must keep beside the blocks."""
        if self.mixture is None:
            return {}
        return {name: torch.from_numpy(getattr(self.mixture, name)) for name in _PARTS}

    @classmethod
    def from_tensors(cls, blocks: NDArray[np.int64], tensors: Mapping[str, Tensor]) -> Billboard:
        """The board whose `tensors` these are, among others."""
        if _PARTS[0] not in tensors:
            return cls(blocks)
        return cls(blocks, Mixture(*(tensors[name].numpy() for name in _PARTS)))

    def description(self) -> list[int] | str:
        """Two boards with one description are the same: the blocks, or a digest of all of it."""
        return self.blocks.tolist() if self.mixture is None else self.digest()

    def digest(self) -> str:
        """Two boards with one digest are the same."""
        parts: list[NDArray[Any]] = [self.blocks.astype(np.int64)]
        if self.mixture is not None:
            parts += [self.mixture.writes, self.mixture.reads, self.mixture.members]
        return hashlib.sha256(
            b"".join(np.ascontiguousarray(p).tobytes() for p in parts)
        ).hexdigest()
