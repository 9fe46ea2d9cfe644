"""A public start: weights from a file, matched by name, and parts that are not trained."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from pmtl.errors import PmtlError, listed
from pmtl.spec import unknown

#: How many names a sentence lists.
_NAMES = 6


def load_start(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors into the module's parameters and buffers of the same names.

    Names that only one of them has are ignored (`start_warnings`). At least one name must match,
    and matching tensors must have the same shape.
    """
    present = module.state_dict()
    matched = [name for name in present if name in tensors]
    if not matched:
        raise PmtlError(
            "The start does not fit the model: none of its tensors has the name of a parameter. "
            f"The model has {listed([*present], _NAMES)}; the start has "
            f"{listed([*tensors], _NAMES) or 'no tensors'}."
        )
    for name in matched:
        value, place, wrong = tensors[name], present[name], ""
        shape, needed = tuple(value.shape), tuple(place.shape)
        if shape != needed:
            wrong = f"has the shape {shape}, but the model needs {needed}"
        elif value.is_floating_point() != place.is_floating_point():
            wrong = f"is of type {value.dtype}, but the model needs {place.dtype}"
        else:
            with torch.no_grad():
                place.copy_(value)
            if place.is_floating_point() and not bool(place.isfinite().all()):
                wrong = "is too large for it"
        if wrong:
            raise PmtlError(f"The start does not fit the model: {name!r} {wrong}.")


def start_warnings(module: nn.Module, tensors: Mapping[str, Tensor]) -> list[str]:
    """Sentences about names that only the module or only the start has."""
    present = module.state_dict()
    missing = [name for name in present if name not in tensors]
    unused = [name for name in tensors if name not in present]
    sentences = []
    if missing:
        sentences.append(
            f"The start has nothing for {len(missing)} of the {len(present)} tensors of the model: "
            f"{listed(missing, _NAMES)}. They begin as they would without it."
        )
    if unused:
        sentences.append(
            f"The model has no place for {len(unused)} of the {len(tensors)} tensors of the start: "
            f"{listed(unused, _NAMES)}. They are not used."
        )
    return sentences


def freeze(module: nn.Module, patterns: str) -> None:
    """Exclude from training the module's parameters whose names match one of the `patterns`: names
    joined by +, in which `*` matches any characters. Each must match one."""
    parameters = dict(module.named_parameters())
    for pattern in patterns.split("+"):
        matching = [name for name in parameters if fnmatchcase(name, pattern)]
        if not matching:
            raise unknown("parameter", pattern, parameters)
        for name in matching:
            parameters[name].requires_grad_(False)
