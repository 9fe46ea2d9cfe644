"""Arrays that may be larger than memory.

Readers collect rows in memory up to a limit, and beyond it in a file, which is then memory-mapped.
The files are in the system's temporary folder (`TMPDIR`). They have no name, so they disappear with
the process, even if it is killed.
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
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_OTHER_FOLDER = (
    "The data does not fit in memory: set TMPDIR to a folder with enough space to keep it there."
)


def memory_limit() -> int:
    """The limit of one array's size in memory, in bytes: PMTL_MEMORY_LIMIT, or a quarter of the
    machine's memory."""
    given = os.environ.get("PMTL_MEMORY_LIMIT")
    if not given:
        return physical_memory() // 4
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
        """Add rows; beyond the memory limit they are written to the file."""
        chunk = np.ascontiguousarray(chunk, dtype=self.dtype)
        self.rows += len(chunk)
        self._bytes += chunk.nbytes
        self._chunks.append(chunk)
        if self._bytes <= self._limit:
            return
        if self._file is None:
            self._file = temporary_file()
        with temporary_folder_errors():
            for held in self._chunks:
                self._file.write(held.tobytes())
        self._chunks = []

    def finish(self) -> NDArray[Any]:
        """The whole array, in memory or as a read-only memory map."""
        shape = (self.rows, *self.row_shape)
        if self._file is not None:
            self._file.flush()
            return np.memmap(self._file, dtype=self.dtype, mode="r", shape=shape)
        return np.concatenate([np.empty((0, *self.row_shape), self.dtype), *self._chunks])


def map_stream(stream: IO[bytes], size: int) -> IO[bytes]:
    """Copy a stream of `size` bytes to a temporary file, if the disk has enough free space."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if size > free:
        raise PmtlError(
            f"{size:,} bytes are needed, but {free:,} are free in the temporary folder "
            f"{tempfile.gettempdir()}. {_OTHER_FOLDER}"
        )
    file = temporary_file()
    with temporary_folder_errors():
        shutil.copyfileobj(stream, file, 1 << 20)
        file.flush()
    file.seek(0)
    return file


def temporary_file() -> IO[bytes]:
    """A temporary file that disappears when it is closed."""
    with temporary_folder_errors():
        return tempfile.TemporaryFile(prefix="pmtl-")


def temporary_folder_errors() -> AbstractContextManager[None]:
    """Turn errors of the temporary folder into `PmtlError`."""
    return disk_errors(
        f"The temporary folder {tempfile.gettempdir()} (TMPDIR names another)",
        if_full=_OTHER_FOLDER,
    )
