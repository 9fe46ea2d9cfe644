"""What the cells of a column are, collected batch by batch, for inferring a schema."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import numpy as np

from pmtl.data.schema.cells import (
    COMMA_NUMBER,
    boolean,
    distinct_texts,
    is_empty,
    is_readable,
    is_time,
    read_date,
    read_numbers,
)

#: The most different values of a column that are counted; further ones are ignored.
MOST_VALUES = 20_000
#: How dates are written, in the order in which they are tried; None is ISO 8601.
_DAYS = ("%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
_WORDS = ("%d-%b-%Y", "%d %b %Y", "%d%b%Y")
_TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
FORMATS = (None, *_DAYS, *_WORDS, *(f"{day} {time}" for day in _DAYS for time in _TIMES))
_COMMA = re.compile(r"[+-]?[0-9]+(,[0-9]+)+(\.[0-9]+)?")
_DECIMAL = re.compile(COMMA_NUMBER)
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
#: In a column of dates, at most this share of the cells, with at most so many different values, are
#: no dates.
_NO_DATES, _MOST_NO_DATES = 0.05, 20
#: By so many different values a format is tried before all cells are read with it.
_TRIED = 100


class Profile:
    """Counts over the cells of one column."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = self.missing = self.numbers = self.wrong = 0
        self.low, self.high = math.inf, -math.inf
        self.unreadable: str | None = None  #: the type of a column whose cells cannot be read
        self.typed = ""  #: "boolean" or "date" if the file says so
        self.values: Counter[str] = Counter()
        self.counted = 0  #: the cells that `values` counts
        self.formats: list[str | None] = list(FORMATS)  #: the formats that fit all cells so far
        self.all_dates = True  #: whether each cell so far fits one of them

    def add(self, column: Any) -> None:
        """Count the cells of a batch."""
        from pyarrow import types

        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        self.rows += len(column)
        if not is_readable(kind):
            self.unreadable = str(kind)
            return
        self.typed = "boolean" if types.is_boolean(kind) else "date" if is_time(kind) else ""
        cells = read_numbers(column)
        found = cells.values[~cells.missing & ~cells.wrong]
        self.missing += int(cells.missing.sum())
        self.wrong += int(cells.wrong.sum())
        self.numbers += len(found)
        if len(found):
            self.low, self.high = min(self.low, found.min()), max(self.high, found.max())
        self._count(column, cells.missing)

    def _count(self, column: Any, missing: Any) -> None:
        """Count values, as long as there are not too many different ones."""
        if len(self.values) >= MOST_VALUES:
            return
        codes, texts = distinct_texts(column)
        counts = np.bincount(codes[~missing], minlength=len(texts))
        new = {text: int(n) for text, n in zip(texts, counts, strict=True) if n and text}
        self.values.update(new)
        words = sum(n for text, n in new.items() if text.lower() in ("true", "false"))
        self.wrong, self.numbers = self.wrong + words, self.numbers - words
        self.counted += sum(new.values())
        if self.wrong and not self.typed:
            self.formats = [
                format
                for format in self.formats
                if all(read_date(text, format) is not None for text in new)
            ]
            self.all_dates &= all(
                any(read_date(text, format) is not None for format in self.formats or FORMATS)
                for text in new
            )

    @property
    def present(self) -> int:
        """The cells that are not empty."""
        return self.rows - self.missing

    @property
    def distinct(self) -> float:
        """The share of cells whose value is new."""
        return len(self.values) / max(self.counted, 1)

    @property
    def whole(self) -> bool:
        """Whether all numbers are written without a point."""
        return all(_WHOLE.fullmatch(value) for value in self.values)

    @property
    def words(self) -> float:
        """The mean number of words in a cell."""
        total = sum(len(value.split()) * count for value, count in self.values.items())
        return total / max(self.counted, 1)

    @property
    def is_number(self) -> bool:
        """Whether every cell that is not empty is a number."""
        return not self.wrong and not self.typed

    @property
    def is_boolean(self) -> bool:
        """Whether every cell is true or false, as a word or by its type; 0 and 1 are numbers."""
        if self.typed:
            return self.typed == "boolean"
        words = {value.lower() for value in self.values}
        if not words or any(boolean(word) is None for word in words):
            return False
        spelled = words & {"true", "false", "yes", "no"}
        return bool(spelled) or (self.wrong > 0 and len({boolean(word) for word in words}) == 2)

    @property
    def date_formats(self) -> list[str | None]:
        """The formats in which all cells are dates."""
        if self.typed:
            return [None] if self.typed == "date" else []
        return self.formats if self._only_texts else []

    @property
    def mixed_dates(self) -> bool:
        """Whether all cells are dates, but written in several ways."""
        return not self.typed and self._only_texts and not self.formats and self.all_dates

    def nearly_dates(self) -> tuple[list[str | None], tuple[str, ...]]:
        """The formats in which all but a few cells are dates, and the values of these few; ISO 8601
        is always read."""
        first = list(self.values)[:_TRIED]
        fits: dict[str | None, tuple[str, ...]] = {}
        for format in FORMATS:
            if sum(read_date(text, format) is None for text in first) <= len(first) / 2:
                fits[format] = tuple(
                    text
                    for text in self.values
                    if read_date(text, format) is None and read_date(text, None) is None
                )
        counts = {form: sum(self.values[t] for t in texts) for form, texts in fits.items()}
        least = min(counts.values(), default=self.counted)
        formats = [form for form, count in counts.items() if count == least]
        if least > _NO_DATES * self.counted or len(fits[formats[0]]) > _MOST_NO_DATES:
            return [], ()
        return formats, fits[formats[0]]

    @property
    def _only_texts(self) -> bool:
        return bool(self.wrong and self.values and not self.numbers)

    @property
    def decimal_comma(self) -> bool:
        """Whether all cells are numbers, of which some have a comma that can only be a decimal
        one: not every comma has three digits after it, and there are no decimal points."""
        if self.typed or not self.wrong:
            return False
        if not all(_DECIMAL.match(text) for text in self.values):
            return False
        ends = [text.partition(",")[2] for text in self.values if "," in text]
        return any(len(end) != 3 for end in ends)

    @property
    def with_commas(self) -> bool:
        """Whether most cells are numbers with a comma, which may mean a point or nothing."""
        found = sum(n for text, n in self.values.items() if _COMMA.fullmatch(text))
        return found > 0 and 2 * (found + self.numbers) > self.present

    @property
    def texts(self) -> list[str]:
        """The values that are not numbers, of a column that holds numbers, too."""
        return [text for text in self.values if not is_number(text) and not is_empty(text)]


def is_number(text: str) -> bool:
    """Whether a text is a number as CSV files have them."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python would accept 1_000.
