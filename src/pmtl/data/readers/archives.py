"""Zip files (NumPy's `.npz`, LEAF's data sets), which are untrusted.

Members are read by name and never unpacked to a path, so a name such as `../x` does no harm. The
archive's directory states each member's size before it is unpacked, and `zipfile` reads no more.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pmtl.data.disk import memory_limit
from pmtl.errors import PmtlError


@contextmanager
def open_zip(path: Path, remedy: str) -> Iterator[zipfile.ZipFile]:
    """An open archive; errors become a sentence that ends with `remedy`."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (PmtlError, MemoryError):
        raise
    except Exception as error:  # zipfile and its decompressors raise many kinds of errors.
        if isinstance(error, OSError) and error.filename:
            raise
        kind = ".npz" if path.suffix.lower() == ".npz" else "zip"
        raise PmtlError(f"{path} is not a complete {kind} file ({error}): {remedy}.") from error


def read_member(path: Path, name: str) -> bytes:
    """The content of a member, if it fits in memory."""
    with open_zip(path, "copy it again") as archive:
        size = archive.getinfo(name).file_size
        if size > memory_limit():
            raise PmtlError(
                f"{name} in {path} unpacks to {size:,} bytes, more than may be read at once "
                f"({memory_limit():,}): split it into smaller files, or raise PMTL_MEMORY_LIMIT."
            )
        return archive.read(name)
