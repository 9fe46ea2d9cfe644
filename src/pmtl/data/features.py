"""Rows without targets, for a model to answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import check_features
from pmtl.data.table import CSV_ENDINGS, PARQUET_ENDINGS
from pmtl.errors import PmtlError


def read_features(
    path: str | Path, shape: tuple[int, ...], names: Sequence[str] | None
) -> NDArray[np.float32]:
    """Features from a table (columns found by the names that training saw), a .npz (`x`) or .npy.

    Other columns, a client or a target among them, are ignored.
    """
    path = Path(path)
    if not path.is_file():
        raise PmtlError(f"There is no file {path} to predict on.")
    if path.name.lower().endswith((*CSV_ENDINGS, *PARQUET_ENDINGS)):
        x = _read_table(path, shape, names)
    else:
        x = _read_array(path)
    if x.shape[1:] != shape:
        raise PmtlError(f"{path} holds rows of shape {x.shape[1:]}, but the model reads {shape}.")
    pixels = x.dtype == np.uint8
    checked = np.asarray(check_features(x, None if names is None else tuple(names)))
    return np.asarray(checked, dtype=np.float32) / np.float32(255 if pixels else 1)


def _read_array(path: Path) -> NDArray[Any]:
    try:
        loaded = np.load(path, allow_pickle=False)
        return np.asarray(loaded if isinstance(loaded, np.ndarray) else loaded["x"])
    except KeyError as error:
        raise PmtlError(f"{path} has no array 'x' to predict on.") from error
    except (ValueError, OSError, EOFError) as error:
        raise PmtlError(
            f"{path} cannot be read ({error}): give a .csv, .parquet, .npz or .npy file."
        ) from error


def _read_table(
    path: Path, shape: tuple[int, ...], names: Sequence[str] | None
) -> NDArray[np.float64]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if path.name.lower().endswith(PARQUET_ENDINGS):
            table = parquet.read_table(path)
        else:
            tabs = ".tsv" in path.suffixes
            options = csv.ParseOptions(delimiter="\t" if tabs else ",")
            table = csv.read_csv(path, parse_options=options)
    except (pa.ArrowException, OSError) as error:
        raise PmtlError(f"{path} cannot be read as a table: {error}.") from error
    if names is None:
        # Trained on bare arrays, whose features have places and no names.
        names = table.column_names
        if (len(names),) != shape:
            raise PmtlError(f"{path} has {len(names)} columns, but the model reads {shape}.")
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise PmtlError(f"{path} lacks the feature column {missing[0]!r} that training used.")
    columns = []
    for name in names:
        try:
            column = table.column(name).cast(pa.float64())
        except pa.ArrowException as error:
            raise PmtlError(f"The column {name!r} of {path} does not hold numbers.") from error
        if column.null_count:
            raise PmtlError(f"The column {name!r} of {path} has empty cells: fill them in.")
        columns.append(column.to_numpy())
    return np.stack(columns, axis=1)
