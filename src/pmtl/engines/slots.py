"""The slot of each client in an array, in production.

A client's result must not depend on other clients, not even in its last bits: they would reveal
whether another client took part, or how many rows it has. The last bits of a sum depend on the
sizes of arrays and on the slot of a row in them. Therefore

- the *shape* of a client's arrays (rows of a batch, number of steps, columns of sparse rows, each
  rounded up) depends on its own rows and the settings only;
- clients of one shape are computed together in an array of a *width* that depends on the shape and
  the settings only. Client number k always has the slot k mod width. Two clients with the same
  slot are computed one after the other. Other slots stay empty.

This needs models whose result in one slot does not depend on the other slots (`axis_is_safe`).
Every other model is computed for one client at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from pmtl.engines.base import Ints, Mask
from pmtl.models import FlatModel
from pmtl.models.hog import HogLinear
from pmtl.models.library import MLP, CelebaCNN, FemnistCNN, Linear

#: Rows, steps and columns of a client's arrays.
Shape = tuple[int, ...]

#: Models that use products, sums and comparisons only. On a CPU, a vectorised function (such as a
#: sine) may take another code path for all of its numbers if one is large; a GPU computes each
#: number separately.
_SAFE, _SAFE_ON_GPU = (Linear, MLP), (Linear, MLP, FemnistCNN, CelebaCNN, HogLinear)
#: Layers from which safe models can be built, and the files of PyTorch with further such layers on
#: a GPU.
_SAFE_LAYERS = (nn.Sequential, nn.Linear, nn.ReLU, nn.Flatten, nn.Identity)
_SAFE_FILES_ON_GPU = ("linear", "activation", "conv", "pooling", "normalization", "padding")


def axis_is_safe(model: FlatModel, device: torch.device) -> bool:
    """Whether many clients may be computed in one array in production."""
    gpu = device.type == "cuda"
    if type(model.module) in (_SAFE_ON_GPU if gpu else _SAFE):
        return True
    return not model.traits.looks_up and all(
        _layer_is_safe(part, gpu) for part in model.module.modules()
    )


def _layer_is_safe(layer: nn.Module, gpu: bool) -> bool:
    if layer._forward_hooks or layer._forward_pre_hooks:
        return False  # Hooks may do anything.
    file = type(layer).__module__.removeprefix("torch.nn.modules.")
    on_gpu = file in _SAFE_FILES_ON_GPU and not isinstance(layer, nn.MultiheadAttention)
    return type(layer) in _SAFE_LAYERS or (gpu and on_gpu)


def is_library_algorithm(algorithm: object) -> bool:
    """Whether an algorithm belongs to this library, whose steps are all safe on the client axis."""
    parts = (algorithm, getattr(algorithm, "inner", algorithm))  # `sharing/` wraps an algorithm.
    packages = {type(part).__module__.partition(".")[0] for part in parts}
    return packages == {__name__.partition(".")[0]}


def assign_slots(
    clients: Ints, shapes: Ints, width: Callable[[Shape], int | None]
) -> Iterator[tuple[Shape, Ints, Mask]]:
    """The arrays in which clients are computed: the shape of each and, for each of its slots, the
    position in `clients` of the client there, and whether the slot is filled. An empty slot repeats
    one of the clients.

    `shapes` [K, n] are the clients' own. A width of None means that clients do not share an array:
    then all clients of the shape come at once, without empty slots.
    """
    for shape in np.unique(shapes, axis=0):
        members = np.flatnonzero((shapes == shape).all(axis=1))
        own_shape = tuple(shape.tolist())
        slots_per_array = width(own_shape)
        if slots_per_array is None:
            yield own_shape, members, np.ones(len(members), dtype=bool)
            continue
        slot = clients[members] % slots_per_array
        waiting = np.ones(len(members), dtype=bool)
        while waiting.any():
            slots = np.full(slots_per_array, -1, dtype=np.int64)
            _, first = np.unique(slot[waiting], return_index=True)
            now = np.flatnonzero(waiting)[first]
            slots[slot[now]] = members[now]
            waiting[now] = False
            filled = slots >= 0
            yield own_shape, np.where(filled, slots, slots[filled][0]), filled
