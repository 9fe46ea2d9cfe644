"""What a model's vector is made of: an immutable description.

Everything that clips, averages, stores or adds noise works on one flat vector. A layout says which
parameter lies where in it, which parameters are frozen (part of the function, not of the vector),
and what an engine has to know of the model before it runs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from pmtl.errors import PmtlError
from pmtl.spec import unknown


@dataclass(frozen=True)
class Traits:
    """What an engine has to know of a model. Found out once, when the model is built."""

    random_forward: bool  #: a forward pass in training draws random numbers (dropout)
    looks_up: bool  #: it looks rows up in tables (`models/lookup.py`)

    @classmethod
    def of(cls, module: nn.Module) -> Traits:
        """What the layers of a module say by themselves; `build_model` also tries it out."""
        dropouts = (nn.modules.dropout._DropoutNd, nn.RReLU)
        return cls(
            random_forward=any(isinstance(part, dropouts) for part in module.modules()),
            looks_up=any(isinstance(part, nn.Embedding) for part in module.modules()),
        )


@dataclass(frozen=True)
class Parameter:
    """One tensor of a model, and its place in the vector."""

    name: str
    shape: tuple[int, ...]
    first: int  #: the place of its first number in the vector

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def place(self) -> slice:
        """Its numbers in the vector."""
        return slice(self.first, self.first + self.size)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of a model's parameters."""

    parameters: tuple[Parameter, ...]  #: the trained ones, in the order of the vector
    frozen: tuple[str, ...]  #: names of those that are not trained, and not in the vector
    traits: Traits

    @classmethod
    def of(cls, module: nn.Module, traits: Traits) -> Layout:
        """The layout of a module: what has `requires_grad` is trained."""
        named = list(module.named_parameters())
        parameters, first = [], 0
        for name, value in named:
            if value.requires_grad:
                parameters.append(Parameter(name, tuple(value.shape), first))
                first += value.numel()
        return cls(
            tuple(parameters), tuple(n for n, value in named if not value.requires_grad), traits
        )

    @property
    def size(self) -> int:
        """P, the length of the vector."""
        return sum(parameter.size for parameter in self.parameters)

    def cut(self, vector: Tensor) -> dict[str, Tensor]:
        """The vector cut into named tensors (views, no copy)."""
        # One split, because its derivative is one concatenation: one pass over memory instead of
        # one for each layer.
        pieces = torch.split(vector, [parameter.size for parameter in self.parameters])
        pairs = zip(self.parameters, pieces, strict=True)
        return {parameter.name: piece.view(parameter.shape) for parameter, piece in pairs}

    def mask(self, patterns: Sequence[str]) -> Tensor:
        """`[P]`, true where the parameter's name fits one of the patterns (`head.*`).

        Args:
            patterns: names, in which `*` stands for any characters. Each has to fit a parameter.
        """
        names = [parameter.name for parameter in self.parameters]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise unknown("trained parameter", pattern, names)
        mask = torch.zeros(self.size, dtype=torch.bool)
        for parameter in self.parameters:
            if any(fnmatchcase(parameter.name, pattern) for pattern in patterns):
                mask[parameter.place] = True
        return mask


def refuse_empty(layout: Layout, name: str) -> None:
    """Refuse a model without a parameter to train."""
    if not layout.parameters:
        raise PmtlError(f"The model {name!r} has no free parameters: there is nothing to train.")
