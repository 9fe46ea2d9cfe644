"""What features and targets must be before anything is trained on them.

A value that is not a number would not fail in training: the release gate counts such an update as
zero, and the client would silently never take part. So it is refused here, by row and column. In
production a refusal would tell everybody about one client's row, so there a row that cannot be used
is marked in `Usable`, and left out (`FederatedData.from_arrays`, `bad_rows`).
Features are looked at in chunks, so that a memory-mapped array is never held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import Coded, distinct, encode
from pmtl.errors import PmtlError

Task = Literal["classification", "multilabel", "regression"]
TASKS: tuple[Task, ...] = ("classification", "multilabel", "regression")

CHUNK_BYTES = 1 << 24
MOST_OUTPUTS = 10**6
MOST_COLUMNS = 2**28


class Usable:
    """Marks the rows that cannot be used, where they are to be left out and not refused."""

    def __init__(self, rows: int) -> None:
        self.mask = np.ones(rows, dtype=bool)

    def leave_out(self, rows: NDArray[np.bool_], begins: int = 0) -> None:
        """Mark the rows that are true, counted from row `begins` on."""
        self.mask[begins : begins + len(rows)] &= ~rows


def is_sparse(x: Any) -> bool:
    """Whether `x` is one of SciPy's sparse matrices (without importing SciPy)."""
    return hasattr(x, "tocsr")


def row_chunks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Slices over the rows, each of about `CHUNK_BYTES`."""
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def check_lengths(**columns: Any) -> None:
    """Refuse columns (those that are given) of different lengths."""
    lengths = {name: _length(name, c) for name, c in columns.items() if c is not None}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise PmtlError(f"The columns differ in length: {told}. Every row needs one of each.")


def _length(name: str, column: Any) -> int:
    if isinstance(column, Coded):
        return len(column.codes)
    try:
        return int(column.shape[0]) if getattr(column, "shape", ()) else len(column)
    except TypeError:
        raise PmtlError(
            f"{name} is a single value ({column!r}) and not a column: every row needs its own."
        ) from None


def check_features(x: Any, names: Sequence[str] | None, usable: Usable | None = None) -> Any:
    """`x` as it will be kept: an array, a memory map or a CSR matrix of finite numbers.

    Arrays of wide floats in memory become float32, which is what models compute in. A row with
    another value is refused, or marked in `usable`.
    """
    if is_sparse(x):
        return _check_sparse(x, names, usable)
    x = _array(x, "features")
    if x.shape[:1] == (0,):
        _check_size(x.shape)
    if x.ndim < 2:
        raise PmtlError(
            f"The features have shape {x.shape}: one row of features per sample is needed, "
            "[rows, features] or [rows, channels, height, width]."
        )
    if x.dtype.kind not in "fiub":
        raise PmtlError(f"The features are {x.dtype}, not numbers: encode them as numbers first.")
    _check_size(x.shape)
    if x.dtype.kind == "f":
        for rows in row_chunks(len(x), x.nbytes // len(x)):
            finite = np.isfinite(as_float32(x[rows]))
            if usable is not None:
                usable.leave_out(_not_all(finite), rows.start)
            elif not finite.all():
                where = np.argwhere(~finite)[0]
                raise _not_finite(x[rows][tuple(where)], where[0] + rows.start, where[1:], names)
        if x.dtype != np.float32 and not isinstance(x, np.memmap):
            x = as_float32(x)
    return x


def _not_all(marks: Any) -> NDArray[np.bool_]:
    """The rows of which not everything is marked."""
    return np.asarray(~marks.reshape(len(marks), -1).all(axis=1))


def _array(values: Any, what: str) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    try:
        return np.asarray(values)
    except ValueError as error:
        raise PmtlError(f"The {what} are not rows of one length: {error}.") from error


def as_float32(values: Any) -> NDArray[np.float32]:
    """The values as float32, where one that is too large becomes inf without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, dtype=np.float32)


def as_model_input(x: Any) -> NDArray[np.float32]:
    """Dense rows as models read them: float32, where bytes are pixels and become 0 to 1."""
    return np.divide(x, 255, dtype=np.float32) if x.dtype == np.uint8 else as_float32(x)


def _check_sparse(x: Any, names: Sequence[str] | None, usable: Usable | None) -> Any:
    csr = x.tocsr()
    _check_size(csr.shape)
    if csr.shape[1] > MOST_COLUMNS:
        raise PmtlError(
            f"The features are sparse rows of {csr.shape[1]:,} columns, and models have a weight "
            "for each: number the columns that occur, or hash them."
        )
    if csr.dtype.kind not in "fiub":
        raise PmtlError(f"The features are {csr.dtype}, not numbers: encode them as numbers first.")
    if csr.dtype != np.float32:
        with np.errstate(over="ignore", invalid="ignore"):
            csr = csr.astype(np.float32)
    _check_entries(csr, names, usable)
    if not csr.has_canonical_format or not csr.data.all():
        csr = csr.copy()
        csr.sum_duplicates()
        csr.eliminate_zeros()
        _check_entries(csr, names, usable)
    return csr


