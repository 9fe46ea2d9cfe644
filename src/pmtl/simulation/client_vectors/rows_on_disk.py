"""The clients' vectors in a file. A crash at any time leaves the last checkpoint intact.

The file consists of slots. A slot that the last checkpoint names is never written to: a client that
trains again gets another slot, and its old slot becomes free when the *next* checkpoint is on disk
(shadow paging: Lorie, "Physical integrity in a large segmented database", TODS 1977). So a
checkpoint writes what changed and a table of slots, and a client has at most two slots. The table
has a digest of every vector. The checkpoint's own digest covers the table, and so all vectors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.data.disk import temporary_file
from pmtl.errors import PmtlError
from pmtl.simulation.client_vectors.row_file import DIGEST_BYTES, RowFile, private
from pmtl.storage import disk_errors

Places = NDArray[np.int64]

#: In how many parts a file is checked on resuming; progress is reported after each.
CHECKS = 100


class DiskRows:
    """Vectors in slots of a file; without a path it is temporary."""

    where = "disk"

    def __init__(self, width: int, dtype: torch.dtype, path: Path | None) -> None:
        self._width = width
        self._dtype = dtype
        self._path = path
        self._opened: RowFile | None = None
        self._slots = 0  # The number of slots of the file.
        self._free: list[int] = []
        self._fresh: set[int] = set()  # Written since the last checkpoint.
        self._retired: list[int] = []  # Named by the last checkpoint, but not by the next one.
        self._digests = np.zeros((0, DIGEST_BYTES), dtype=np.uint8)

    def read(self, places: Places) -> Tensor:
        return self._file.read(places)

    def write(self, places: Places, rows: Tensor) -> Places:
        """Replace the vectors in these slots (-1: a new one); returns their slots now."""
        now = np.array([self._slot_for(place) for place in places.tolist()], dtype=np.int64)
        self._file.write(now, rows)
        return now

    def snapshot(self, places: Places) -> dict[str, Tensor]:
        """The tensors about these slots for a checkpoint; the slots are flushed to disk."""
        fresh = np.array(sorted(self._fresh), dtype=np.int64)
        more = self._slots - len(self._digests)
        self._digests = np.pad(self._digests, ((0, more), (0, 0)))
        for some, digests in self._file.digests(fresh):
            self._digests[some] = digests
        self._file.sync()
        return {
            "slots": torch.from_numpy(places.copy()),
            "digests": torch.from_numpy(self._digests[places]),
        }

    def checkpoint_saved(self) -> None:
        """The last snapshot's checkpoint is on disk: free the slots that it does not name."""
        self._free += self._retired
        self._retired = []
        self._fresh.clear()

    def restore(self, parts: Mapping[str, Tensor], checked: Callable[[], None]) -> Places:
        """Continue from a checkpoint, after comparing every vector with its digest."""
        places, digests = parts["slots"].numpy(), parts["digests"].numpy()
        if len(np.unique(places)) != len(places) or (len(places) and places.min() < 0):
            raise PmtlError(f"The checkpoint of {self._path} is damaged: two vectors share a slot.")
        self._opened = self._open("r+b")
        self._slots = int(places.max(initial=-1)) + 1
        self._digests = np.zeros((self._slots, DIGEST_BYTES), dtype=np.uint8)
        self._digests[places] = digests
        for part in np.array_split(np.sort(places), CHECKS):
            for some, found in self._file.digests(part):
                if not np.array_equal(found, self._digests[some]):
                    raise PmtlError(
                        f"{self._path} is damaged: the vector of a client is not the one that was "
                        "written. Restore the file from a copy, or start a new run."
                    )
            checked()
        self._free = np.setdiff1d(np.arange(self._slots), places)[::-1].tolist()
        return places

    def _slot_for(self, place: int) -> int:
        if place in self._fresh:
            return place
        if place >= 0:
            self._retired.append(place)
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._slots = self._slots, self._slots + 1
        self._fresh.add(slot)
        return slot

    @property
    def _file(self) -> RowFile:
        if self._opened is None:  # A new run: an older file is overwritten.
            self._opened = self._open("w+b")
        return self._opened

    def _open(self, mode: str) -> RowFile:
        file: IO[bytes]
        if self._path is None:
            file = temporary_file()
        else:
            if mode == "r+b" and not self._path.exists():
                raise PmtlError(
                    f"{self._path} is missing: it holds the vectors that the checkpoint refers to."
                )
            with disk_errors(self._path, "opened"):
                file = open(self._path, mode, buffering=0, opener=private)  # noqa: SIM115
        weakref.finalize(self, file.close)
        return RowFile(file, self._width, self._dtype)
