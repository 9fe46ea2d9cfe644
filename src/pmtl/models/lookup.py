"""Embedding lookups that give NaN for an index outside the client's own table.

`torch.func.vmap` concatenates the tables of all clients and checks an index against the whole: an
index beyond a client's own table, or below zero, reads *another* client's weights, and its gradient
changes them. With NaN instead, the client's loss and upload are NaN, the gate counts the upload as
zero, and no other client is affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Lookups(TorchFunctionMode):
    """In this context `functional.embedding` checks its indices; `seen`: whether it was called."""

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
