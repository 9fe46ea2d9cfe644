"""Rows without targets, for a model to answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import check_features
from pmtl.data.npz import read_x
from pmtl.data.table import CSV_ENDINGS, PARQUET_ENDINGS
from pmtl.errors import PmtlError, naming


def read_features(
    path: str | Path, shape: tuple[int, ...], names: Sequence[str] | None
) -> NDArray[np.float32]:
    """Features from a table (columns found by the names that training saw), a .npz (`x`) or .npy.

    Other columns, a client or a target among them, are ignored.
    """
    path = Path(path)
    if not path.is_file():
        raise PmtlError(f"There is no file {path} to predict on.")
    with naming(str(path)):
        if path.name.lower().endswith((*CSV_ENDINGS, *PARQUET_ENDINGS)):
            x: NDArray[Any] = _read_table(path, shape, names)
        else:
            x = read_x(path)
        if x.shape[1:] != shape:
            raise PmtlError(
                f"{path} holds rows of shape {x.shape[1:]}, but the model reads {shape}."
            )
        pixels = x.dtype == np.uint8
        checked = check_features(x, None if names is None else tuple(names))
        return np.asarray(checked, dtype=np.float32) / np.float32(255 if pixels else 1)


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
        columns = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise PmtlError(f"{path} cannot be read as a table: {error}.") from error
    if names is None:
        # Trained on bare arrays, whose features have places and no names.
        names = columns
        if (len(names),) != shape:
            raise PmtlError(f"{path} has {len(names)} columns, but the model reads {shape}.")
    counts = Counter(columns)
    for name in names:
        if not counts[name]:
            raise PmtlError(f"{path} lacks the feature column {name!r} that training used.")
        if counts[name] > 1:
            raise PmtlError(f"{path} has more than one column named {name!r}: rename one.")
    found = []
    for name in names:
        try:
            column = table.column(name).cast(pa.float64())
        except pa.ArrowException as error:
            raise PmtlError(f"The column {name!r} of {path} does not hold numbers.") from error
        if column.null_count:
            raise PmtlError(f"The column {name!r} of {path} has empty cells: fill them in.")
        found.append(column.to_numpy())
    return np.stack(found, axis=1)
