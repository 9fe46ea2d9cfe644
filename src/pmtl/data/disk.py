"""Arrays that may be larger than memory.

Readers collect rows in memory up to a limit, and in a file beyond it. The array is then a memory
map, which is used like any other array. The files have no name (they are unlinked as soon as they
are opened), so they vanish with the process however it ends. They lie in the system's temporary
folder, which `TMPDIR` sets.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import AbstractContextManager
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pmtl.errors import PmtlError
from pmtl.storage import disk_errors


def physical_memory() -> int:
    """Bytes of memory that the machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 4 << 30


_OTHER_FOLDER = (
    "The data does not fit in memory: set TMPDIR to a folder with room, where it is kept meanwhile."
)

MEMORY_LIMIT = physical_memory() // 4
"""Bytes one array may take in memory; the variable PMTL_MEMORY_LIMIT sets another limit."""


def memory_limit() -> int:
    """The limit in force."""
    given = os.environ.get("PMTL_MEMORY_LIMIT")
    if not given:
        return MEMORY_LIMIT
    if not given.isdecimal():
        raise PmtlError(f"PMTL_MEMORY_LIMIT must be a number of bytes, but it is {given!r}.")
    return int(given)


class ArrayBuilder:
    """Grows an array along its first axis, chunk by chunk, in memory or on disk."""

    def __init__(self, row_shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.row_shape = row_shape
        self.dtype = np.dtype(dtype)
        self.rows = 0
        self._limit = memory_limit()
        self._bytes = 0
        self._chunks: list[NDArray[Any]] = []
        self._file: IO[bytes] | None = None

    def append(self, chunk: NDArray[Any]) -> None:
        """Add rows; chunks after the limit go to the file."""
        chunk = np.ascontiguousarray(chunk, dtype=self.dtype)
        if chunk.shape[1:] != self.row_shape:
            raise ValueError(f"rows of shape {chunk.shape[1:]}, not {self.row_shape}")
        self.rows += len(chunk)
        self._bytes += chunk.nbytes
        self._chunks.append(chunk)
        if self._bytes > self._limit:
            self._spill()

    def finish(self) -> NDArray[Any]:
        """The whole array: an ordinary one, or a read-only memory map of the file."""
        shape = (self.rows, *self.row_shape)
        if self._file is not None:
            self._file.flush()
            return np.memmap(self._file, dtype=self.dtype, mode="r", shape=shape)
        if not self._chunks:
            return np.empty(shape, dtype=self.dtype)
        return np.concatenate(self._chunks)

    def _spill(self) -> None:
        if self._file is None:
            self._file = nameless_file()
        with writing():
            for chunk in self._chunks:
                self._file.write(chunk.tobytes())
        self._chunks = []


def map_stream(stream: IO[bytes], size: int) -> IO[bytes]:
    """Copy a stream of `size` bytes to a nameless file on disk, and return that, at its beginning.

    Where there is no room for it, that is said before the disk is full.
    """
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if size > free:
        raise PmtlError(
            f"{size:,} bytes are needed, and {free:,} are free in the temporary folder "
            f"{tempfile.gettempdir()}. {_OTHER_FOLDER}"
        )
    file = nameless_file()
    with writing():
        shutil.copyfileobj(stream, file, 1 << 20)
        file.flush()
    file.seek(0)
    return file


def nameless_file() -> IO[bytes]:
    """A temporary file that is gone when nothing refers to it any more."""
    with writing():
        return tempfile.TemporaryFile(prefix="pmtl-")


def writing() -> AbstractContextManager[None]:
    """Turn errors of the temporary folder into sentences."""
    return disk_errors(
        f"The temporary folder {tempfile.gettempdir()} (TMPDIR names another)",
        if_full=_OTHER_FOLDER,
    )
