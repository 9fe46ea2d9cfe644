"""Exact algorithms (`ExactAlgorithm`) for many clients: all their training rows, padded, in pieces
that fit in memory.

In production every client is computed separately, so that its result does not depend on other
clients, to the last bit; or, if the model allows it, in its own slot of an array (`slots.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pmtl.algorithms import ExactAlgorithm
from pmtl.client.batches import power_of_two
from pmtl.engines.base import Ints, Mask, by_size
from pmtl.engines.loops import training_error
from pmtl.engines.row_tensors import RowTensors, to_device
from pmtl.engines.slots import Shape, assign_slots
from pmtl.models import FlatModel
from pmtl.models.linear.solve import ClientRows

#: Floats in memory at a time, and the most slots of an array in production.
PIECE_FLOATS, _MOST_SLOTS = 16 * 2**20, 64
#: On a GPU: one float per this many bytes of its memory, if that is more than `PIECE_FLOATS`. A GPU
#: computes a few large arrays faster than many small ones.
_GPU_BYTES = 64


class ExactEngine:
    """Runs an exact algorithm on the rows of `tensors`."""

    def __init__(
        self,
        algorithm: ExactAlgorithm,
        model: FlatModel,
        tensors: RowTensors,
        one_by_one: bool,
        in_slots: bool = False,
        debug: bool = False,
    ) -> None:
        """`one_by_one` computes one client at a time; `in_slots` gives each client a slot of an
        array (`slots.py`). With `debug`, which needs `one_by_one`, an error names the client and
        the stage that failed."""
        self._reader = algorithm.reader(model, tensors.data.input_shape)
        self._algorithm = algorithm
        self._tensors = tensors
        self._train = tensors.data.rows("train")
        self._one_by_one = one_by_one
        self._in_slots = in_slots
        self._debug = debug
        self._kept: dict[bytes, Tensor] = {}  # by clients: uploads of a release that is repeated
        self._kept_round = -1

    def uploads(self, clients: Ints, shared: Tensor, round: int) -> Tensor:
        """The uploads [K, U] of a round, not yet clipped; the clients read `shared` [K, B]."""
        compute, first = self._algorithm.compute_uploads, round
        while self._algorithm.repeats(first):
            first -= 1
        if first != self._kept_round:
            self._kept, self._kept_round = {}, first
        key = clients.tobytes()  # The last bits depend on which clients are computed together.
        if key in self._kept:
            return self._kept[key]
        stage = f"compute_uploads, round {round}"
        made = self._map(stage, clients, shared, lambda rows, read, _: compute(rows, read, round))
        if self._algorithm.repeats(first + 1):
            self._kept[key] = made
        return made

    def finish(self, clients: Ints, shared: Tensor) -> Tensor:
        """The clients' own vectors after the last release."""
        counts, last = self._train.counts[clients], shared.new_zeros(len(clients), 0)
        if self._algorithm.uses_last_upload:
            final = self._algorithm.releases - 1
            size = self._algorithm.upload_size(final) or shared.shape[1]
            last = shared.new_zeros(len(clients), size)
            # As in the round, in which clients without rows are left out.
            for some in (counts > 0, counts == 0):
                if some.any():
                    where = to_device(some, shared.device)
                    last[where] = self.uploads(clients[some], shared[where], final)
        return self._map("finish", clients, shared, self._algorithm.finish_after, last)

    def dry_run(self, shared: Tensor, rounds: int) -> None:
        """Run every stage on a client with two rows of zeros."""
        index = np.zeros((1, 2), dtype=np.int64)
        rows = self._rows(index, np.ones((1, 2), dtype=bool))
        rows = replace(rows, x=torch.zeros_like(rows.x), y=torch.zeros_like(rows.y))
        for round in range(rounds):
            self._algorithm.compute_uploads(rows, shared, round)
        self._algorithm.finish(rows, shared)

    def _map(
        self,
        stage: str,
        clients: Ints,
        shared: Tensor,
        function: Callable[[ClientRows, Tensor, Tensor], Tensor],
        last: Tensor | None = None,
    ) -> Tensor:
        last = shared.new_zeros(len(clients), 0) if last is None else last
        parts, order = [], []
        with torch.no_grad():
            for who, filled, size in self._arrays(clients):
                index, real = self._index(clients[who], size)
                real[~filled] = False
                place = to_device(who, shared.device)
                try:
                    made = function(self._rows(index, real), shared[place], last[place])
                except (Exception, SystemExit) as error:
                    if not self._debug:
                        raise
                    name = self._tensors.data.clients[clients[who[0]]]
                    raise training_error(name, stage, error) from error
                parts.append(made[to_device(filled, made.device)].to(shared.dtype))
                order.append(who[filled])
        back = np.argsort(np.concatenate(order))
        return torch.cat(parts)[to_device(back, shared.device)]

    def _arrays(self, clients: Ints) -> Iterator[tuple[Ints, Mask, int]]:
        """Positions of the clients of each array, which of its slots are filled, and its rows."""
        counts = np.maximum(1, self._train.counts[clients])
        if not self._in_slots:
            for some in self.pieces(counts):
                yield some, np.ones(len(some), dtype=bool), int(counts[some].max())
            return
        rows = power_of_two(counts).reshape(-1, 1)
        for shape, who, filled in assign_slots(clients, rows, self._slots):
            yield who, filled, shape[0]

    def _slots(self, shape: Shape) -> int:
        """How many clients are computed together in production, with `shape[0]` rows each."""
        width = PIECE_FLOATS // self._reader.floats(shape[0], self._tensors.data.outputs)
        return 1 << (max(1, min(_MOST_SLOTS, width)).bit_length() - 1)

    def pieces(self, counts: Ints) -> Iterator[Ints]:
        """Positions of clients with similar numbers of rows, as many as fit in memory."""
        if self._one_by_one:
            yield from np.arange(len(counts)).reshape(-1, 1)
            return
        floats, outputs = PIECE_FLOATS, self._tensors.data.outputs
        if self._tensors.device.type == "cuda":
            floats = max(floats, torch.cuda.mem_get_info(self._tensors.device)[1] // _GPU_BYTES)
        yield from by_size(counts, lambda rows: floats // self._reader.floats(rows, outputs))

    def _index(self, clients: Ints, size: int) -> tuple[Ints, Mask]:
        counts = self._train.counts[clients]
        real = np.arange(size) < counts[:, None]
        index = np.zeros(real.shape, dtype=np.int64)
        index[real] = np.concatenate([self._train.of(int(client)) for client in clients])
        return index, real

    def _rows(self, index: Ints, real: Mask) -> ClientRows:
        inputs, targets = self._tensors.rows(index)
        data = self._tensors.data
        mask = to_device(real, self._tensors.device)
        return self._reader.rows(
            data.task, data.outputs, inputs, targets, mask, self._tensors.is_sparse
        )
