"""What the clients own between rounds: one row of one array each.

Every row begins as the common start. A client that was never sampled therefore holds the common
start, and nothing a client trained can reach another client's row.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Store:
    """`[m, own]` vectors, gathered for a cohort and scattered back."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors

    @classmethod
    def fresh(cls, start: Tensor) -> Store:
        """A store whose rows are `start` [m, own], copied so that no two rows share memory."""
        return cls(start.contiguous().clone())

    def gather(self, clients: NDArray[np.int64]) -> Tensor:
        """A copy of the clients' rows."""
        return self.vectors[torch.from_numpy(clients).to(self.vectors.device)]

    def scatter(self, clients: NDArray[np.int64], rows: Tensor) -> None:
        """Replace the clients' rows."""
        self.vectors[torch.from_numpy(clients).to(self.vectors.device)] = rows
