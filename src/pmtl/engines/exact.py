"""Exact algorithms (`ExactAlgorithm`) for many clients: all their training rows, padded, in pieces
that fit in memory.

In production every client is computed alone, so that its result does not depend on the others, to
the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from pmtl.algorithms import ExactAlgorithm
from pmtl.engines.base import Ints
from pmtl.engines.feed import Feed, to_device
from pmtl.errors import PmtlError
from pmtl.models import FlatModel
from pmtl.models.linear.last_layer import last_layer
from pmtl.models.linear.solve import ClientRows

#: Floats in memory at a time, and how many penalties an algorithm may try.
_FLOATS, _PENALTIES = 16 * 2**20, 18


class ExactEngine:
    """Runs an exact algorithm on the rows of `feed`."""

    def __init__(
        self, algorithm: ExactAlgorithm, model: FlatModel, feed: Feed, one_by_one: bool
    ) -> None:
        layer = last_layer(model, feed.data.input_shape)
        if layer is None:
            raise PmtlError(f"The algorithm {algorithm.name!r} needs a linear model.")
        self._layer = layer
        self._algorithm = algorithm
        self._feed = feed
        self._train = feed.data.rows("train")
        self._one_by_one = one_by_one
        self._last: tuple[bytes, Tensor] | None = None

    def uploads(self, clients: Ints, around: Tensor, round: int) -> Tensor:
        """The uploads [K, U] of a round, not yet clipped; `around` [K, B] is what clients read."""
        key = clients.tobytes()
        if not (self._algorithm.repeats(round) and self._last is not None and self._last[0] == key):
            work = self._algorithm.work
            self._last = key, self._map(clients, around, lambda rows, read: work(rows, read, round))
        return self._last[1]

    def finish(self, clients: Ints, around: Tensor) -> Tensor:
        """What the clients own after the last release."""
        return self._map(clients, around, self._algorithm.finish)

    def rehearse(self, around: Tensor, rounds: int) -> None:
        """Run every stage on a client with two rows of zeros."""
        index = np.zeros((1, 2), dtype=np.int64)
        rows = self._rows(index, np.ones((1, 2), dtype=bool))
        rows = ClientRows(rows.task, torch.zeros_like(rows.x), torch.zeros_like(rows.y), rows.mask)
        for round in range(rounds):
            self._algorithm.work(rows, around, round)
        self._algorithm.finish(rows, around)

    def _map(
        self, clients: Ints, around: Tensor, function: Callable[[ClientRows, Tensor], Tensor]
    ) -> Tensor:
        parts, order = [], []
        with torch.no_grad():
            for positions in self._pieces(self._train.counts[clients]):
                some = clients[positions]
                rows = self._rows(*self._index(some))
                read = around[to_device(positions, around.device)]
                parts.append(function(rows, read).to(around.dtype))
                order.append(positions)
        back = np.argsort(np.concatenate(order))
        return torch.cat(parts)[to_device(back, around.device)]

    def _pieces(self, counts: Ints) -> Iterator[Ints]:
        """Positions of clients with about as many rows, as many as fit in memory."""
        if self._one_by_one:
            yield from np.arange(len(counts)).reshape(-1, 1)
            return
        order = np.argsort(-counts, kind="stable")
        outputs, d = self._feed.data.outputs, self._layer.columns + 1
        while len(order):
            n = max(1, int(counts[order[0]]))
            table = 2 * min(n, d) ** 2 + outputs * (6 * d + 4 * n) + n
            width = max(1, _FLOATS // (3 * n * d + _PENALTIES * table))
            # Padding is at most doubling: smaller clients wait for the next piece.
            width = min(width, max(1, int((2 * counts[order] >= n).sum())))
            yield order[:width]
            order = order[width:]

    def _index(self, clients: Ints) -> tuple[Ints, np.ndarray]:
        counts = self._train.counts[clients]
        size = max(1, int(counts.max()))
        real = np.arange(size) < counts[:, None]
        index = np.zeros(real.shape, dtype=np.int64)
        index[real] = np.concatenate([self._train.of(int(client)) for client in clients])
        return index, real

    def _rows(self, index: Ints, real: np.ndarray) -> ClientRows:
        inputs, targets = self._feed.rows(index)
        data = self._feed.data
        mask = to_device(real, self._feed.device)
        return self._layer.rows(data.task, data.outputs, inputs, targets, mask)
