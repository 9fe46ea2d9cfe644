"""Vectors of one length in a file, read and written by their number.

The file is not mapped into memory, for two reasons. Pages of a mapped file count as the process's
own memory, which hides how much a run needs. And when the disk is full, writing to a mapping kills
the process, while a plain write returns an error. Plain reads are as fast, from the system's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from hashlib import sha256
from itertools import pairwise
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.errors import PmtlError
from pmtl.storage import disk_errors

#: Bytes of the digest of one vector.
DIGEST_BYTES = 32
#: Bytes that are read at a time when a whole file is read.
CHUNK_BYTES = 64 * 2**20

Bytes = NDArray[np.uint8]


class RowFile:
    """Rows of `width` numbers in an open file, starting at byte `begins`."""

    def __init__(self, file: IO[bytes], width: int, dtype: torch.dtype, begins: int = 0) -> None:
        self._file = file
        self._width = width
        self._dtype = dtype
        self._begins = begins
        self.row_bytes = width * dtype.itemsize

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """A copy `[K, width]` of the rows with these numbers, in main memory."""
        wanted = torch.empty((len(rows), self._width), dtype=self._dtype)
        with self._disk_errors("read"):
            self._move(rows, _bytes(wanted), lambda file, view, at: os.preadv(file, [view], at))
        return wanted

    def write(self, rows: NDArray[np.int64], values: Tensor) -> None:
        """Replace the rows with these numbers by `values` [K, width]."""
        buffer = _bytes(values.detach().to("cpu", self._dtype).contiguous())
        with self._disk_errors("written"):
            self._move(rows, buffer, os.pwrite)

    def _move(
        self, rows: NDArray[np.int64], buffer: Bytes, move: Callable[[int, memoryview, int], int]
    ) -> None:
        """Read the rows into the buffer, or write them from it."""
        for first, part in _runs(rows):
            view = buffer[part].reshape(-1).data
            place = self._begins + first * self.row_bytes
            while len(view):
                count = move(self._file.fileno(), view, place)
                if count == 0:
                    raise PmtlError(f"{self._name} is damaged: it is shorter than it was.")
                view, place = view[count:], place + count

    def digests(self, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Bytes]]:
        """The digests of these rows, some rows at a time."""
        step = max(1, CHUNK_BYTES // max(1, self.row_bytes))
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            yield some, digest_rows(self.read(some))

    def sync(self) -> None:
        """Flush everything that was written to the disk."""
        with self._disk_errors("written"):
            os.fsync(self._file.fileno())

    @property
    def _name(self) -> str:
        named = isinstance(self._file.name, str)
        return self._file.name if named else "The temporary file of the clients' vectors"

    def _disk_errors(self, action: str) -> AbstractContextManager[None]:
        return disk_errors(
            self._name,
            action,
            "What was saved before is safe: free some space (or set TMPDIR to a folder with "
            "free space) and try again.",
        )


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, for `open(…, opener=private)`."""
    return os.open(path, flags, 0o600)


def digest_rows(rows: Tensor) -> Bytes:
    """SHA-256 of every row of a tensor in main memory, `[K, 32]`."""
    digests = np.empty((len(rows), DIGEST_BYTES), dtype=np.uint8)
    for place, row in enumerate(_bytes(rows)):
        digests[place] = np.frombuffer(sha256(row.data).digest(), dtype=np.uint8)
    return digests


def _bytes(rows: Tensor) -> Bytes:
    """The same memory as bytes, `[K, bytes of a row]`."""
    return rows.view(torch.uint8).numpy()


def _runs(rows: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Rows that are adjacent in the file, so that one call reads or writes them."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    for begin, end in pairwise([0, *breaks.tolist(), len(rows)] if len(rows) else []):
        yield int(rows[begin]), slice(begin, end)
