"""Cells of a table as numbers and names.

The cells of a CSV file are text; those of a Parquet file or a frame have types. An experiment
refuses an invalid cell. In production (`lenient`) a refusal would disclose something about the
client of the row: an invalid cell becomes NaN or the empty name, and `FederatedData` leaves out its
row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import Coded, Vocabulary, drop_zero_decimals, to_integers
from pmtl.data.readers.columns import missing_value, wrong_kind
from pmtl.errors import PmtlError
from pmtl.views.progress import progress_bar

_WORDS = {"true": 1.0, "false": 0.0}
_WHOLE = r"^\s*([+-]?[0-9]+|true|false)\s*$"
#: Larger whole numbers are not exact as float64.
_LARGEST_WHOLE = 2**53
#: A table with this many batches takes seconds to read.
_SHOW_PROGRESS_FROM = 16


@dataclass(frozen=True)
class Table:
    where: str  #: its name in error messages
    names: list[str]  #: the names of its columns
    parse: bool  #: whether cells are text, also where they hold numbers
    lenient: bool  #: whether invalid cells are accepted (production)
    read: Callable[[Sequence[str]], Iterable[Any]]  #: columns, as Arrow record batches
    steps: int = 0  #: about how many batches there are
    progress: bool = False  #: whether to show a progress bar for a large table

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
        """The batches, each with the number of its first row."""
        first, show = 0, self.progress and self.steps >= _SHOW_PROGRESS_FROM
        with progress_bar("reading rows", self.steps, show=show) as bar:
            for batch in self.read(columns):
                yield first, batch
                first += batch.num_rows
                bar.advance()


def is_text(kind: Any) -> bool:
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(
        types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
    )


def numbers(
    column: Any, table: Table, role: str, name: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The numbers of an Arrow column (NaN for an empty cell or other text), and which cells hold
    text that is not a number. A column of another type is refused as a `role` of this `name`."""
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
    elif types.is_null(kind) or types.is_decimal(kind) or (is_number(kind) and column.null_count):
        column = column.cast(pa.float64())
    elif not is_number(kind):
        raise wrong_kind(table.where, role, name, kind)
    if column.null_count:
        column = column.fill_null(np.nan)
    return column.to_numpy(zero_copy_only=False), no_text


def number_rows(
    batch: Any, first: int, table: Table, names: Sequence[str], role: str = "feature"
) -> NDArray[np.float32]:
    """[rows, names] the numbers of a batch, whose first row has the number `first`. An empty cell
    or text is refused; in production it is NaN."""
    x = np.empty((batch.num_rows, len(names)), dtype=np.float32)
    for column, name in enumerate(names):
        values, text = numbers(batch.column(name), table, role, name)
        if text.any() and not table.lenient:
            raise wrong_kind(table.where, role, name, "text")
        with np.errstate(over="ignore"):
            x[:, column] = values
        missing = np.isnan(x[:, column])
        if missing.any() and not table.lenient:
            raise missing_value(table.where, name, first + int(np.argmax(missing)))
    return x


