"""Metrics as flat rows, CSV and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def flat_row(values: Mapping[str, Any], prefix: str = "") -> Row:
    """Nested values as one row; a name is the path to its value, joined by dots.

    >>> flat_row({"round": 1, "validation": {"personal": {"loss": 0.5}}})
    {'round': 1, 'validation.personal.loss': 0.5}

    Args:
        values: names and values; values may be mappings.
        prefix: what names begin with.
    """
    row: Row = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            row |= flat_row(value, f"{prefix}{name}.")
        else:
            row[f"{prefix}{name}"] = value
    return row


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, in the order in which names first occur; None where a row lacks a name.

    Args:
        rows: flat rows.
    """
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def csv_text(lines: Iterable[Mapping[str, Any]]) -> str:
    """Lines of metrics as CSV, a row for each round; an empty cell where nothing was measured.

    Args:
        lines: the lines of `metrics.jsonl`.
    """
    columns = columns_of(flat_row(line) for line in lines)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns or ["round"])
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def make_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A pandas DataFrame or, where pandas is not installed, a pyarrow Table.

    Args:
        columns: names and values of the columns.
    """
    try:
        import pandas
    except ImportError:
        import pyarrow

        return pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
    return pandas.DataFrame(dict(columns))
