"""FedAvg: one global model.

McMahan, Moore, Ramage, Hampson & Agüera y Arcas, AISTATS 2017; with clipped uploads and noise on
their average it is the paper's private global baseline (its section 5.2). Clients are averaged
with equal weights: weighting by sample count would give a client more influence than γ/q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pmtl.algorithms.base import Algorithm, Gradient


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Every sampled client starts from the shared model; all predict with it."""

    name: ClassVar[str] = "fedavg"
    personal: ClassVar[bool] = False

    def start(self, shared: Tensor) -> Tensor:
        return shared[:0]  # nothing is owned

    def begin(self, own: Tensor, shared: Tensor) -> Tensor:
        return shared

    def step(self, w: Tensor, shared: Tensor, gradient: Gradient, lr: float) -> Tensor:
        return w - lr * gradient(w)

    def zero_gradient_steps(self, w: Tensor, shared: Tensor, lr: float, steps: Tensor) -> Tensor:
        return w

    def upload(self, w: Tensor, own: Tensor, shared: Tensor) -> Tensor:
        return w - shared

    def keep(self, w: Tensor) -> Tensor:
        return w[:0]

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return shared
