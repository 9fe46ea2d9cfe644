"""Check what an algorithm tells the server, before any row is read and anything is spent.

Without it, a wrong value is found where it is used: that of `published` only after the last round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.billboard import Billboard
from pmtl.errors import PmtlError, kind_of
from pmtl.models import FlatModel, Layout


def bound(
    algorithm: Algorithm, layout: Layout, device: torch.device, dtype: torch.dtype
) -> Algorithm:
    """The algorithm for a model with this layout (`bind`), with its own tensors on the device, as
    `dtype`."""
    wanted = "an algorithm, as replace(self, …) makes one"
    made = algorithm.bind(layout)
    _need(algorithm, "bind", wanted, made, isinstance(made, Algorithm))
    moved = made.to(device, dtype)
    _need(algorithm, "to", wanted, moved, isinstance(moved, Algorithm))
    return moved


def check_hooks(algorithm: Algorithm, model: FlatModel, clients: tuple[str, ...]) -> None:
    """Refuse an algorithm whose functions for the server return something that the server cannot
    use. Of an exact algorithm, whose billboard may be anything, only a part is tried.

    Args:
        algorithm: the algorithm, bound to the model's layout and on the model's device.
        model: the model that it trains.
        clients: the names of all clients.
    """
    blocks = algorithm.blocks(clients)
    wanted = f"a NumPy array of {len(clients)} whole numbers that are not negative"
    _need(algorithm, "blocks", wanted, blocks, _are_numbers(blocks, len(clients)))
    board = algorithm.billboard(clients)
    _need(algorithm, "billboard", "a Billboard", board, isinstance(board, Billboard))
    common = algorithm.billboard_start(model.start())
    if algorithm.exact:
        one = isinstance(common, Tensor) and common.dim() == 1
        _need(algorithm, "billboard_start", "a tensor of one dimension", common, one)
        return
    size = algorithm.billboard_size(model.layout)
    _need(algorithm, "billboard_size", "a whole number", size, _is_count(size))
    _need_shape(algorithm, "billboard_start", common, (size,))
    first = board.first(common)
    _need_shape(algorithm, "published", algorithm.published(first), (len(first), model.size))
    upload = algorithm.upload_size(0)
    wanted = "a whole number or None"
    _need(algorithm, "upload_size", wanted, upload, upload is None or _is_count(upload))
    memory = algorithm.server_start(first)
    kept = isinstance(memory, dict) and all(isinstance(part, Tensor) for part in memory.values())
    _need(algorithm, "server_start", "a dictionary of tensors", memory, kept)
    spans = algorithm.target_spans(first)
    numbers = spans is None or np.asarray(spans).dtype.kind in "fiu"
    _need(algorithm, "target_spans", "a list of numbers or None", spans, numbers)


def _need_shape(algorithm: Algorithm, hook: str, found: object, shape: tuple[int, ...]) -> None:
    wanted = f"a tensor of shape {shape}"
    _need(algorithm, hook, wanted, found, isinstance(found, Tensor) and found.shape == shape)


def _need(algorithm: Algorithm, hook: str, wanted: str, found: object, right: bool) -> None:
    if not right:
        shape = f" of shape {tuple(found.shape)}" if isinstance(found, (Tensor, np.ndarray)) else ""
        raise PmtlError(
            f"{hook} of the algorithm {algorithm.name!r} must return {wanted}, but returned "
            f"{kind_of(found)}{shape}."
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 0


def _are_numbers(blocks: object, count: int) -> bool:
    if not isinstance(blocks, np.ndarray) or blocks.shape != (count,):
        return False
    return blocks.dtype.kind in "iu" and bool((blocks >= 0).all())
