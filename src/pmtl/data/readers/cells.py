"""Cells of a table as numbers and names.

The cells of a CSV file come as text, those of a Parquet file or a frame with their types. An
experiment refuses a cell that cannot be used. Production must not: a refusal tells everybody
something about the client whose row it is. There (`lenient`) such a cell becomes NaN or the empty
name, and `FederatedData` leaves its row out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import Coded, Vocabulary, whole
from pmtl.data.readers.columns import missing_value, wrong_kind

_WORDS = {"true": 1.0, "false": 0.0}
_WHOLE = r"^\s*([+-]?[0-9]+|true|false)\s*$"
#: Larger whole numbers are not exact as float64.
_LARGEST_WHOLE = 2**53


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text."""
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(
        types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
    )


def numbers(
    column: Any, parse: bool, where: str, role: str, name: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The numbers of an Arrow column, NaN where a cell is empty or holds no number.

    Args:
        column: the cells.
        parse: text may hold numbers; otherwise a column of text is refused.
        where: the file, as error messages call it.
        role: what the column is for: "feature" or "target".
        name: the column's name.

    Returns:
        The numbers, and which cells hold text that is no number.
    """
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    no_text = np.zeros(len(column), dtype=bool)
    if is_text(kind):
        if not parse:
            raise wrong_kind(where, role, name, "text")
        try:
            column = column.cast(pa.float64())
        except pa.ArrowInvalid:
            return _parse_each(column)
    elif types.is_null(kind) or types.is_decimal(kind) or (_is_number(kind) and column.null_count):
        column = column.cast(pa.float64())
    elif not _is_number(kind):
        raise wrong_kind(where, role, name, kind)
    if column.null_count:
        column = column.fill_null(np.nan)
    return column.to_numpy(zero_copy_only=False), no_text


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _parse_each(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Numbers from text, some of which is empty or no number."""
    encoded = column.dictionary_encode()
    cells = encoded.dictionary.to_pylist()
    parsed = np.array([*(_number(cell) for cell in cells), np.nan])
    text = np.isnan(parsed)
    for place, cell in enumerate([*cells, ""]):
        text[place] &= not _is_empty(cell)
    codes = encoded.indices.fill_null(len(cells)).to_numpy(zero_copy_only=False)
    return parsed[codes], text[codes]


def _number(cell: str) -> float:
    word = cell.strip().lower()
    try:
        return _WORDS[word] if word in _WORDS else float(word.replace("_", "?"))
    except ValueError:
        return np.nan


def _is_empty(cell: str) -> bool:
    cell = cell.strip()
    return cell in _empty_cells() or cell.lower() == "nan"


@cache
def _empty_cells() -> frozenset[str]:
    from pyarrow import csv

    return frozenset(csv.ConvertOptions().null_values)


def target_numbers(
    chunks: Sequence[Any], parse: bool, lenient: bool, where: str, name: str, alone: bool
) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
    """The numbers of a target column, or None if it holds names, as only a target that stands
    `alone` may.

    Text is numbers if every cell that is not empty is one; if `lenient`, if more than half of the
    cells are, so that a few cells cannot turn everybody's numbers into names.

    Returns:
        The numbers (integers if all of them are written so), and which cells hold one.
    """
    import pyarrow as pa
    from pyarrow import types

    kind = chunks[0].type
    text = is_text(kind)
    if text and alone and not parse:
        return None
    parts = [numbers(chunk, parse, where, "target", name) for chunk in chunks]
    values = np.concatenate([part for part, _ in parts])
    if values.dtype.kind != "f":
        return values, np.ones(len(values), dtype=bool)
    good = np.isfinite(values)
    if text:
        wrong = np.concatenate([part for _, part in parts])
        if 2 * good.sum() <= len(good) if lenient else wrong.any() or np.isnan(values).all():
            if alone:
                return None
            if wrong.any():
                raise wrong_kind(where, "target", name, "text")
    if not lenient and np.isnan(values).any():
        raise missing_value(where, name, int(np.argmax(np.isnan(values))))
    integers = types.is_integer(kind) or types.is_boolean(kind)
    if text:
        ends = np.cumsum([len(chunk) for chunk in chunks])[:-1]
        integers = all(
            _all_whole(chunk.filter(pa.array(held)))
            for chunk, held in zip(chunks, np.split(good, ends), strict=True)
        )
    exact = good & (np.abs(np.where(good, values, 0)) < _LARGEST_WHOLE)
    if integers and (lenient or exact.all()):
        return np.where(exact, values, 0).astype(np.int64), exact
    return values, good


def _all_whole(cells: Any) -> bool:
    from pyarrow import compute

    whole_cells = compute.match_substring_regex(cells, _WHOLE, ignore_case=True)
    return bool(compute.all(whole_cells).as_py())


class Names:
    """A column of names, collected batch by batch as codes."""

    def __init__(self, where: str, role: str, name: str, lenient: bool) -> None:
        self._where, self._role, self._name, self._lenient = where, role, name, lenient
        self._vocabulary = Vocabulary(role)
        self._codes: list[NDArray[np.int64]] = []

    def append(self, column: Any, first: int) -> None:
        """Add a batch that begins with row `first`."""
        import pyarrow as pa
        from pyarrow import compute, types

        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if types.is_floating(column.type):
            column = compute.if_else(compute.is_nan(column), None, column)
        if not self._lenient:
            refuse_empty(column, self._where, self._name, first)
        try:
            encoded = column.dictionary_encode()
            names = encoded.dictionary.to_pylist()
        except UnicodeDecodeError:
            raise  # Text that is not UTF-8 is damage to the file.
        except (pa.ArrowException, ValueError, OverflowError):
            raise wrong_kind(self._where, self._role, self._name, column.type) from None
        if types.is_floating(column.type):
            names = whole(np.array(names, dtype=np.float64), self._role).tolist()
        codes = [self._vocabulary.code(n if isinstance(n, bytes) else str(n)) for n in names]
        if column.null_count:
            codes.append(self._vocabulary.code(""))
        places = encoded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
        self._codes.append(np.array(codes, dtype=np.int64)[places])

    def finish(self) -> Coded:
        """The whole column."""
        return self._vocabulary.coded(self._codes)


def refuse_empty(column: Any, where: str, name: str, first: int) -> None:
    """Refuse a column with an empty cell; the column begins with row `first`."""
    if column.null_count:
        empty = column.is_null().to_numpy(zero_copy_only=False)
        raise missing_value(where, name, first + int(np.argmax(empty)))
