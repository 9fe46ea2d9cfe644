"""Where clients are computed in an array, in production: at places that follow from public numbers.

The last bits of a sum depend on the sizes of the arrays it is computed in and on where a row lies
in them. In production these must not depend on other clients: a client's model would then tell, in
its last bits, whether another client took part or how many rows it has. So

- the *shape* of a client's arrays (rows of a batch, number of steps, columns of sparse rows, each
  rounded up) follows from its own rows and the settings;
- clients of one shape are computed together in an array of a *width* that follows from the shape
  and the settings, and client number k always has the place k mod width in it. Two clients with the
  same place are computed one after the other. Places that are left stay empty.

What is computed at one place of an array does not depend on what is at the others. That is true of
the models that `axis_is_safe` knows; every other model is computed for one client at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from pmtl.engines.base import Ints
from pmtl.models import FlatModel
from pmtl.models.hog import HogLinear
from pmtl.models.library import MLP, CelebaCNN, FemnistCNN, Linear

#: What the arrays of a client look like: rows, steps and columns.
Shape = tuple[int, ...]

#: Models whose computation for one client does not depend on the other clients of the array:
#: products, sums and comparisons. On a CPU, a function of many numbers at a time (a sine, say) may
#: take another way for all of them if one is large; a graphics card computes each by itself.
_SAFE, _SAFE_ON_CARD = (Linear, MLP), (Linear, MLP, FemnistCNN, CelebaCNN, HogLinear)
#: Layers of which a model of the same kind can be put together, and the files of PyTorch whose
#: layers can on a card.
_SAFE_LAYERS = (nn.Sequential, nn.Linear, nn.ReLU, nn.Flatten, nn.Identity)
_SAFE_FILES_ON_CARD = ("linear", "activation", "conv", "pooling", "normalization", "padding")


def axis_is_safe(model: FlatModel, device: torch.device) -> bool:
    """Whether many clients may be computed in one array in production."""
    card = device.type == "cuda"
    if type(model.module) in (_SAFE_ON_CARD if card else _SAFE):
        return True
    return not model.traits.looks_up and all(
        _layer_is_safe(part, card) for part in model.module.modules()
    )


def _layer_is_safe(layer: nn.Module, card: bool) -> bool:
    if layer._forward_hooks or layer._forward_pre_hooks:
        return False  # They may do anything.
    file = type(layer).__module__.removeprefix("torch.nn.modules.")
    on_card = file in _SAFE_FILES_ON_CARD and not isinstance(layer, nn.MultiheadAttention)
    return type(layer) in _SAFE_LAYERS or (card and on_card)


def is_ours(algorithm: object) -> bool:
    """Whether an algorithm is one of this library, whose steps are known to allow the same."""
    return type(algorithm).__module__.partition(".")[0] == __name__.partition(".")[0]


def seated(
    clients: Ints, shapes: Ints, width: Callable[[Shape], int | None]
) -> Iterator[tuple[Shape, Ints]]:
    """Who is computed together: for each array its shape and, place by place, the position in
    `clients` of who is there, or -1.

    `shapes` [K, n] are the clients' own. With a width of None clients do not share an array, and
    any number of them come together, without empty places.
    """
    for shape in np.unique(shapes, axis=0):
        members = np.flatnonzero((shapes == shape).all(axis=1))
        own_shape = tuple(shape.tolist())
        wide = width(own_shape)
        if wide is None:
            yield own_shape, members
            continue
        place = clients[members] % wide
        order = np.argsort(place, kind="stable")
        first = np.searchsorted(place[order], place[order])
        turn = np.empty_like(place)
        turn[order] = np.arange(len(order)) - first
        for number in range(int(turn.max()) + 1):
            seats = np.full(wide, -1, dtype=np.int64)
            mine = turn == number
            seats[place[mine]] = members[mine]
            yield own_shape, seats
