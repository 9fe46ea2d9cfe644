"""Zip files, which NumPy's `.npz` and LEAF's data sets come in, read as what they are: untrusted.

Members are read by name and never unpacked to a path, so a name such as `../x` leads nowhere. What
a member unpacks to is known from the archive's directory before anything is unpacked, and `zipfile`
stops there, whatever the packed bytes would give.
"""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pmtl.data.disk import memory_limit
from pmtl.errors import PmtlError

#: All that `zipfile` and its decompressors raise for an archive that is damaged or that they do
#: not understand: wrong flags and encryption (RuntimeError), offsets (ValueError, struct.error), …
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    RuntimeError,
    ValueError,
    KeyError,
    OverflowError,
)


@contextmanager
def open_zip(path: Path, remedy: str) -> Iterator[zipfile.ZipFile]:
    """An archive, with all that may be wrong with it told in a sentence that ends in `remedy`."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (*_DAMAGE, OSError) as error:
        # Damage may be an OSError, too: an offset before the beginning, or whatever bz2 meets.
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
