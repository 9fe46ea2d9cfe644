"""Cells of an Arrow column as numbers, dates, booleans and categories.

Cells of a CSV file are text, those of a Parquet file or a frame have types; both give the same. An
empty cell has many spellings. A category of the schema never counts as empty.
"""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.readers.cells import Table, distinct_cells, is_number, is_text, numbers
from pmtl.data.schema.column import EPOCH, days_since_epoch

#: Spellings of an empty cell, in lower case.
EMPTY = {
    *("", "na", "n/a", "n.a.", "#n/a", "#n/a n/a", "#na", "<na>", "nan", "-nan", "null", "none"),
    *("nil", "nat", "-", "--", "?", ".", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
    *("#null!", "#div/0!", "#value!", "#ref!", "#name?", "#num!"),  # Spreadsheets' errors.
}
TRUE = ("true", "yes", "t", "y", "on", "1")
FALSE = ("false", "no", "f", "n", "off", "0")
_BOOLEANS = {**dict.fromkeys(TRUE, 1.0), **dict.fromkeys(FALSE, 0.0)}
#: Numbers with a decimal comma, and with points between thousands.
COMMA_NUMBER = r"^[+-]?([0-9]{1,3}(\.[0-9]{3})+|[0-9]+)(,[0-9]+)?([eE][+-]?[0-9]+)?$"
_WHOLE_FLOAT = re.compile(r"[+-]?[0-9]+\.0+")
#: Parses numbers and accepts text that is not a number.
_READER = Table("", [], parse=True, lenient=True, read=lambda columns: [])


@dataclass(frozen=True)
class Cells:
    """A column's cells: their values, and which of them are empty or cannot be read."""

    values: NDArray[np.float64]
    missing: NDArray[np.bool_]
    wrong: NDArray[np.bool_]


def is_empty(cell: str | None, more: Collection[str] = ()) -> bool:
    """Whether a text is one of the spellings of an empty cell, or one of `more`."""
    return cell is None or cell.strip().lower() in EMPTY or cell.strip() in more


def is_readable(kind: Any) -> bool:
    """Whether a column of this Arrow type has cells that a schema can read."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    plain = is_text(kind) or is_number(kind) or is_time(kind)
    return bool(plain or types.is_decimal(kind) or types.is_null(kind))


def is_time(kind: Any) -> bool:
    """Whether an Arrow type is a date or a timestamp."""
    from pyarrow import types

    return bool(types.is_date(kind) or types.is_timestamp(kind))


def distinct_texts(column: Any) -> tuple[NDArray[np.int64], list[str | None]]:
    """The code of each cell and the text of each code; None is an empty cell."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_null(column.type):
        column = column.cast(pa.string())
    elif types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    codes, values = distinct_cells(column)
    return codes, [None if value is None else as_text(value) for value in values]


def as_text(value: Any) -> str:
    """A cell as it would be written in a CSV file; whole floats are written as integers."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").strip()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    return str(value)


def read_numbers(column: Any, more: Collection[str] = (), decimal: str = ".") -> Cells:
    """Cells as numbers. Dates are not numbers; true and false are 1 and 0. `decimal` is the mark
    before the decimals of numbers in text."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_time(column.type):
        empty = column.is_null().to_numpy(zero_copy_only=False)
        return Cells(np.full(len(column), np.nan), empty, ~empty)
    if is_text(column.type):
        column = _without_empty(column, more)
        column = _with_points(column) if decimal == "," else column
    values, wrong = numbers(column, _READER, "feature", "")
    values = np.asarray(values, dtype=np.float64)
    return Cells(values, np.isnan(values) & ~wrong, wrong)


def _without_empty(column: Any, more: Collection[str]) -> Any:
    """A column of text in which empty cells of every spelling are null."""
    import pyarrow as pa
    from pyarrow import compute

    trimmed = compute.utf8_trim_whitespace(column.cast(pa.large_string()))
    spellings = pa.array(sorted(EMPTY), pa.large_string())
    empty = compute.is_in(compute.utf8_lower(trimmed), value_set=spellings)
    if more:
        further = pa.array(sorted(more), pa.large_string())
        empty = compute.or_(empty, compute.is_in(trimmed, value_set=further))
    return compute.if_else(empty, None, trimmed)


def _with_points(column: Any) -> Any:
    """Text with decimal points instead of decimal commas. Other cells become "no number"."""
    from pyarrow import compute

    fits = compute.match_substring_regex(column, COMMA_NUMBER)
    whole = compute.replace_substring(column, ".", "")
    return compute.if_else(fits, compute.replace_substring(whole, ",", "."), "no number")


def read_each(
    column: Any, parse: Callable[[str], float | None], more: Collection[str] = ()
) -> Cells:
    """Cells by the function `parse` of a text, which gives None for what it cannot read."""
    codes, texts = distinct_texts(column)
    found = [None if is_empty(text, more) else parse(text or "") for text in texts]
    values = np.array(found, dtype=np.float64)[codes]  # None becomes NaN.
    missing = np.array([is_empty(text, more) for text in texts])[codes]
    return Cells(values, missing, np.isnan(values) & ~missing)


def boolean(text: str) -> float | None:
    """1 and 0 for true and false in the usual spellings."""
    word = text.lower()
    return _BOOLEANS.get(word[:-2] if _WHOLE_FLOAT.fullmatch(word) else word)


def date_reader(formats: Sequence[str]) -> Callable[[str], float | None]:
    """A function that gives the days since 2000-01-01 of a date in the first of the `formats` that
    fits, or in ISO 8601, as which dates of a Parquet file come."""

    def parse(text: str) -> float | None:
        found = (read_date(text, format) for format in (*formats, None))
        return next((days for days in found if days is not None), None)

    return parse


def read_date(text: str, format: str | None) -> float | None:
    """The days since 2000-01-01 of a date as `format` (None: ISO 8601) writes it, or None."""
    with contextlib.suppress(ValueError, OverflowError):
        if format is None:
            return days_since_epoch(datetime.datetime.fromisoformat(text))
        return days_since_epoch(datetime.datetime.strptime(text, format))
    return None


def months_and_weekdays(days: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The month (0 to 11) and the weekday (0 is Monday) of days since 2000-01-01."""
    whole = np.floor(days).astype(np.int64)
    dates = np.datetime64(EPOCH.date()) + whole
    months = dates.astype("datetime64[M]").astype(np.int64) % 12
    return months, (whole + EPOCH.weekday()) % 7


def find_category(text: str, places: dict[str, int]) -> int | None:
    """The place of a category; 1.0 is the category 1 if there is no category 1.0."""
    place = places.get(text)
    if place is None and _WHOLE_FLOAT.fullmatch(text):
        place = places.get(text.partition(".")[0])
    if place is None and text.lower() in ("true", "false"):
        place = places.get(text.lower())
    return place
