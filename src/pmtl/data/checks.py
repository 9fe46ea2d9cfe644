"""Checks of features before training.

An infinite or NaN value would not fail in training: the gate counts such an upload as zero, and the
client would silently never take part. So it is refused here, by row and column. In production a
refusal would disclose something about one client's row: there the row is marked as unusable (in the
mask `usable`, [rows]), and `FederatedData.from_arrays` leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import Coded
from pmtl.errors import PmtlError, kind_of

CHUNK_BYTES = 1 << 24
MOST_COLUMNS = 2**28

Mask = NDArray[np.bool_]


def is_sparse(x: Any) -> bool:
    """Whether `x` is a sparse matrix of SciPy (without importing SciPy)."""
    return hasattr(x, "tocsr")


def row_chunks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Slices over the rows, each of about `CHUNK_BYTES`."""
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def as_float32(values: Any) -> NDArray[np.float32]:
    """The values as float32; too large ones become infinite without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, dtype=np.float32)


def as_model_input(x: Any) -> NDArray[np.float32]:
    """Dense rows as models read them: float32; bytes are pixels and become 0 to 1."""
    return np.divide(x, 255, dtype=np.float32) if x.dtype == np.uint8 else as_float32(x)


def as_array(values: Any, what: str) -> NDArray[Any]:
    """An array of `values`, whose rows must have the same length."""
    try:
        return values if isinstance(values, np.ndarray) else np.asarray(values)
    except ValueError as error:
        raise PmtlError(f"The {what} are not rows of one length ({error}).") from error


def all_in_row(marks: NDArray[np.bool_]) -> Mask:
    """[rows]: whether all entries of a row are marked."""
    return np.asarray(marks.reshape(len(marks), -1).all(axis=1))


def check_lengths(**columns: Any) -> None:
    """Refuse columns of different lengths; None is ignored."""
    lengths = {name: _length(name, c) for name, c in columns.items() if c is not None}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise PmtlError(f"The columns differ in length: {listed}. Every row needs one of each.")


def not_a_federation(data: Any) -> PmtlError:
    """The error for data of another kind, which says how to make a federation of it."""
    if hasattr(data, "columns") and hasattr(data, "shape"):
        names = [str(name) for name in data.columns]
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        return PmtlError(
            "A frame does not say which column names the client: make a federation of it with "
            'pmtl.FederatedData.from_frame(frame, client="…", target="…"). Its columns are '
            f"{listed}."
        )
    if hasattr(data, "shape") or isinstance(data, (tuple, list, dict)):
        return PmtlError(
            f"Data is a spec or a federation, but {kind_of(data)} was given: make a federation "
            "with pmtl.FederatedData.from_arrays(x, y, client)."
        )
    return PmtlError(
        "Data is a spec (visits.csv:client=hospital,target=outcome) or a pmtl.FederatedData, but "
        f"{kind_of(data)} was given."
    )


def _length(name: str, column: Any) -> int:
    if isinstance(column, Coded):
        return len(column.codes)
    try:
        return int(column.shape[0]) if getattr(column, "shape", ()) else len(column)
    except TypeError:
        raise PmtlError(
            f"{name} is a single value ({column!r}) and not a column: every row needs a value."
        ) from None


def check_features(
    x: Any, names: Sequence[str] | None, usable: Mask | None = None, fillable: bool = False
) -> Any:
    """`x` as an array, a memory map or a CSR matrix of finite numbers.

    Arrays of other floats in memory become float32. A row with a value that is not finite is
    refused or, with `usable`, marked there; NaN is allowed if it is `fillable`, by the client. Rows
    are read in chunks, so that a memory map never has to fit in memory.
    """
    sparse = is_sparse(x)
    x = x.tocsr() if sparse else as_array(x, "features")
    if x.shape[:1] == (0,):
        raise PmtlError("There are no rows: a federation needs data.")
    if x.ndim < 2:
        raise PmtlError(
            f"The features have shape {x.shape}: one row of features per sample is needed, "
            "[rows, features] or [rows, channels, height, width]."
        )
    if 0 in x.shape:
        raise PmtlError(f"The features have shape {x.shape}: a row needs at least one feature.")
    if x.dtype.kind not in "fiub":
        raise PmtlError(f"The features are {x.dtype}, not numbers: encode them as numbers first.")
    if sparse:
        return _check_sparse(x, names, usable)
    if x.dtype.kind == "f":
        for rows in row_chunks(len(x), x.nbytes // len(x)):
            values = as_float32(x[rows])
            finite = ~np.isinf(values) if fillable else np.isfinite(values)
            if usable is not None:
                usable[rows] &= all_in_row(finite)
            elif not finite.all():
                where = np.argwhere(~finite)[0]
                raise not_finite(x[rows][tuple(where)], where[0] + rows.start, where[1:], names)
        if x.dtype != np.float32 and not isinstance(x, np.memmap):
            x = as_float32(x)
    return x


def _check_sparse(csr: Any, names: Sequence[str] | None, usable: Mask | None) -> Any:
    if csr.shape[1] > MOST_COLUMNS:
        raise PmtlError(
            f"The features are sparse rows of {csr.shape[1]:,} columns, and models have a weight "
            "for each: number the columns that occur, or hash them."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        csr = csr.astype(np.float32, copy=False)
    if not csr.has_canonical_format or not csr.data.all():
        csr = csr.copy()
        csr.sum_duplicates()  # A sum may be infinite or NaN.
        csr.eliminate_zeros()
    wrong = np.flatnonzero(~np.isfinite(csr.data))
    rows = np.searchsorted(csr.indptr, wrong, side="right") - 1
    if usable is not None:
        usable[rows] = False
    elif len(wrong):
        entry = int(wrong[0])
        raise not_finite(csr.data[entry], int(rows[0]), csr.indices[entry : entry + 1], names)
    return csr


def not_finite(value: Any, row: int, place: NDArray[Any], names: Sequence[str] | None) -> PmtlError:
    """The error for a value that is missing or too large."""
    if names is not None and len(place) == 1:
        column = repr(names[int(place[0])])
    else:
        column = ", ".join(str(int(index)) for index in place)
    kind = "a missing value (NaN)" if value != value else f"{value}, which float32 cannot hold,"
    return PmtlError(
        f"The features hold {kind} in row {row}, column {column} (counting from 0): "
        "fill it in, scale it, or remove the row."
    )