def _check_entries(csr: Any, names: Sequence[str] | None, usable: Usable | None) -> None:
    finite = np.isfinite(csr.data)
    if usable is not None:
        wrong = np.zeros(csr.shape[0], dtype=bool)
        wrong[np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))[~finite]] = True
        usable.leave_out(wrong)
    elif not finite.all():
        entry = int(np.argmin(finite))
        row = int(np.searchsorted(csr.indptr, entry, side="right")) - 1
        raise _not_finite(csr.data[entry], row, csr.indices[entry : entry + 1], names)


def _check_size(shape: tuple[int, ...]) -> None:
    if shape[0] == 0:
        raise PmtlError("There are no rows: a federation needs data.")
    if 0 in shape:
        raise PmtlError(f"The features have shape {shape}: a row needs at least one feature.")


def _not_finite(
    value: Any, row: int, place: NDArray[Any], names: Sequence[str] | None
) -> PmtlError:
    if names is not None and len(place) == 1:
        column = f"column {names[int(place[0])]!r}"
    else:
        column = "column " + ", ".join(str(int(index)) for index in place)
    kind = "a missing value (NaN)" if value != value else f"{value}, which float32 cannot hold,"
    return PmtlError(
        f"The features hold {kind} in row {row}, {column} (counting from 0): "
        "fill it in, scale it, or remove the row."
    )


def check_targets(
    y: Any,
    task: Task | None,
    outputs: int | None,
    labels: Sequence[str] | None,
    usable: Usable | None = None,
) -> tuple[NDArray[Any], Task, int, tuple[str, ...] | None]:
    """Targets in their kept type, the task, its number of outputs and the names of its classes. A
    row whose target is none is refused, or marked in `usable`, and gets the target 0."""
    if task is not None and task not in TASKS:
        raise PmtlError(f"There is no task {task!r}: use {', '.join(TASKS)}.")
    if outputs is not None and not 1 <= outputs <= MOST_OUTPUTS:
        raise PmtlError(
            f"outputs={outputs} was given: it is at least 1, and {MOST_OUTPUTS:,} at most."
        )
    if is_sparse(y):
        y = y.toarray()
    if not isinstance(y, Coded):
        y = _array(y, "targets")
    if isinstance(y, Coded) or y.dtype.kind in "OSUT":
        if task not in (None, "classification"):
            raise PmtlError(f"The targets are text, which the task {task} cannot use.")
        if usable is not None:
            y = _named(y if isinstance(y, Coded) else distinct(y, "target"), usable)
        y, found = encode(y, "target")
        labels, task = found if labels is None else labels, "classification"
    if y.dtype.kind not in "fiub" or y.ndim not in (1, 2) or 0 in y.shape:
        raise PmtlError(
            f"The targets have type {y.dtype} and shape {y.shape}: numbers (or text) in "
            "[rows] or [rows, outputs] are needed."
        )
    if y.dtype.kind == "f" and not (finite := np.isfinite(as_float32(y))).all():
        if usable is None:
            row = int(np.argwhere(~finite)[0][0])
            raise PmtlError(f"The target of row {row} (counting from 0) is missing or not finite.")
        y = _without(y, _not_all(finite), usable)

    told = task is not None or outputs is not None or labels is not None
    task = task or _infer(y)
    if usable is not None and task != "regression":
        y = _without(y, _no_classes(y, task, outputs, labels), usable)
    if task == "multilabel":
        return _multilabel(y, outputs), task, y.shape[1], _names(labels, y.shape[1])
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if task == "classification":
        kept, outputs, names = _classes(y, outputs, labels)
        if not told and usable is None:
            _refuse_amounts(kept, outputs)
        return kept, task, outputs, names
    width = 1 if y.ndim == 1 else y.shape[1]
    if outputs not in (None, width):
        raise PmtlError(f"outputs={outputs} was given, but every row has {width} target(s).")
    return as_float32(y), task, width, None


def _named(y: Coded, usable: Usable) -> Coded:
    """Names of classes, where rows without a name are marked; rows that are not usable get the name
    of one that is, so that they make no class of their own."""
    if "" in y.names:
        usable.leave_out(y.codes == y.names.index(""))
    some = int(y.codes[usable.mask][0]) if usable.mask.any() else 0
    return Coded(np.where(usable.mask, y.codes, some), y.names)


