"""What an algorithm has to know of a part of a model that is shared (`sharing/`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Part(Protocol):
    """The map between the shared numbers and the weights (`sharing/`)."""

    @property
    def size(self) -> int:
        """How many numbers are shared."""

    @property
    def rest(self) -> int:
        """How many are personal."""

    def first(self, common: Tensor) -> Tensor:
        """[k] the shared numbers of the common start."""

    def own(self, common: Tensor) -> Tensor:
        """[rest] its personal numbers."""

    def join(self, s: Tensor, p: Tensor) -> Tensor:
        """[P] the weights."""

    def pull_back(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of s and of p."""

    def published(self, shared: Tensor) -> Tensor:
        """[vectors, P] the weights of shared models."""

    def to(self, device: torch.device, dtype: torch.dtype) -> Any:
        """The same map on another device."""


def joining(part: Part) -> Callable[[Tensor], Tensor]:
    """From the shared and the personal numbers in one vector to the weights."""
    return lambda numbers: part.join(numbers[: part.size], numbers[part.size :])


def sizes_of_numbers(part: Part, scales: Tensor) -> Tensor:
    """The sizes of the shared and the personal numbers, from those of the weights [P]. Along
    directions, each number moves as much as all do on average."""
    if part.rest:
        return torch.cat(part.pull_back(scales))
    usual: Tensor = scales.norm() / math.sqrt(part.size)
    return usual
