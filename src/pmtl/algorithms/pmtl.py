"""PMTL: private mean-regularised multi-task learning.

Hu, Wu & Smith, "Private Multi-Task Learning: Formulation and Applications to Federated Learning",
TMLR 2023, Algorithm 1. Client k solves (equation 3)

    f_k(w; w̃) = loss_k(w) + λ/2 · ‖w − w̃‖²

around the published mean w̃. It continues from its *own* last weights, and the server learns only
how far they moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pmtl.algorithms.base import Algorithm, Gradient


@dataclass(frozen=True)
class PMTL(Algorithm):
    """Algorithm 1. `lam` is λ: 0 is training alone, large λ is one model for all."""

    name: ClassVar[str] = "pmtl"

    lam: float = 0.1

    def start(self, shared: Tensor) -> Tensor:
        return shared  # w_k⁰ = w̃⁰, for every k

    def begin(self, own: Tensor, shared: Tensor) -> Tensor:
        return own  # line 5: client k continues from its own w_k

    def step(self, w: Tensor, shared: Tensor, gradient: Gradient, lr: float) -> Tensor:
        return w - lr * (gradient(w) + self.lam * (w - shared))  # ClientUpdate, line 12

    def upload(self, w: Tensor, own: Tensor, shared: Tensor) -> Tensor:
        return w - own  # line 6: g_k = w_k(after) − w_k(before)

    def keep(self, w: Tensor) -> Tensor:
        return w

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return own  # line 10: the output is w_1, …, w_m
