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
    """One way to share a part of a model.

    In the methods:
        - s: `[k]`, the shared numbers.
        - p: `[personal_size]`, the personal numbers.
        - common: `[P]`, the weights of the common start.
        - numbers: the shared numbers, then the personal ones.
        - gradient: `[P]`, the gradient of the weights.
        - shared: `[vectors, k]`, the billboard.
        - device, dtype: of the tensors.
    """

    layout: Layout  #: names, shapes and places of the shared numbers

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
        """[k] the shared numbers of the common start."""

    @abstractmethod
    def own(self, common: Tensor) -> Tensor:
        """[personal_size] the personal numbers of the common start."""

    @abstractmethod
    def join(self, s: Tensor, p: Tensor) -> Tensor:
        """[P] the weights of shared and personal numbers."""

    def join_vector(self, numbers: Tensor) -> Tensor:
        """[P] the weights of a vector of numbers."""
        return self.join(numbers[: self.size], numbers[self.size :])

    @abstractmethod
    def pull_back(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of s and of p, given the gradient of the weights."""

    def number_scales(self, scales: Tensor) -> Tensor:
        """The sizes of the shared and the personal numbers. Numbers along directions all get the
        same size.

        Args:
            scales: `[P]`, the sizes of the weights.
        """
        if self.personal_size:
            return torch.cat(self.pull_back(scales))
        usual: Tensor = scales.norm() / math.sqrt(self.size)
        return usual

    @abstractmethod
    def published(self, shared: Tensor) -> Tensor:
        """The weights `[vectors, P]` of the shared models. Personal numbers are those of the common
        start."""

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The same map on another device."""

        def moved(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(moved(part) for part in value)
            if not isinstance(value, Tensor):
                return value
            return value.to(device, dtype if value.is_floating_point() else value.dtype)

        return replace(
            self, **{item.name: moved(getattr(self, item.name)) for item in fields(self)}
        )
