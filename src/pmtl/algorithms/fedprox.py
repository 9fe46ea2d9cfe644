"""FedProx: one global model, with local models kept near it.

Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, MLSys 2020. The local objective is
loss_k(w) + μ/2 · ‖w − w̃‖²; unlike PMTL, a client starts from w̃ every round and owns nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pmtl.algorithms.base import Gradient
from pmtl.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term of strength `mu`."""

    name: ClassVar[str] = "fedprox"

    mu: float = 0.1

    def step(self, w: Tensor, shared: Tensor, gradient: Gradient, lr: float) -> Tensor:
        return w - lr * (gradient(w) + self.mu * (w - shared))

    def zero_gradient_steps(self, w: Tensor, shared: Tensor, lr: float, steps: Tensor) -> Tensor:
        return torch.lerp(shared, w, torch.pow(1 - lr * self.mu, steps))
