"""PP-SGD: an additive model, predicting with w + θ_k.

Bietti, Wei, Dudík, Langford & Wu, "Personalization Improves Privacy–Accuracy Tradeoffs in
Federated Learning", ICML 2022. The shared w and the client's own θ_k minimise the same loss
ℓ(w + θ_k); `alpha` is the ratio of the local to the global step size, and 0 is one global model.
With one local step a round this is their Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pmtl.algorithms.base import Algorithm, Gradient


class Sum(NamedTuple):
    """The state of a client during a round."""

    w: Tensor  # its copy of the shared part
    theta: Tensor  # its own part


@dataclass(frozen=True)
class PPSGD(Algorithm):
    """Predict with w + θ_k; θ_k never leaves its client."""

    name: ClassVar[str] = "ppsgd"

    alpha: float = 1.0

    def start(self, shared: Tensor) -> Tensor:
        return torch.zeros_like(shared)  # θ_k⁰ = 0: the common start is in w

    def begin(self, own: Tensor, shared: Tensor) -> Sum:
        return Sum(w=shared, theta=own)

    def step(self, state: Sum, shared: Tensor, gradient: Gradient, lr: float) -> Sum:
        w, theta = state
        g = gradient(w + theta)  # the derivative is the same for both summands
        return Sum(w - lr * g, theta - self.alpha * lr * g)

    def zero_gradient_steps(self, state: Sum, shared: Tensor, lr: float, steps: Tensor) -> Sum:
        return state

    def upload(self, state: Sum, own: Tensor, shared: Tensor) -> Tensor:
        return state.w - shared

    def keep(self, state: Sum) -> Tensor:
        return state.theta

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return shared + own
