"""Columns of names (clients, classes, splits) as codes and distinct names.

Names are sorted, as numbers if all of them are integers (client 10 follows client 9). So the order
of a file's rows does not change the federation.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import PmtlError

# Python converts this many digits to an integer under any settings.
_INTEGER = re.compile(r"[+-]?[0-9]{1,640}")
_WHOLE_FLOAT = re.compile(r"[+-]?[0-9]+\.0")


class Coded(NamedTuple):
    """A column of names: row i has the name `names[codes[i]]`."""

    codes: NDArray[np.int64]
    names: tuple[str, ...]


class Vocabulary:
    """Gives each new name the next code, for columns that are collected batch by batch."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._codes: dict[str, int] = {}
        self._spelled: dict[str, bytes] = {}

    def code(self, name: str | bytes) -> int:
        """The code of a name. Two different names whose bytes are not UTF-8 and that become the
        same text are refused."""
        if isinstance(name, bytes):
            text, spelled = name.decode("utf-8", "replace"), name
        else:
            text, spelled = name, name.encode("utf-8", "surrogatepass")
        if self._spelled.setdefault(text, spelled) != spelled:
            raise PmtlError(
                f"The {self._what}s {self._spelled[text]!r} and {spelled!r} are bytes that are not "
                "all UTF-8, and as text they become equal: save them as text or integers."
            )
        return self._codes.setdefault(text, len(self._codes))

    def coded(self, codes: Iterable[NDArray[np.int64]]) -> Coded:
        return Coded(np.concatenate([np.empty(0, dtype=np.int64), *codes]), tuple(self._codes))


def canonical(names: Iterable[str]) -> list[str]:
    """The names in sorted order: as integers if all of them are integers, else as text."""
    listed = list(names)
    if all(_INTEGER.fullmatch(name) for name in listed):
        return sorted(listed, key=lambda name: (int(name), name))
    return sorted(listed)


def encode(values: Any, what: str) -> Coded:
    """Codes and sorted names of a column; a row without a name is refused."""
    codes, names = distinct(values, what)
    if "" in names and (empty := codes == names.index("")).any():
        raise _missing(int(np.argmax(empty)), what)
    used = np.bincount(codes, minlength=len(names)) > 0
    ordered = canonical(name for name, present in zip(names, used, strict=True) if present)
    for name in ordered:  # UTF-8, in which names are written to files, cannot hold surrogates.
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise PmtlError(
                f"The {what} {name!r} is not valid Unicode and could not be written to a file: "
                "rename it."
            )
    position = {name: code for code, name in enumerate(ordered)}
    renumber = np.array([position.get(name, -1) for name in names], dtype=np.int64)
    return Coded(renumber[codes] if len(names) else codes, tuple(ordered))


def drop_zero_decimals(column: Coded) -> Coded:
    """Names that are all integers written as floats (1.0, 2.0, …), as integers."""
    if not all(_WHOLE_FLOAT.fullmatch(name) for name in column.names):
        return column
    return Coded(column.codes, tuple(name.removesuffix(".0") for name in column.names))


def distinct(values: Any, what: str) -> Coded:
    """Codes and names of a column, in any order."""
    if isinstance(values, Coded):
        return values
    array = np.asarray(values)
    if array.ndim != 1:
        raise PmtlError(
            f"The column of {what}s must have one value per row, but its shape is {array.shape}."
        )
    kind = array.dtype.kind
    if kind in "OT":
        return _one_by_one(array.tolist(), what)
    if kind == "f":
        array = to_integers(array, what)
    elif kind == "U":
        _refuse_invalid_characters(array, what)
    elif kind not in "iubS":
        raise PmtlError(f"The {what}s are {array.dtype}: give them as text or as integers.")
    values, codes = np.unique(array, return_inverse=True)
    vocabulary = Vocabulary(what)
    names = [name if isinstance(name, bytes) else str(name) for name in values.tolist()]
    renumber = np.array([vocabulary.code(name) for name in names], dtype=np.int64)
    return vocabulary.coded([renumber[codes]])


def _refuse_invalid_characters(array: NDArray[Any], what: str) -> None:
    """Refuse characters beyond Unicode. NumPy accepts any four bytes of a damaged file, and such a
    name corrupts the process when it becomes a Python string."""
    points = np.ascontiguousarray(array).view(array.dtype.byteorder + "u4").reshape(len(array), -1)
    wrong = (points > sys.maxunicode).any(axis=1)
    if wrong.any():
        raise PmtlError(
            f"The {what} of row {int(np.argmax(wrong))} (counting from 0) holds a value that is "
            "not a Unicode character: the file is damaged, write it again."
        )


def _one_by_one(values: list[Any], what: str) -> Coded:
    vocabulary = Vocabulary(what)
    codes = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        if is_missing(value):
            raise _missing(row, what)
        if isinstance(value, float):
            value = int(to_integers(np.array([value]), what)[0])
        codes[row] = vocabulary.code(value if isinstance(value, bytes) else str(value))
    return vocabulary.coded([codes])


def is_missing(value: Any) -> bool:
    """Whether a value of a frame is missing: None, NaN, pandas.NA or NaT."""
    missing = value is None or type(value).__name__ in ("NAType", "NaTType")
    return missing or (isinstance(value, float) and value != value)


def to_integers(array: NDArray[Any], what: str) -> NDArray[np.int64]:
    """Floats as integers; a missing value or a fraction is refused."""
    finite = np.isfinite(array)
    if not finite.all():
        raise _missing(int(np.argmin(finite)), what)
    with np.errstate(invalid="ignore"):
        integers = array.astype(np.int64)
    if (integers != array).any():
        row = int(np.argmax(integers != array))
        raise PmtlError(
            f"The {what} {array[row]} is a fraction or too large: give {what}s as text or integers."
        )
    return integers


def _missing(row: int, what: str) -> PmtlError:
    return PmtlError(f"Row {row} (counting from 0) has no {what}: fill it in or remove the row.")


def drop_rows_without_client(client: Any, columns: Sequence[Any]) -> tuple[Coded, Sequence[Any]]:
    """The column of clients and the other columns (None stays None) without the rows that name no
    client: these must not change the split of any client."""
    owner = distinct(client, "client")
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
