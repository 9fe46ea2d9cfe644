"""Naive joint DP: client-level differential privacy for all personal models at once (Fig. 1).

The models of all clients are one long vector, trained with DP-SGD: client k's upload lies in slot
k, is clipped, and *every* slot gets the noise of every round and is published. This asks that k's
own model hide k's own data, which is why the paper finds it no better than guessing. It is what
billboard privacy avoids, built here so that the figure can be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pmtl.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class NaiveJoint(FedAvg):
    """FedAvg on the concatenation of all models: one block of the billboard per client."""

    name: ClassVar[str] = "naive_joint"

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        return np.arange(len(clients), dtype=np.int64)
