"""Ditto: a global model trained as in FedAvg, and a personal one regularised towards it.

Li, Hu, Beirami & Smith, "Ditto: Fair and Robust Federated Learning Through Personalization",
ICML 2021, Algorithm 1; the paper names it as covered by billboard privacy (remark in section 3.2),
since the personal model never leaves its client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pmtl.algorithms.base import Algorithm, Gradient


class Pair(NamedTuple):
    """The state of a client during a round."""

    u: Tensor  # its copy of the shared model; uploaded
    v: Tensor  # its personal model; kept


@dataclass(frozen=True)
class Ditto(Algorithm):
    """`lam` pulls the personal model towards the shared one."""

    name: ClassVar[str] = "ditto"

    lam: float = 0.1

    def start(self, shared: Tensor) -> Tensor:
        return shared

    def begin(self, own: Tensor, shared: Tensor) -> Pair:
        return Pair(u=shared, v=own)

    def step(self, state: Pair, shared: Tensor, gradient: Gradient, lr: float) -> Pair:
        u, v = state
        u = u - lr * gradient(u)
        v = v - lr * (gradient(v) + self.lam * (v - shared))
        return Pair(u, v)

    def zero_gradient_steps(self, state: Pair, shared: Tensor, lr: float, steps: Tensor) -> Pair:
        pull = torch.pow(1 - lr * self.lam, steps)
        return Pair(state.u, torch.lerp(shared, state.v, pull))

    def upload(self, state: Pair, own: Tensor, shared: Tensor) -> Tensor:
        return state.u - shared

    def keep(self, state: Pair) -> Tensor:
        return state.v

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return own
