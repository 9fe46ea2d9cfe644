"""Zip files, which NumPy's `.npz` and LEAF's data sets come in, read as what they are: untrusted.

Members are read by name and never unpacked to a path, so a name such as `../x` leads nowhere. What
a member unpacks to is known from the archive's directory before anything is unpacked, and `zipfile`
stops there, whatever the packed bytes would give.
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
    """An archive, with all that may be wrong with it told in a sentence that ends in `remedy`."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (PmtlError, MemoryError):
        raise
    except Exception as error:  # Damage makes zipfile and its decompressors raise many kinds.
        if isinstance(error, OSError) and error.filename:
            raise
        kind = ".npz" if path.suffix.lower() == ".npz" else "zip"
        raise PmtlError(f"{path} is not a complete {kind} file ({error}): {remedy}.") from error


def read_member(path: Path, name: str) -> bytes:
    """The whole of a member, if memory can hold it."""
    with open_zip(path, "copy it again") as archive:
        size = archive.getinfo(name).file_size
        if size > memory_limit():
            raise PmtlError(
                f"{name} in {path} unpacks to {size:,} bytes, more than may be read at once "
                f"({memory_limit():,}): split it into smaller files, or raise PMTL_MEMORY_LIMIT."
            )
        return archive.read(name)
