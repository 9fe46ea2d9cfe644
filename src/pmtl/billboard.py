"""The billboard: how many vectors it shows, who writes to which, and what each client reads.

Usually a client belongs to one *block*: it reads and writes one vector. With a relationship matrix
(`algorithms/related.py`) it writes to several vectors with weights, and reads a mixture of them.

A client writes its clipped upload, of norm at most γ, times its row of weights. The norm of that
row is at most 1, which is checked here, so all writes of a client together have norm at most γ.
Replacing a client therefore costs the same on any billboard as on a single vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.errors import PmtlError


@dataclass(frozen=True)
class Mixture:
    """How clients read and write several vectors."""

    writes: NDArray[np.float64]  #: [m, R] client k adds writes[k, r] · its upload to vector r
    reads: NDArray[np.float64]  #: [m, R] client k reads Σ_r reads[k, r] · vector r
    members: NDArray[np.int64]  #: [R] how many clients each vector is an average over

    def __post_init__(self) -> None:
        if not (np.linalg.norm(self.writes, axis=1) <= 1).all():  # Also refuses NaN.
            raise PmtlError("A client would write to the billboard with a weight of more than 1.")


_PARTS = ("writes", "reads", "members")


class Billboard:
    def __init__(self, blocks: NDArray[np.int64], mixture: Mixture | None = None) -> None:
        """`blocks` [m] are the clients' blocks. With a `mixture`, clients read and write several
        vectors with its weights; a client's block is then one of its vectors."""
        self.blocks = blocks
        self.mixture = mixture
        self.members = np.bincount(blocks) if mixture is None else mixture.members
        if (self.members == 0).any():
            raise PmtlError("A block of the billboard has no client: number blocks without gaps.")

    @property
    def size(self) -> int:
        """R, the number of vectors."""
        return len(self.members)

    @property
    def one_for_all(self) -> bool:
        """Whether all clients read the same vector."""
        return self.size == 1 and self.mixture is None

    def first(self, common: Tensor) -> Tensor:
        """The billboard `[R, P]` when every client has the weights `common`."""
        if self.mixture is None:
            return common.repeat(self.size, 1)
        weights = self.mixture.writes.sum(axis=0) / self.members
        return torch.outer(torch.from_numpy(weights).to(common), common)

    def read(self, shared: Tensor, clients: NDArray[np.int64], one_by_one: bool = False) -> Tensor:
        """What the clients read, `[K, P]`. With `one_by_one`, a client's mixture is the same to the
        last bit whichever other clients read with it."""
        if self.mixture is not None:
            shares = torch.from_numpy(self.mixture.reads[clients]).to(shared)
            if one_by_one and len(clients):
                return torch.stack([share.clone() @ shared for share in shares])
            return shares @ shared
        if len(shared) == 1:
            return shared.expand(len(clients), -1)
        # non_blocking: do not wait for work that is queued on the GPU.
        return shared[torch.from_numpy(self.blocks[clients]).to(shared.device, non_blocking=True)]

    def written(self, clients: NDArray[np.int64], rows: Tensor) -> Tensor:
        """All that each client writes, `[K, R · P]`, given its upload `rows` [K, P]. Only for a
        mixture."""
        assert self.mixture is not None
        weights = torch.from_numpy(self.mixture.writes[clients]).to(rows)
        return torch.einsum("kr,kp->krp", weights, rows).flatten(1)

    def tensors(self) -> dict[str, Tensor]:
        """What a file has to store in addition to the blocks."""
        if self.mixture is None:
            return {}
        return {name: torch.from_numpy(getattr(self.mixture, name)) for name in _PARTS}

    @classmethod
    def from_tensors(cls, blocks: NDArray[np.int64], tensors: Mapping[str, Tensor]) -> Billboard:
        """The billboard with these blocks and the result of `tensors`; other keys are ignored."""
        if _PARTS[0] not in tensors:
            return cls(blocks)
        return cls(blocks, Mixture(*(tensors[name].numpy() for name in _PARTS)))

    def description(self) -> list[int] | str:
        """The blocks, or with a mixture the digest. Equal billboards have equal descriptions."""
        return self.blocks.tolist() if self.mixture is None else self.digest()

    def digest(self) -> str:
        """SHA-256 of the blocks and the mixture."""
        digest = hashlib.sha256(self.blocks.astype(np.int64).tobytes())
        for part in self.tensors().values():
            digest.update(part.numpy().tobytes())
        return digest.hexdigest()
