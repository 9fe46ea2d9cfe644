"""Cells of a table as numbers and names.

The cells of a CSV file come as text, those of a Parquet file or a frame with their types. An
experiment refuses a cell that cannot be used. Production must not: a refusal tells everybody
something about the client whose row it is. There (`lenient`) such a cell becomes NaN or the empty
name, and `FederatedData` leaves its row out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Table:
    """An open table."""

    where: str
    """What error messages call it."""
    names: list[str]
    """The names of its columns."""
    parse: bool
    """Its cells come as text, of which some are numbers."""
    lenient: bool
    """Cells that cannot be used are not refused (production)."""
    read: Callable[[Sequence[str]], Iterable[Any]]
    """Gives the columns of these names, in Arrow record batches."""

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
        """The number of a batch's first row, and the batch."""
        first = 0
        for batch in self.read(columns):
            yield first, batch
            first += batch.num_rows


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text."""
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(
        types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
    )


def numbers(
    column: Any, table: Table, role: str, name: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The numbers of an Arrow column, NaN where a cell is empty or holds no number; and which cells
    hold text that is no number. A column of another kind is refused as a `role` of this `name`."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    no_text = np.zeros(len(column), dtype=bool)
    if is_text(kind):
        if not table.parse and (role == "target" or not table.lenient):
            raise wrong_kind(table.where, role, name, "text")
        try:
            column = column.cast(pa.float64())
        except pa.ArrowInvalid:
            return _parse_each(column, table.lenient)
    elif types.is_null(kind) or types.is_decimal(kind) or (_is_number(kind) and column.null_count):
        column = column.cast(pa.float64())
    elif not _is_number(kind):
        raise wrong_kind(table.where, role, name, kind)
    if column.null_count:
        column = column.fill_null(np.nan)
    return column.to_numpy(zero_copy_only=False), no_text


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _parse_each(column: Any, lenient: bool) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Numbers from text, some of which is empty or no number. Unless `lenient`, true and false are
    no numbers where others than 0 and 1 occur."""
    encoded = column.dictionary_encode()
    cells = encoded.dictionary.to_pylist()
    parsed = np.array([*(_number(cell) for cell in cells), np.nan])
    words = np.array([*(cell.strip().lower() in _WORDS for cell in cells), False])
    if not lenient and not np.isin(parsed[~np.isnan(parsed)], (0, 1)).all():
        parsed[words] = np.nan
    text = np.isnan(parsed)
    for place, cell in enumerate([*cells, ""]):
        text[place] &= not _is_empty(cell)
    codes = encoded.indices.fill_null(len(cells)).to_numpy(zero_copy_only=False)
    return parsed[codes], text[codes]


def _number(cell: str) -> float:
    word = cell.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        return np.nan if "_" in word else float(word)  # Only Python takes 1_000 for a number.
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
    chunks: Sequence[Any], table: Table, name: str, alone: bool
) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
    """The numbers of a target column, and which cells hold one; None if it holds names, as only a
    target that stands `alone` may.

    Text is numbers if every cell that is not empty is one, and integers if all of them are written
    so. In production, more than half of the cells decide, so that a few cannot turn everybody's
    numbers into names; a fraction still turns integers into amounts.
    """
    import pyarrow as pa
    from pyarrow import types

    kind = chunks[0].type
    text = is_text(kind)
    if text and alone and not table.parse:
        return None
    parts = [numbers(chunk, table, "target", name) for chunk in chunks]
    values = np.concatenate([part for part, _ in parts])
    if values.dtype.kind != "f":
        return values, np.ones(len(values), dtype=bool)
    good = np.isfinite(values)
    if text:
        wrong = np.concatenate([part for _, part in parts])
        few = 2 * good.sum() <= len(good)
        if alone and (few if table.lenient else wrong.any() or np.isnan(values).all()):
            return None
        if wrong.any() and (few or not table.lenient):
            raise wrong_kind(table.where, "target", name, "text")
    if not table.lenient and np.isnan(values).any():
        raise missing_value(table.where, name, int(np.argmax(np.isnan(values))))
    integers = types.is_integer(kind) or types.is_boolean(kind)
    if text:
        ends = np.cumsum([len(chunk) for chunk in chunks])[:-1]
        held = zip(chunks, np.split(good, ends), strict=True)
        written = sum(_whole_cells(chunk.filter(pa.array(marks))) for chunk, marks in held)
        most = 2 * written > good.sum() and (values[good] == np.floor(values[good])).all()
        integers = most if table.lenient else written == good.sum()
    exact = good & (np.abs(np.where(good, values, 0)) < _LARGEST_WHOLE)
    if integers and (table.lenient or exact.all()):
        return np.where(exact, values, 0).astype(np.int64), exact
    return values, good


def _whole_cells(cells: Any) -> int:
    """How many cells are written as whole numbers."""
    from pyarrow import compute

    return int(compute.match_substring_regex(cells, _WHOLE, ignore_case=True).true_count)


def coded_names(chunks: Sequence[Any], table: Table, role: str, name: str) -> Coded:
    """A column of names; in production, an empty cell is the empty name."""
    import pyarrow as pa
    from pyarrow import compute, types

    vocabulary = Vocabulary(role)
    codes: list[NDArray[np.int64]] = []
    for column in chunks:
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        floats = types.is_floating(column.type)
        if floats:
            column = compute.if_else(compute.is_nan(column), None, column)
        if not table.lenient:
            refuse_empty(column, table, name, sum(map(len, codes)))
        try:
            encoded = column.dictionary_encode()
            found = encoded.dictionary.to_pylist()
        except UnicodeDecodeError:
            raise  # Text that is not UTF-8 is damage to the file.
        except (pa.ArrowException, ValueError, OverflowError):
            raise wrong_kind(table.where, role, name, column.type) from None
        if floats:
            found = whole(np.array(found, dtype=np.float64), role).tolist()
        found = [each if isinstance(each, bytes) else str(each) for each in found]
        if column.null_count:
            found.append("")
        places = encoded.indices.fill_null(len(found) - 1).to_numpy(zero_copy_only=False)
        codes.append(np.array([vocabulary.code(each) for each in found], dtype=np.int64)[places])
    return vocabulary.coded(codes)


def refuse_empty(column: Any, table: Table, name: str, first: int) -> None:
    """Refuse a column with an empty cell; the column begins with row `first`."""
    if column.null_count:
        empty = column.is_null().to_numpy(zero_copy_only=False)
        raise missing_value(table.where, name, first + int(np.argmax(empty)))


def texts(
    batch: Any, names: Sequence[str], table: Table, first: int, usable: NDArray[np.bool_]
) -> Iterator[str]:
    """Every row's text; that of several columns is joined by a space. In production, a row with an
    empty cell is marked as not `usable`."""
    columns = [batch.column(name) for name in names]
    for column, name in zip(columns, names, strict=True):
        if not is_text(column.type):
            raise wrong_kind(table.where, "text", name, column.type)
        if not table.lenient:
            refuse_empty(column, table, name, first)
        usable &= column.is_valid().to_numpy(zero_copy_only=False)
    for parts in zip(*(column.to_pylist() for column in columns), strict=True):
        yield " ".join(part or "" for part in parts)
