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

    column = series.to_arrow() if hasattr(series, "to_arrow") else series  # A polars series.
    try:
        if not isinstance(column, (pa.Array, pa.ChunkedArray)):
            column = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        values = (None if is_missing(value) else as_text(value) for value in series)
        column = pa.array(list(values), pa.string())
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def as_batch(rows: Any) -> Any:
    """Rows as an Arrow record batch: an Arrow table, a pandas or polars frame, or a mapping."""
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        return rows
    frame = hasattr(rows, "columns") and hasattr(rows, "__getitem__")
    if not frame and not isinstance(rows, Mapping):
        raise PmtlError(
            "Rows with a schema are a frame (pandas, polars, Arrow) or a mapping of columns, whose "
            f"columns have names, not {type(rows).__name__}."
        )
    if isinstance(rows, pa.Table):
        names, columns = rows.column_names, rows.columns
    else:
        keys = list(rows) if isinstance(rows, Mapping) else list(rows.columns)
        names, columns = [str(key) for key in keys], [rows[key] for key in keys]
    return pa.RecordBatch.from_arrays([arrow_array(column) for column in columns], names=names)
