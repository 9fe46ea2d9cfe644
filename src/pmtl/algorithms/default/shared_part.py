"""The interface between an algorithm and the shared part of a model (`sharing/`)."""

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
    def personal_size(self) -> int:
        """How many numbers are personal."""

    def first(self, common: Tensor) -> Tensor:
        """[k] the shared numbers of the common start."""

    def own(self, common: Tensor) -> Tensor:
        """[personal_size] the personal numbers of the common start."""

    def join(self, s: Tensor, p: Tensor) -> Tensor:
        """[P] the weights."""

    def pull_back(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of s and of p."""

    def published(self, shared: Tensor) -> Tensor:
        """[vectors, P] the weights of shared models."""

    def to(self, device: torch.device, dtype: torch.dtype) -> Any:
        """The same map on another device."""


def join_function(part: Part) -> Callable[[Tensor], Tensor]:
    """A function from the vector (shared numbers, personal numbers) to the weights."""
    return lambda numbers: part.join(numbers[: part.size], numbers[part.size :])


def number_scales(part: Part, scales: Tensor) -> Tensor:
    """The sizes of the shared and the personal numbers, from the sizes of the weights [P]. Numbers
    along directions all get the same size."""
    if part.personal_size:
        return torch.cat(part.pull_back(scales))
    usual: Tensor = scales.norm() / math.sqrt(part.size)
    return usual
