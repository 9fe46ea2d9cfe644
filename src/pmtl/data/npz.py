"""NumPy files: a `.npz`, or a folder of `.npy` files that is memory-mapped.

The arrays are `x`, `y`, `client` and, if the data is already split, `split`. Sparse features are
`x_data`, `x_indices`, `x_indptr` and `x_shape` in place of `x`. Nothing is ever unpickled. An array
larger than the memory limit is mapped where it lies in an uncompressed `.npz`, and unpacked to
disk first from a compressed one.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pmtl.data.columns import Columns
from pmtl.data.disk import map_stream, memory_limit
from pmtl.errors import PmtlError

SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")

Header = tuple[tuple[int, ...], bool, np.dtype[Any]]


def read_npz(path: Path) -> Columns:
    """The arrays of a `.npz` file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            return _columns(path, names, lambda name: _member(path, archive, f"{name}.npy"))
    except (zipfile.BadZipFile, EOFError, zlib.error, RuntimeError) as error:
        raise PmtlError(
            f"{path} is not a complete .npz file ({error}): copy it again or write it anew "
            "with numpy.savez."
        ) from error


def read_folder(path: Path) -> Columns:
    """The arrays of a folder, memory-mapped."""
    return _columns(
        path,
        {file.stem for file in path.glob("*.npy")},
        lambda name: _mapped(path / f"{name}.npy"),
    )


def _columns(path: Path, names: set[str], read: Callable[[str], NDArray[Any]]) -> Columns:
    sparse = "x" not in names and names.issuperset(SPARSE)
    needed = (*(SPARSE if sparse else ("x",)), "y", "client")
    for name in needed:
        if name not in names:
            raise PmtlError(
                f"{path} has no array {name!r}: x, y and client are needed (split is optional, and "
                f"{', '.join(SPARSE)} may stand for x). It holds "
                f"{', '.join(sorted(names)) or 'nothing'}."
            )
    columns = Columns(
        x=_sparse(path, *(read(name) for name in SPARSE)) if sparse else read("x"),
        y=read("y"),
        client=read("client"),
    )
    if "split" in names:
        columns["split"] = read("split")
    return columns


def _sparse(path: Path, *parts: NDArray[Any]) -> Any:
    from scipy.sparse import csr_matrix

    data, indices, indptr, shape = parts
    try:
        matrix = csr_matrix((data, indices, indptr), shape=tuple(int(size) for size in shape))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise PmtlError(
            f"{', '.join(SPARSE)} of {path} are not the parts of a CSR matrix: {error}."
        ) from error
    return matrix


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    info = archive.getinfo(name)
    with archive.open(info) as stream:
        header = _header(stream, path, name)
        begins = stream.tell()
    if info.file_size <= memory_limit():
        with archive.open(info) as stream:
            return _unpack(stream, path, name)
    if info.compress_type == zipfile.ZIP_STORED:
        return _map(path, header, _data_offset(path, info) + begins)
    with archive.open(info) as stream:
        return _map(map_stream(stream), header, begins)


def _mapped(path: Path) -> NDArray[Any]:
    with path.open("rb") as stream:
        header = _header(stream, path.parent, path.name)
        begins = stream.tell()
        if 0 in header[0] or header[0] == ():
            stream.seek(0)
            return _unpack(stream, path.parent, path.name)
    try:
        return _map(path, header, begins)
    except (ValueError, OSError) as error:
        raise _unreadable(path.parent, path.name, error) from error


def _map(file: Any, header: Header, offset: int) -> NDArray[Any]:
    shape, fortran, dtype = header
    order: Any = "F" if fortran else "C"
    return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)


def _unpack(stream: IO[bytes], path: Path, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    except ValueError as error:
        raise _unreadable(path, name, error) from error
    return array


def _header(stream: IO[bytes], path: Path, name: str) -> Header:
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        header: Header = read(stream)
    except ValueError as error:
        raise _unreadable(path, name, error) from error
    if header[2].hasobject:
        raise PmtlError(
            f"{name} of {path} is an array of Python objects, which only unpickling could read, "
            "and that can run code: save it as numbers or as text, e.g. array.astype(str)."
        )
    return header


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin: its local header is 30 bytes, a name and extra fields
    (which need not be those of the central directory)."""
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        lengths = file.read(4)
    name, extra = (int.from_bytes(lengths[at : at + 2], "little") for at in (0, 2))
    return info.header_offset + 30 + name + extra


def _unreadable(path: Path, name: str, error: Exception) -> PmtlError:
    return PmtlError(
        f"{name} of {path} is not a readable NumPy array ({error}): write it anew with numpy.save."
    )
