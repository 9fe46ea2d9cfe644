"""Where predictions go: a table in memory, or a file that is complete or absent.

CSV and Parquet files are written piece by piece. Arrays (.npz, .npy) are collected in memory first:
they hold answers and names, and no features.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pmtl import storage as files
from pmtl.errors import PmtlError

ENDINGS = (".csv", ".parquet", ".npz", ".npy")

#: Columns as Arrow arrays, by name.
Columns = Mapping[str, Any]


def check_output_path(path: Path) -> None:
    """Refuse a path where no answers can be written, before anything is computed."""
    if path.suffix not in ENDINGS:
        raise PmtlError(f"{path} has no known ending: use .csv, .parquet, .npz or .npy.")
    if not path.parent.is_dir():
        raise PmtlError(f"{path} cannot be written: there is no folder {path.parent}.")


def write(path: Path | None, pieces: Iterable[Columns], answers: Sequence[str]) -> Any:
    """Write the pieces, some rows at a time, to a file that appears when all is written, or without
    a `path` return an Arrow table. `answers` are the names of the columns of answers."""
    if path is not None and path.suffix in (".csv", ".parquet"):
        files.replace(path, lambda partial: _stream(partial, path, pieces))
        return None
    import pyarrow as pa

    table = pa.concat_tables([pa.table(dict(columns)) for columns in pieces])
    if path is None:
        return table
    files.write_bytes(path, _array_file(table, path.suffix, answers))
    return None


def write_table(path: Path, columns: Columns) -> None:
    """Write one table to a .csv or .parquet file; NaN becomes an empty cell."""
    import pyarrow as pa

    if path.suffix not in (".csv", ".parquet"):
        raise PmtlError(f"{path} has no known ending: use .csv or .parquet.")
    check_output_path(path)
    write(path, [{name: pa.array(v, from_pandas=True) for name, v in columns.items()}], ())


def _stream(partial: Path, path: Path, pieces: Iterable[Columns]) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet, types

    make = csv.CSVWriter if path.suffix == ".csv" else parquet.ParquetWriter
    writer: Any = None
    try:
        for columns in pieces:
            plain = {
                name: column.dictionary_decode() if types.is_dictionary(column.type) else column
                for name, column in columns.items()
            }
            try:
                table = pa.table(plain)
                writer = writer or make(str(partial), table.schema)
                writer.write_table(table)
            except pa.ArrowException as error:
                raise PmtlError(
                    f"{path} cannot hold these columns ({error}): choose those to carry over with "
                    "--keep."
                ) from error
    finally:
        if writer is not None:
            writer.close()


def _array_file(table: Any, ending: str, answers: Sequence[str]) -> bytes:
    """The bytes of an .npz with an array for each column, or of an .npy with the answers."""
    buffer = io.BytesIO()
    predictions = [name for name in answers if not name.startswith("probability of ")]
    probabilities = [name for name in answers if name not in predictions]
    if ending == ".npy":
        np.save(buffer, _array(table, probabilities or predictions))
        return buffer.getvalue()
    kept = [name for name in table.column_names if name not in answers]
    arrays = {name: _array(table, [name]) for name in kept}
    arrays["prediction"] = _array(table, predictions)
    if probabilities:
        arrays["probability"] = _array(table, probabilities)
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _array(table: Any, names: Sequence[str]) -> Any:
    """Columns as one array without Python objects; several become two-dimensional."""
    parts = [table.column(name).to_numpy() for name in names]
    parts = [part.astype(str) if part.dtype == object else part for part in parts]
    return parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
