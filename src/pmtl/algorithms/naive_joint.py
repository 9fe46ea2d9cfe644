"""Naive joint DP: client-level differential privacy for all personal models at once (Fig. 1).

The models of all clients are one long vector, trained with DP-SGD: client k's clipped upload goes
to slot k, and *every* slot gets noise in every round and is published. So k's own model must hide
k's own data, and the paper finds it no better than guessing. Billboard privacy avoids this.
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
    shares_parts: ClassVar[bool] = False

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        return np.arange(len(clients), dtype=np.int64)
