"""An algorithm that shares a part of a model.

The wrapped algorithm works on the shared numbers s alone: it starts, steps, uploads and predicts
with vectors of k numbers, and so do the gate and the billboard. The personal numbers p of a client
take plain gradient steps on the same batches and never leave it. With FedAvg this
is FedPer (Arivazhagan et al., 2019).

    g_s, g_p = the gradient of the loss at w = join(s, p)
    s ← the wrapped algorithm's step with g_s
    p ← p − η g_p

If a step takes several gradients, as Ditto's does, p follows the last one, the gradient of the
personal model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.algorithms import Algorithm, names_sharing_parts
from pmtl.algorithms.base import Gradient
from pmtl.billboard import Billboard
from pmtl.errors import PmtlError
from pmtl.models import Layout
from pmtl.sharing.share import Share


class Parts(NamedTuple):
    """The state of a client during a round."""

    inner: Any  # the wrapped algorithm's
    p: Tensor  # the personal numbers


@dataclass(frozen=True, eq=False)
class SharedPart(Algorithm):
    """`inner` on the part of the model that `share` names."""

    name: ClassVar[str] = "shared part"
    shares_parts: ClassVar[bool] = False

    inner: Algorithm
    share: Share

    def __post_init__(self) -> None:
        inner = self.inner
        of_whole_models = (
            *("objective", "billboard_size", "billboard_start", "published"),
            *("upload_size", "shows_model", "target_spans"),
        )
        if inner.overrides(*of_whole_models) or not inner.shares_parts:
            raise PmtlError(
                f"The algorithm {inner.name!r} cannot share a part of a model: it works on the "
                f"whole model. Leave share out, or use {names_sharing_parts()}."
            )
        about = {
            "name": inner.name,
            "shares": inner.shares,
            "personal": inner.personal or self.share.personal_size > 0,
            "relations": inner.relations,
        }
        for attribute, value in about.items():
            object.__setattr__(self, attribute, value)

    def bind(self, layout: Layout) -> Algorithm:
        return replace(self, inner=self.inner.bind(self.share.layout))

    def to(self, device: torch.device, dtype: torch.dtype) -> Algorithm:
        return replace(self, inner=self.inner.to(device, dtype), share=self.share.to(device, dtype))

    def billboard_size(self, layout: Layout) -> int:
        return self.share.size

    def billboard_start(self, common: Tensor) -> Tensor:
        return self.share.first(common)

    def published(self, shared: Tensor) -> Tensor:
        return self.share.published(shared)

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        return self.inner.blocks(clients)

    def billboard(self, clients: tuple[str, ...]) -> Billboard:
        billboard = self.inner.billboard(clients)
        if billboard.mixture is not None:
            raise PmtlError(
                f"The algorithm {self.name!r} mixes several vectors of the billboard and cannot "
                "share a part of a model: leave share out, or use clustered or pmtl."
            )
        return billboard

    def warning(self, clients: int, cohort: int, rounds: int) -> str | None:
        return self.inner.warning(clients, cohort, rounds)

    def server_start(self, shared: Tensor) -> dict[str, Tensor]:
        return self.inner.server_start(shared)

    def server_step(
        self, shared: Tensor, update: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self.inner.server_step(shared, update, memory)

    def start(self, shared: Tensor) -> Tensor:
        inner = self.inner.start(self.share.first(shared))
        return torch.cat([inner, self.share.own(shared)])

    def begin(self, own: Tensor, shared: Tensor) -> Parts:
        s, p = self._cut(own)
        return Parts(self.inner.begin(s, shared), p)

    def step(self, state: Parts, shared: Tensor, gradient: Gradient, lr: float) -> Parts:
        personal: list[Tensor] = []

        def of_shared(s: Tensor) -> Tensor:
            g_s, g_p = self.share.pull_back(gradient(self.share.join(s, state.p)))
            personal.append(g_p)
            return g_s

        inner = self.inner.step(state.inner, shared, of_shared, lr)
        return Parts(inner, state.p - lr * personal[-1])

    def upload(self, state: Parts, own: Tensor, shared: Tensor) -> Tensor:
        return self.inner.upload(state.inner, self._cut(own)[0], shared)

    def keep(self, state: Parts) -> Tensor:
        return torch.cat([self.inner.keep(state.inner), state.p])

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        s, p = self._cut(own)
        return self.share.join(self.inner.predict(s, shared), p)

    def _cut(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """The wrapped algorithm's own vector, and the personal numbers."""
        last = len(own) - self.share.personal_size
        return own[:last], own[last:]
