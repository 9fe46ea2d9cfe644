"""PMTL: private mean-regularised multi-task learning.

Hu, Wu & Smith, "Private Multi-Task Learning: Formulation and Applications to Federated Learning",
TMLR 2023, Algorithm 1. Client k solves (equation 3)

    f_k(w; w̃) = loss_k(w) + λ/2 · ‖w − w̃‖²

around the published mean w̃. It continues from its *own* last weights and uploads their change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pmtl.algorithms.base import Algorithm, Gradient


@dataclass(frozen=True)
class PMTL(Algorithm):
    """Algorithm 1. `lam` is λ: 0 is training alone, large λ is one model for all.

    `server` is how much of the noisy average is added to w̃; 1 is Algorithm 1 as printed. Line 8
    divides the sum of the changes by q, but the mean of the personal models moves by that sum
    divided by m: without clipping and noise, w̃ − w̃⁰ is m/q times w̄ − w̄⁰. With q < m, w̃ moves
    further than the mean. That speeds up a short run, but a long one drifts away where λ(m/q − 1)
    exceeds the curvature of the losses. `server` = q/m keeps w̃ at the mean. It uses only public
    values, so it costs no privacy.
    """

    name: ClassVar[str] = "pmtl"

    lam: float = 0.1
    server: float = 1.0

    def start(self, shared: Tensor) -> Tensor:
        return shared  # w_k⁰ = w̃⁰, for every k

    def begin(self, own: Tensor, shared: Tensor) -> Tensor:
        return own  # line 5: client k continues from its own w_k

    def step(self, w: Tensor, shared: Tensor, gradient: Gradient, lr: float) -> Tensor:
        return w - lr * (gradient(w) + self.lam * (w - shared))  # ClientUpdate, line 12

    def zero_gradient_steps(self, w: Tensor, shared: Tensor, lr: float, steps: Tensor) -> Tensor:
        # Each step multiplies w − w̃ by 1 − ηλ: w̃ + (1 − ηλ)ᴱ(w − w̃).
        return torch.lerp(shared, w, torch.pow(1 - lr * self.lam, steps))

    def upload(self, w: Tensor, own: Tensor, shared: Tensor) -> Tensor:
        return w - own  # line 6: g_k = w_k(after) − w_k(before)

    def keep(self, w: Tensor) -> Tensor:
        return w

    def server_step(
        self, shared: Tensor, update: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return shared + self.server * update, memory  # line 8, for server = 1

    def warning(self, clients: int, cohort: int, rounds: int) -> str | None:
        rate = cohort / clients
        ahead = self.server / rate
        if ahead <= 1.5 or rounds * rate < 8:
            return None
        return (
            f"With {cohort} of {clients} clients a round, Algorithm 1 as printed moves the shared "
            f"model {ahead:.3g} times as far as the mean of the personal models, and a run of "
            f"{rounds} rounds may drift away: {self.name}:server={rate:.3g} keeps it at the mean, "
            "at the same ε."
        )

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return own  # line 10: the output is w_1, …, w_m
