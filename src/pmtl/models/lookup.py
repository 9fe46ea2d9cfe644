"""Rows of a table, for indices that are in it.

`torch.func.vmap` lays the tables of all clients end to end before it looks anything up, and checks
an index against the whole: one beyond a client's own table, or below zero, reads the *next*
client's weights, and its gradient moves them. (Every other way of indexing we tried is checked
against the client's own.) So a lookup of ours gives NaN for such an index. The client's loss and
upload are then NaN, too, the gate counts them as zero, and no other client is affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Lookups(TorchFunctionMode):
    """Within this, `functional.embedding` keeps to its table; `seen` tells if it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function is not functional.embedding:
            return function(*args, **(kwargs or {}))
        self.seen = True
        return _embedding(*args, **(kwargs or {}))


def _embedding(input: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Tensor:
    inside = (input >= 0) & (input < weight.shape[0])
    rows = functional.embedding(torch.where(inside, input, 0), weight, *rest, **options)
    return torch.where(inside.unsqueeze(-1), rows, torch.nan)
