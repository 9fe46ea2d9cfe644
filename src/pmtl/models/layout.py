"""The layout of a model's flat vector: an immutable description.

It says where in the vector each parameter is, which parameters are frozen (part of the function,
not of the vector), and the traits that engines need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from pmtl.spec import unknown


@dataclass(frozen=True)
class Traits:
    """What engines need to know about a model; determined when the model is built."""

    random_forward: bool  #: a forward pass in training draws random numbers (dropout)
    looks_up: bool  #: it looks rows up in tables (`models/lookup.py`)

    @classmethod
    def of(cls, module: nn.Module) -> Traits:
        """The traits that follow from a module's layers; `build_model` also runs it."""
        dropouts = (nn.modules.dropout._DropoutNd, nn.RReLU)
        return cls(
            random_forward=any(isinstance(part, dropouts) for part in module.modules()),
            looks_up=any(isinstance(part, nn.Embedding) for part in module.modules()),
        )


@dataclass(frozen=True)
class Parameter:
    """One tensor of a model, and its position in the vector."""

    name: str
    shape: tuple[int, ...]
    first: int  #: the index of its first number in the vector

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def place(self) -> slice:
        """Where its numbers are in the vector."""
        return slice(self.first, self.first + self.size)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and positions of a model's parameters."""

    parameters: tuple[Parameter, ...]  #: the trained parameters, in the order of the vector
    frozen: tuple[str, ...]  #: names of parameters that are not trained and not in the vector
    traits: Traits  #: what engines need to know about the model

    @classmethod
    def of(cls, module: nn.Module, traits: Traits) -> Layout:
        """The layout of a module. Parameters with `requires_grad` are trained.

        Args:
            module: the module.
            traits: what engines need to know about it.
        """
        parameters: list[Parameter] = []
        frozen: list[str] = []
        first = 0
        for name, value in module.named_parameters():
            if value.requires_grad:
                parameters.append(Parameter(name, tuple(value.shape), first))
                first += value.numel()
            else:
                frozen.append(name)
        return cls(tuple(parameters), tuple(frozen), traits)

    @property
    def size(self) -> int:
        """P, the length of the vector."""
        return sum(parameter.size for parameter in self.parameters)

    def cut(self, vector: Tensor) -> dict[str, Tensor]:
        """The vector cut into named tensors (views, no copy).

        Args:
            vector: `[P]`, the weights.
        """
        # One split: its derivative is one concatenation, so memory is passed over only once.
        pieces = torch.split(vector, [parameter.size for parameter in self.parameters])
        pairs = zip(self.parameters, pieces, strict=True)
        return {parameter.name: piece.view(parameter.shape) for parameter, piece in pairs}

    def mask(self, patterns: Sequence[str]) -> Tensor:
        """`[P]`, true where the parameter's name matches one of the patterns (`head.*`).

        Args:
            patterns: names, in which `*` matches any characters. Each must match a parameter.
        """
        mask = torch.zeros(self.size, dtype=torch.bool)
        for pattern in patterns:
            matching = [each for each in self.parameters if fnmatchcase(each.name, pattern)]
            if not matching:
                names = [parameter.name for parameter in self.parameters]
                raise unknown("trained parameter", pattern, names)
            for parameter in matching:
                mask[parameter.place] = True
        return mask