def is_number(kind: Any) -> bool:
    """Whether an Arrow type is whole numbers, floats or booleans."""
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _parse_each(column: Any, lenient: bool) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Numbers from text, of which some cells are empty or not numbers. Unless `lenient`, true and
    false are numbers only if all other numbers are 0 and 1."""
    codes, cells = distinct_cells(column)
    parsed = np.array([np.nan if cell is None else _number(cell) for cell in cells])
    words = np.array([cell is not None and cell.strip().lower() in _WORDS for cell in cells])
    if not lenient and not np.isin(parsed[~np.isnan(parsed)], (0, 1)).all():
        parsed[words] = np.nan
    text = np.isnan(parsed) & [cell is not None and not _is_empty(cell) for cell in cells]
    return parsed[codes], text[codes]


def distinct_cells(column: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """The code of each cell, and the value of each code; the last code is empty or NaN: None."""
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_floating(column.type):
        column = compute.if_else(compute.is_nan(column), None, column)
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64), [*values, None]


def _number(cell: str) -> float:
    word = cell.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        return np.nan if "_" in word else float(word)  # Python would accept 1_000.
    except ValueError:
        return np.nan


def _is_empty(cell: str) -> bool:
    cell = cell.strip()
    return cell in _empty_cells() or cell.lower() == "nan"


@cache
def _empty_cells() -> frozenset[str]:
    from pyarrow import csv

    return frozenset(csv.ConvertOptions().null_values)


def _target_numbers(
    chunks: Sequence[Any], table: Table, name: str, alone: bool
) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
    """The numbers of a target column, and which cells hold one; None if the column holds names,
    which only a target that is `alone` may do.

    A column of text holds numbers if every nonempty cell is a number, and integers if all are
    written as integers. In production, more than half of the cells decide, so that a few cells
    cannot turn all numbers into names; one fraction still turns integers into floats.
    """
    import pyarrow as pa
    from pyarrow import compute, types

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
        cells = (chunk.filter(pa.array(marks)) for chunk, marks in held)
        matches = (compute.match_substring_regex(c, _WHOLE, ignore_case=True) for c in cells)
        written = sum(match.true_count for match in matches)
        most = 2 * written > good.sum() and (values[good] == np.floor(values[good])).all()
        integers = most if table.lenient else written == good.sum()
    exact = good & (np.abs(np.where(good, values, 0)) < _LARGEST_WHOLE)
    if integers and (table.lenient or exact.all()):
        return np.where(exact, values, 0).astype(np.int64), exact
    return values, good


def targets(table: Table, columns: Mapping[str, Sequence[Any]], usable: NDArray[np.bool_]) -> Any:
    """A single target is numbers or names; several are numbers."""
    found = []
    for name, chunks in columns.items():
        held = _target_numbers(chunks, table, name, alone=len(columns) == 1)
        if held is None:
            return coded_names(chunks, table, "target", name)
        values, good = held
        if table.lenient:  # In an experiment, `from_arrays` refuses values that are not finite.
            usable &= good
        found.append(values)
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def coded_names(chunks: Sequence[Any], table: Table, role: str, name: str) -> Coded:
    """A column of names; in production, an empty cell becomes the empty name."""
    import pyarrow as pa

    vocabulary = Vocabulary(role)
    codes: list[NDArray[np.int64]] = []
    for column in chunks:
        try:
            places, found = distinct_cells(column)
        except UnicodeDecodeError:
            raise  # The file is damaged.
        except (pa.ArrowException, ValueError, OverflowError):
            raise wrong_kind(table.where, role, name, column.type) from None
        empty = places == len(found) - 1
        if empty.any() and not table.lenient:
            raise missing_value(table.where, name, sum(map(len, codes)) + int(np.argmax(empty)))
        if any(isinstance(each, float) for each in found):
            found = [*to_integers(np.array(found[:-1]), role).tolist(), None]
        held = [each if isinstance(each, bytes) else str(each) for each in found[:-1]]
        held += [""] if empty.any() else []
        codes.append(np.array([vocabulary.code(each) for each in held], dtype=np.int64)[places])
    return vocabulary.coded(codes)


def clients_and_splits(
    chunks: Mapping[str, Sequence[Any]], table: Table, client: str, split: str | None
) -> tuple[Coded, Coded | None]:
    """The column of clients and, if there is one, the column of splits."""
    owner = coded_names(chunks[client], table, "client", client)
    owner = drop_zero_decimals(owner) if table.parse else owner
    return owner, None if split is None else coded_names(chunks[split], table, "split", split)


def concat(marks: Sequence[NDArray[np.bool_]], table: Table) -> NDArray[np.bool_]:
    """The marks of all batches; a table without rows is refused."""
    if not sum(map(len, marks)):
        raise PmtlError(f"{table.where} has a header but no rows: a federation needs data.")
    return np.concatenate(marks)


def texts(
    batch: Any, names: Sequence[str], table: Table, first: int, usable: NDArray[np.bool_]
) -> Iterator[str]:
    """The text of each row; the texts of several columns are joined by a space. In production, a
    row with an empty cell is marked in `usable`."""
    columns = [batch.column(name) for name in names]
    for column, name in zip(columns, names, strict=True):
        if not is_text(column.type):
            raise wrong_kind(table.where, "text", name, column.type)
        filled = column.is_valid().to_numpy(zero_copy_only=False)
        if not (table.lenient or filled.all()):
            raise missing_value(table.where, name, first + int(np.argmin(filled)))
        usable &= filled
    for parts in zip(*(column.to_pylist() for column in columns), strict=True):
        yield " ".join(part or "" for part in parts)
