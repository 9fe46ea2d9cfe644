"""The clients' own vectors between rounds.

All clients begin with the common start, which is stored once: a client that was never sampled takes
no space. A client gets a row when it is first written, and no client can write to another's row.
The rows of all clients that a run is expected to sample are kept where they fit: on the training
device, in main memory, or in a file (`rows_on_disk.py`). The time to read and write a cohort's rows
does not depend on the number of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.data.disk import memory_limit
from pmtl.engines.row_tensors import to_device
from pmtl.errors import PmtlError
from pmtl.simulation.client_vectors.rows_on_disk import DiskRows

Clients = NDArray[np.int64]
Places = NDArray[np.int64]


class MemoryRows:
    """The clients' vectors in one array that grows with the number of clients seen. It has the
    methods of `DiskRows`; a place is a row number."""

    where = "memory"

    def __init__(self, rows: Tensor, most: int) -> None:
        self._rows = rows
        self._count = len(rows)
        self._most = most

    def read(self, places: Places) -> Tensor:
        return self._rows[self._index(places)]

    def write(self, places: Places, rows: Tensor) -> Places:
        new = places < 0
        now = places.copy()
        now[new] = self._count + np.arange(int(new.sum()))
        self._count += int(new.sum())
        if self._count > len(self._rows):
            # Doubled, so that growing costs a constant time per row.
            capacity = min(self._most, max(self._count, 2 * len(self._rows)))
            larger = self._rows.new_empty((capacity, self._rows.shape[1]))
            larger[: len(self._rows)] = self._rows
            self._rows = larger
        self._rows[self._index(now)] = rows.to(self._rows)
        return now

    def snapshot(self, places: Places) -> dict[str, Tensor]:
        return {"owned": self._rows[: self._count]}

    def checkpoint_saved(self) -> None:
        return None

    def _index(self, places: Places) -> Tensor:
        return to_device(places, self._rows.device)


class Store:
    """The vectors of `m` clients, gathered for a cohort and scattered back. At first all clients
    hold `start`.

    If the rows of the `expected` number of clients (all, unless given) do not fit in memory, they
    go to `file`, or to a temporary file.
    """

    def __init__(
        self, m: int, start: Tensor, expected: float | None = None, file: Path | None = None
    ) -> None:
        self.m = m
        self.start = start  #: [own], the common start
        self._file = file
        self._place = np.full(m, -1, dtype=np.int64)
        self._rows: MemoryRows | DiskRows
        device = _device_for(start, m if expected is None else expected)
        if device is None:
            self._rows = DiskRows(len(start), start.dtype, file)
        else:
            self._rows = MemoryRows(start.new_empty((0, len(start)), device=device), m)

    @property
    def where(self) -> str:
        """`memory` or `disk`."""
        return self._rows.where

    @property
    def seen(self) -> Clients:
        """The clients that have a row, in order."""
        return np.flatnonzero(self._place >= 0)

    @property
    def vectors(self) -> Tensor:
        """A copy `[m, own]` of all clients' own vectors, for small federations."""
        return self.gather(np.arange(self.m))

    def gather(self, clients: Clients) -> Tensor:
        """A copy `[K, own]` of the clients' own vectors."""
        places = self._place[clients]
        known = places >= 0
        if known.all() and len(known):
            return self._rows.read(places).to(self.start.device)
        own = self.start.repeat(len(clients), 1)
        if known.any():
            rows = self._rows.read(places[known])
            own[torch.from_numpy(known).to(own.device)] = rows.to(own.device)
        return own

    def scatter(self, clients: Clients, rows: Tensor) -> None:
        """Replace the clients' own vectors."""
        if len(self.start) and len(clients):
            self._place[clients] = self._rows.write(self._place[clients], rows)

    def snapshot(self) -> dict[str, Tensor]:
        """The tensors for a checkpoint; everything else is flushed to disk."""
        seen = self.seen
        seen = seen[np.argsort(self._place[seen], kind="stable")]
        return {"clients": torch.from_numpy(seen), **self._rows.snapshot(self._place[seen])}

    def checkpoint_saved(self) -> None:
        """To be called when the last snapshot's checkpoint is on disk."""
        self._rows.checkpoint_saved()

    def restore(
        self, parts: Mapping[str, Tensor], checked: Callable[[], None] = lambda: None
    ) -> None:
        """Continue from a snapshot, in a fresh store.

        `checked` is called `CHECKS` times while the vectors in a file are checked. Vectors that a
        checkpoint left in a file stay there; others are stored where they fit.
        """
        clients = parts["clients"].numpy()
        if len(clients) and not 0 <= clients.min() <= clients.max() < self.m:
            raise PmtlError(f"The checkpoint does not fit this run of {self.m} clients.")
        if "slots" in parts:
            rows = DiskRows(len(self.start), self.start.dtype, self._file)
            self._place[clients] = rows.restore(parts, checked)
            self._rows = rows
            return
        if parts["owned"].shape != (len(clients), len(self.start)):
            raise PmtlError(
                "The checkpoint does not fit this run: its vectors are not of length "
                f"{len(self.start)}."
            )
        self.scatter(clients, parts["owned"])


def _device_for(start: Tensor, expected: float) -> torch.device | None:
    """The device with memory for `expected` vectors: the training device, the CPU, or None."""
    needed = expected * start.nbytes
    if start.is_cuda and 4 * needed <= torch.cuda.get_device_properties(start.device).total_memory:
        return start.device
    return torch.device("cpu") if needed <= memory_limit() else None
