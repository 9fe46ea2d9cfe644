"""Metrics as flat rows, CSV and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def flat_row(values: Mapping[str, Any], prefix: str = "", separator: str = ".") -> Row:
    """Nested values as one row. A name is `prefix` and the path to its value, joined by
    `separator`.

    >>> flat_row({"round": 1, "validation": {"personal": {"loss": 0.5}}})
    {'round': 1, 'validation.personal.loss': 0.5}
    """
    row: Row = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            row |= flat_row(value, f"{prefix}{name}{separator}", separator)
        else:
            row[f"{prefix}{name}"] = value
    return row


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Flat rows as columns, in the order of their first cells; None where a row lacks a name."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def csv_text(lines: Iterable[Mapping[str, Any]]) -> str:
    """The lines of `metrics.jsonl` as CSV, a row for each round; what was not measured is empty."""
    columns = columns_of(flat_row(line) for line in lines)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns or ["round"])
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def make_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A pandas DataFrame of these columns or, where pandas is not installed, a pyarrow Table."""
    try:
        import pandas
    except ImportError:
        import pyarrow

        return pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
    return pandas.DataFrame(dict(columns))