def without_nobody(client: Any, columns: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """The column of clients and the other columns (those that are given) without the rows that name
    no client: they are nobody's, and must not change anybody's split."""
    owner = client if isinstance(client, Coded) else distinct(client, "client")
    if "" not in owner.names:
        return owner, columns
    named = owner.codes != owner.names.index("")

    def kept(column: Any) -> Any:
        if column is None:
            return None
        if isinstance(column, Coded):
            return Coded(column.codes[named], column.names)
        return column[named] if hasattr(column, "shape") else np.asarray(column)[named]

    return kept(owner), [kept(column) for column in columns]


def _without(y: NDArray[Any], wrong: NDArray[np.bool_], usable: Usable) -> NDArray[Any]:
    """The targets with 0 in the rows that are `wrong`, which are marked."""
    usable.leave_out(wrong)
    y = y.copy()
    y[wrong] = 0
    return y


def _no_classes(
    y: NDArray[Any], task: Task, outputs: int | None, labels: Sequence[str] | None
) -> NDArray[np.bool_]:
    """The rows whose target is no class (or whose labels are not 0 and 1)."""
    if task == "multilabel":
        return _not_all((y == 0) | (y == 1))
    most = MOST_OUTPUTS if outputs is None and not labels else outputs or len(labels or ())
    flat = y if y.ndim == 1 else y[:, 0]
    return np.asarray((flat < 0) | (flat >= most) | (flat != np.floor(flat)))


def _infer(y: NDArray[Any]) -> Task:
    if y.ndim == 2 and _binary(y):
        return "multilabel"
    if y.dtype.kind == "f":
        return "regression"
    return "classification"


def _binary(y: NDArray[Any]) -> bool:
    return bool(((y == 0) | (y == 1)).all())


def _multilabel(y: NDArray[Any], outputs: int | None) -> NDArray[Any]:
    if y.ndim != 2 or not _binary(y):
        raise PmtlError(
            "The task multilabel needs targets of 0 and 1 with one column per label; "
            f"these have shape {y.shape}{'' if y.ndim != 2 else ' and other values'}."
        )
    if outputs not in (None, y.shape[1]):
        raise PmtlError(f"outputs={outputs} was given, but the targets have {y.shape[1]} labels.")
    return y if y.dtype == np.uint8 else y.astype(np.uint8)


def _classes(
    y: NDArray[Any], outputs: int | None, labels: Sequence[str] | None
) -> tuple[NDArray[np.int64], int, tuple[str, ...] | None]:
    if y.ndim != 1:
        raise PmtlError(
            f"The targets have shape {y.shape}, but classification needs one class per row; "
            "targets of several columns must be 0 and 1 (multilabel) or task=regression."
        )
    with np.errstate(invalid="ignore"):
        kept = y.astype(np.int64)
    if (kept != y).any():
        row = int(np.argmax(kept != y))
        raise PmtlError(
            f"The class of row {row} (counting from 0) is {y[row]}, not an integer: "
            "number the classes 0, 1, 2, … or use task=regression."
        )
    if kept.min() < 0:
        row = int(np.argmin(kept))
        raise PmtlError(
            f"The class of row {row} (counting from 0) is {kept[row]}, which is negative: "
            "number the classes 0, 1, 2, …"
        )
    if outputs is None:
        outputs = len(labels) if labels else max(2, int(kept.max()) + 1)
    if outputs > MOST_OUTPUTS:
        row = int(np.argmax(kept))
        raise PmtlError(
            f"The class of row {row} (counting from 0) is {kept[row]}: no more than "
            f"{MOST_OUTPUTS:,} classes are possible."
        )
    names = _names(labels, outputs)
    if kept.max() >= outputs:
        row = int(np.argmax(kept))
        raise PmtlError(
            f"The class of row {row} (counting from 0) is {kept[row]}, but there are only "
            f"{outputs} classes (0 to {outputs - 1}): correct outputs or the targets."
        )
    return kept, outputs, names


def _refuse_amounts(kept: NDArray[np.int64], outputs: int) -> None:
    """Integers that use so few of their values are prices or years rather than classes."""
    if outputs > 100 and outputs > 10 * len(np.unique(kept)) + 100:
        raise PmtlError(
            f"The targets are integers up to {outputs - 1}, which would make {outputs} classes: "
            f"give task=regression if they are amounts, or outputs={outputs} if they really are "
            "classes."
        )


def _names(labels: Sequence[str] | None, outputs: int) -> tuple[str, ...] | None:
    """The labels as text; outputs beyond them, of which there are no rows, are called by number."""
    if labels is None:
        return None
    if len(labels) > outputs:
        raise PmtlError(
            f"There are {len(labels)} label names for {outputs} outputs: every name needs one, so "
            "raise outputs or leave it out."
        )
    names = tuple(str(label) for label in labels)
    more = (f"class {number}" for number in range(len(names), outputs))
    return names + tuple(f"{name} (without rows)" if name in names else name for name in more)
