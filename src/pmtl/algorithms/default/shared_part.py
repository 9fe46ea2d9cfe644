"""The map between the shared numbers, which leave a client, and a model's vector.

    w = join(s, p)        s [k] is shared, p is personal, w [P] are the trained weights
    (∂s, ∂p) = pull_back(∂w)

Every such map is affine, so that averaging s means the same for all clients, and `pull_back` is the
exact derivative. `sharing/share.py` has the maps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from pmtl.models import Layout


@dataclass(frozen=True, eq=False)
class Share(ABC):
    """One way to share a part of a model. `layout` is that of the shared vector s."""

    layout: Layout

    @property
    def size(self) -> int:
        """k, how many numbers are shared."""
        return self.layout.size

    @property
    @abstractmethod
    def personal_size(self) -> int:
        """How many numbers are personal."""

    @abstractmethod
    def first(self, common: Tensor) -> Tensor:
        """[k] the shared numbers of the common start `[P]`."""

    @abstractmethod
    def own(self, common: Tensor) -> Tensor:
        """[personal_size] the personal numbers of the common start `[P]`."""

    @abstractmethod
    def join(self, s: Tensor, p: Tensor) -> Tensor:
        """[P] the weights of shared numbers `s` and personal numbers `p`."""

    def join_vector(self, numbers: Tensor) -> Tensor:
        """[P] the weights of a vector of `numbers`: the shared ones, then the personal ones."""
        return self.join(numbers[: self.size], numbers[self.size :])

    @abstractmethod
    def pull_back(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of s and of p, given the gradient `[P]` of the weights."""

    def number_scales(self, scales: Tensor) -> Tensor:
        """The sizes of the shared and the personal numbers, from the sizes `scales` [P] of the
        weights. Numbers along directions all get the same size."""
        if self.personal_size:
            return torch.cat(self.pull_back(scales))
        usual: Tensor = scales.norm() / math.sqrt(self.size)
        return usual

    @abstractmethod
    def published(self, shared: Tensor) -> Tensor:
        """The weights `[vectors, P]` of the shared models, given the billboard `[vectors, k]`.
        Personal numbers are those of the common start."""

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The same map on another device; its numbers have the type `dtype`."""

        def moved(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(moved(part) for part in value)
            if not isinstance(value, Tensor):
                return value
            return value.to(device, dtype if value.is_floating_point() else value.dtype)

        return replace(
            self, **{item.name: moved(getattr(self, item.name)) for item in fields(self)}
        )
