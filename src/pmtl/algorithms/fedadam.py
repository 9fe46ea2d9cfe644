"""FedAdam: one global model, with Adam at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar & McMahan, "Adaptive Federated Optimization",
ICLR 2021, Algorithm 2 (FedOpt) with the server optimiser Adam. Clients train as in FedAvg; the
server uses their noisy average Δ as a gradient. It uses only public values, so FedAdam costs as
much privacy as FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pmtl.algorithms.fedavg import FedAvg
from pmtl.errors import PmtlError


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg with Adam at the server: η `server_lr`, β₁ `beta1`, β₂ `beta2`, τ `tau`."""

    name: ClassVar[str] = "fedadam"

    server_lr: float = 0.03
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta1 >= 1 or self.beta2 >= 1:
            raise PmtlError(f"{self.name}: beta1 and beta2 must be less than 1.")

    def server_start(self, shared: Tensor) -> dict[str, Tensor]:
        start = torch.zeros_like(shared, dtype=torch.float64)
        return {"m": start, "v": start + self.tau**2}

    def server_step(
        self, shared: Tensor, update: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        m = self.beta1 * memory["m"] + (1 - self.beta1) * update  # line 11
        v = self.beta2 * memory["v"] + (1 - self.beta2) * update**2  # line 14
        return shared + self.server_lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}  # line 15
