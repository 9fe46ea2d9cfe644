"""Columns of frames and mappings as Arrow arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pmtl.data.client_names import is_missing
from pmtl.data.schema.cells import as_text
from pmtl.errors import PmtlError


def arrow_array(series: Any) -> Any:
    """A column as an Arrow array; values of mixed types become text."""
    import pyarrow as pa

    if isinstance(series, pa.ChunkedArray):
        return series.combine_chunks()
    if hasattr(series, "to_arrow"):  # A polars series.
        series = series.to_arrow()
    held = isinstance(series, (pa.Array, pa.ChunkedArray))
    try:
        column = series if held else pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        values = (None if is_missing(value) else as_text(value) for value in series)
        column = pa.array(list(values), pa.string())
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def as_batch(rows: Any) -> Any:
    """Rows as an Arrow record batch: an Arrow table, a pandas or polars frame, or a mapping."""
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        return rows
    if isinstance(rows, pa.Table):
        arrays = [column.combine_chunks() for column in rows.columns]
        names = rows.column_names
    elif isinstance(rows, Mapping) or (hasattr(rows, "columns") and hasattr(rows, "__getitem__")):
        keys = list(rows) if isinstance(rows, Mapping) else list(rows.columns)
        names, arrays = [str(key) for key in keys], [arrow_array(rows[key]) for key in keys]
    else:
        raise PmtlError(
            "Rows with a schema are a frame (pandas, polars, Arrow) or a mapping of columns, whose "
            f"columns have names, not {type(rows).__name__}."
        )
    return pa.RecordBatch.from_arrays(arrays, names=names)
