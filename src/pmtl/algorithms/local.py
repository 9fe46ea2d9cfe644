"""Local training: every client trains alone, the baseline that any federation has to beat.

Nothing leaves a client, so every client takes part in every round and ε = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pmtl.algorithms.base import Algorithm, Gradient


@dataclass(frozen=True)
class Local(Algorithm):
    """Plain SGD on the client's own rows, from the common start."""

    name: ClassVar[str] = "local"
    shares: ClassVar[bool] = False

    def start(self, shared: Tensor) -> Tensor:
        return shared

    def begin(self, own: Tensor, shared: Tensor) -> Tensor:
        return own

    def step(self, w: Tensor, shared: Tensor, gradient: Gradient, lr: float) -> Tensor:
        return w - lr * gradient(w)

    def zero_gradient_steps(self, w: Tensor, shared: Tensor, lr: float, steps: Tensor) -> Tensor:
        return w

    def upload(self, w: Tensor, own: Tensor, shared: Tensor) -> Tensor:
        return w[:0]  # nothing leaves

    def keep(self, w: Tensor) -> Tensor:
        return w

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return own
