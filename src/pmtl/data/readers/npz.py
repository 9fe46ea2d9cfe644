"""NumPy files: a `.npz`, or a folder of `.npy` files that is memory-mapped.

The arrays are `x`, `y`, `client` and optionally `split`. Sparse features are `x_data`, `x_indices`,
`x_indptr` and `x_shape` in place of `x`. Nothing is unpickled. An array of a `.npz` that is
larger than the memory limit is unpacked to disk.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pmtl.data.disk import map_stream, memory_limit
from pmtl.data.readers.archives import open_zip
from pmtl.data.readers.columns import Columns
from pmtl.errors import PmtlError

MOST_AXES = 32  #: the number of axes that every version of NumPy allows
SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")

Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
Read = Callable[[str], NDArray[Any]]


def read_npz(path: Path, *, lenient: bool = False) -> Columns:
    """The arrays of a `.npz` file or, memory-mapped, those of a folder of `.npy` files. `lenient`
    changes nothing: unusable rows are left out later."""
    with _opened(path, "copy it again or write it again with numpy.savez") as (names, read):
        needed = ("y", "client") if names.issuperset(SPARSE) else ("x", "y", "client")
        for name in needed:
            if name not in names:
                raise PmtlError(
                    f"{path} has no array {name!r}: x, y and client are needed (split is optional, "
                    f"and {', '.join(SPARSE)} may replace x). It holds "
                    f"{', '.join(sorted(names)) or 'nothing'}."
                )
        return Columns(
            x=_features(path, names, read),
            y=read("y"),
            client=read("client"),
            split=read("split") if "split" in names else None,
        )


def read_new_rows(path: Path, client: str) -> tuple[Any, NDArray[Any] | None]:
    """The features of a `.npy` or `.npz`, and the array `client` of an `.npz`, if it has one."""
    if path.suffix.lower() == ".npy":
        return _mapped(path), None
    with _opened(path, "give a .csv, .parquet, .npz or .npy file") as (names, read):
        if "x" not in names and not names.issuperset(SPARSE):
            raise PmtlError(f"{path} has no array 'x' to predict on.")
        return _features(path, names, read), read(client) if client in names else None


@contextmanager
def _opened(path: Path, remedy: str) -> Iterator[tuple[set[str], Read]]:
    """The names of the arrays of an `.npz` or a folder, and a function that reads one of them."""
    if path.is_dir():
        yield {file.stem for file in path.glob("*.npy")}, lambda name: _mapped(path / f"{name}.npy")
        return
    with open_zip(path, remedy) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
        yield names, lambda name: _member(path, archive, f"{name}.npy")


def _features(path: Path, names: set[str], read: Read) -> Any:
    """The array `x`, or the CSR matrix of its parts."""
    if "x" in names:
        return read("x")
    from scipy.sparse import csr_matrix

    parts = [read(name) for name in SPARSE]
    wrong = _not_csr(*parts)
    if wrong:
        raise PmtlError(
            f"{', '.join(SPARSE)} of {path} are not the parts of a CSR matrix: {wrong}."
        )
    data, indices, indptr, shape = parts
    return csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()))


def _not_csr(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: NDArray[Any]
) -> str | None:
    """The rule of CSR that the parts of a sparse matrix break, or None.

    SciPy's own check accepts an `x_indptr` that ends in a negative number, and its sums then write
    outside of their arrays.
    """
    if any(part.ndim != 1 for part in (data, indices, indptr, shape)):
        return "each of them has one dimension"
    if data.dtype.kind not in "fiub" or any(
        part.dtype.kind not in "iu" for part in (indices, indptr, shape)
    ):
        return "x_data holds numbers, and the others whole numbers"
    if len(shape) != 2 or (shape < 0).any() or len(indptr) != int(shape[0]) + 1:
        return "x_shape is the number of rows and of columns, and x_indptr one longer than the rows"
    if len(indices) != len(data) or indptr[0] != 0 or indptr[-1] != len(data):
        return "x_indptr begins with 0 and ends with the length of x_indices and of x_data"
    if (indptr[1:] < indptr[:-1]).any():
        return "x_indptr never falls"
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < int(shape[1]):
        return "x_indices are numbers of columns, from 0 on"
    return None


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of an .npz, on disk if it is larger than the memory limit."""
    info = archive.getinfo(name)
    with archive.open(info) as stream:
        header = _header(stream, path, name, info.file_size)
        begins = stream.tell()
        if info.file_size <= memory_limit():
            return _read(stream)
    with archive.open(info) as stream:
        return _map(map_stream(stream, info.file_size), header, begins)


def _mapped(path: Path) -> NDArray[Any]:
    with path.open("rb") as stream:
        header = _header(stream, path.parent, path.name, path.stat().st_size)
        if 0 in header[0] or header[0] == ():  # Nothing that can be mapped.
            return _read(stream)
        return _map(path, header, stream.tell())


def _map(file: Any, header: Header, offset: int) -> NDArray[Any]:
    shape, fortran, dtype = header
    order: Any = "F" if fortran else "C"
    return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)


def _read(stream: IO[bytes]) -> NDArray[Any]:
    """The array of a stream whose header has been checked."""
    stream.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


def _header(stream: IO[bytes], path: Path, name: str, size: int) -> Header:
    """Shape, order and type of an array of `size` bytes, its header included."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Headers that Python 2 wrote are accepted.
            version = npy.read_magic(stream)
            if version not in ((1, 0), (2, 0), (3, 0)):
                raise ValueError(f"there is no version {version} of that format")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            header: Header = read(stream)
    except Exception as error:  # A header is Python text; a damaged one may raise anything.
        raise _unreadable(path, name, str(error)) from error
    shape, _, dtype = header
    if dtype.hasobject:
        raise PmtlError(
            f"{name} of {path} is an array of Python objects. Reading it needs unpickling, which "
            "can run code: save it as numbers or as text, e.g. array.astype(str)."
        )
    # NumPy would allocate memory for the stated shape before it looks at the content.
    stated, held = prod(shape) * dtype.itemsize, size - stream.tell()
    odd = len(shape) > MOST_AXES or any(type(length) is not int or length < 0 for length in shape)
    if stated != held or odd or not dtype.itemsize:
        raise _unreadable(path, name, f"{held} bytes cannot be {dtype.str} values of shape {shape}")
    return header


def _unreadable(path: Path, name: str, why: str) -> PmtlError:
    return PmtlError(
        f"{name} of {path} is not a readable NumPy array ({why}): write it again with numpy.save."
    )
