"""Checks the heaps of an HDF5 file, which hold text of variable length, before they are read.

The HDF5 library follows the sizes that a heap states from object to object. In a damaged heap it
may loop forever, and a text that points to a missing object may end the process. This check refuses
a heap whose objects do not fill it exactly, and a text that is not on its heap. (HDF5 File Format
Specification, "Disk Format: Level 1E - Global Heap".)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError

_HEAD = struct.Struct("<4sB3xQ")  # signature, version, size of the whole heap
_OBJECT = struct.Struct("<HHIQ")  # number, references, reserved, size of the content
_POINTER = struct.Struct("<IQI")  # length of the text, address of its heap, number of its object


class HeapCheck:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._objects = lru_cache(maxsize=1000)(self._read_sizes)  # Columns share heaps.

    def check(self, column: Any) -> None:
        """Refuse a column of text whose heaps are damaged. Compressed columns are not checked."""
        with self._path.open("rb") as file:
            for offset, length in _pieces(column):
                file.seek(offset)
                pointers = file.read(length)
                if len(pointers) < length or length % _POINTER.size:
                    raise self._damaged()
                for text, address, number in _POINTER.iter_unpack(pointers):
                    if address and text > self._objects(address).get(number, -1):
                        raise self._damaged()

    def _read_sizes(self, address: int) -> dict[int, int]:
        """The sizes of a heap's objects by their numbers."""
        size = self._path.stat().st_size
        if address + _HEAD.size > size:
            raise self._damaged()
        with self._path.open("rb") as file:
            file.seek(address)
            signature, _, length = _HEAD.unpack(file.read(_HEAD.size))
            if signature != b"GCOL" or not _HEAD.size <= length <= size - address:
                raise self._damaged()
            heap, offset = file.read(length - _HEAD.size), 0
        objects: dict[int, int] = {}
        while len(heap) - offset >= _OBJECT.size:
            number, _, _, content = _OBJECT.unpack_from(heap, offset)
            # Free space has the number 0, and its size includes its head.
            step = content if number == 0 else _OBJECT.size + (content + 7) // 8 * 8
            if not _OBJECT.size <= step <= len(heap) - offset:
                raise self._damaged()
            if number:
                objects[number] = content
            offset += step
        return objects

    def _damaged(self) -> PmtlError:
        return PmtlError(
            f"{self._path} cannot be read as HDF5 (a heap of text is damaged): fetch or copy it "
            "again."
        )


def _pieces(column: Any) -> Iterator[tuple[int, int]]:
    """The offsets and lengths of a column's pointers in the file."""
    whole = column.id.get_offset()
    if whole is not None:
        yield whole, column.size * _POINTER.size
    elif column.chunks is not None and column.id.get_create_plist().get_nfilters() == 0:
        for index in range(column.id.get_num_chunks()):
            chunk = column.id.get_chunk_info(index)
            yield chunk.byte_offset, chunk.size
