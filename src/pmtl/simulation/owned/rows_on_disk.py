"""The clients' vectors in a file, so that a crash at any instant leaves the last checkpoint whole.

The file is a row of slots. A slot that the last checkpoint names is never written to: a client that
trains again gets another slot, and its old one becomes free when the *next* checkpoint is on disk
(shadow paging, as in Lorie, "Physical integrity in a large segmented database", TODS 1977). So a
checkpoint writes what changed and a table of where everything lies, not the whole store; and it
has at most two slots per client, one that is safe and one that is being worked on.

The table carries a digest of every vector. The checkpoint's own digest covers the table, and so
all vectors, without reading them again.
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

from pmtl.data.disk import nameless_file
from pmtl.errors import PmtlError
from pmtl.simulation.owned.row_file import DIGEST_BYTES, RowFile, private

Places = NDArray[np.int64]

#: In how many parts a file is checked when a run goes on; after each its progress can be told.
CHECKS = 100


class DiskRows:
    """Vectors in slots of a file; without a name the file goes with the process."""

    where = "disk"

    def __init__(self, width: int, dtype: torch.dtype, path: Path | None) -> None:
        self._width = width
        self._dtype = dtype
        self._path = path
        self._opened: RowFile | None = None
        self._slots = 0  # How many the file has; what follows is about their numbers.
        self._free: list[int] = []
        self._fresh: set[int] = set()  # Written since the last checkpoint, which knows them not.
        self._retired: list[int] = []  # Named by the last checkpoint, and by none that follows.
        self._digests = np.zeros((0, DIGEST_BYTES), dtype=np.uint8)

    def read(self, places: Places) -> Tensor:
        """The vectors in these slots."""
        return self._file.read(places)

    def write(self, places: Places, rows: Tensor) -> Places:
        """Replace the vectors in these slots (-1: a new one); returns where they lie now."""
        now = np.array([self._slot_for(place) for place in places.tolist()], dtype=np.int64)
        self._file.write(now, rows)
        return now

    def snapshot(self, places: Places) -> dict[str, Tensor]:
        """What a checkpoint keeps of these slots; when this returns, they are on the disk."""
        fresh = np.array(sorted(self._fresh), dtype=np.int64)
        if len(self._digests) < self._slots:
            more = np.zeros((self._slots - len(self._digests), DIGEST_BYTES), dtype=np.uint8)
            self._digests = np.concatenate([self._digests, more])
        for some, digests in self._file.digests(fresh):
            self._digests[some] = digests
        self._file.sync()
        return {
            "slots": torch.from_numpy(places.copy()),
            "digests": torch.from_numpy(self._digests[places]),
        }

    def settle(self) -> None:
        """The checkpoint of the last snapshot is on disk: what only older ones named is free."""
        self._free += self._retired
        self._retired = []
        self._fresh.clear()

    def restore(self, parts: Mapping[str, Tensor], checked: Callable[[], None]) -> Places:
        """Go on from a checkpoint, after checking that every vector is the one it speaks of."""
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
                        "written. Put the file back from a copy, or start a new run."
                    )
            checked()
        taken = np.zeros(self._slots, dtype=bool)
        taken[places] = True
        self._free = np.flatnonzero(~taken)[::-1].tolist()
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
        if self._opened is None:  # Nothing has been written: what lies there is of no use.
            self._opened = self._open("w+b")
        return self._opened

    def _open(self, mode: str) -> RowFile:
        file: IO[bytes]
        if self._path is None:
            file = nameless_file()
        else:
            try:
                file = open(self._path, mode, buffering=0, opener=private)  # noqa: SIM115
            except FileNotFoundError as error:
                raise PmtlError(
                    f"{self._path} is missing: it holds the vectors that the checkpoint speaks of."
                ) from error
            except OSError as error:
                raise PmtlError(f"{self._path} cannot be opened: {error.strerror}.") from error
        weakref.finalize(self, file.close)
        return RowFile(file, self._width, self._dtype)
