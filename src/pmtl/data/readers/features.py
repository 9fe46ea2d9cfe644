"""Rows without targets, for a model to answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import check_features
from pmtl.data.readers.lenient import is_text
from pmtl.data.readers.npz import read_x
from pmtl.data.readers.table import CSV_ENDINGS, PARQUET_ENDINGS
from pmtl.data.readers.text import Known, TextRule, frequencies
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


def read_text(path: str | Path, rule: TextRule, names: Sequence[str] | None) -> Any:
    """The text of a table as the features (CSR) that training made of it: `names` are its words,
    unless they were hashed. Other columns are ignored."""
    path = Path(path)
    if not path.is_file():
        raise PmtlError(f"There is no file {path} to predict on.")
    if not path.name.lower().endswith((*CSV_ENDINGS, *PARQUET_ENDINGS)):
        raise PmtlError(f"{path} is no table: this model reads text, from .csv, .tsv or .parquet.")
    with naming(str(path)):
        table = _open_table(path, rule.columns)
        _find_columns(path, table.column_names, rule.columns)
        texts = []
        for name in rule.columns:
            column = table.column(name)
            if not is_text(column.type):
                raise PmtlError(f"The column {name!r} of {path} does not hold text.")
            if column.null_count:
                raise PmtlError(f"The column {name!r} of {path} has empty cells: fill them in.")
            texts.append(column.to_pylist())
        known = Known(names=None if names is None else tuple(names), hashed=rule.hashed)
        bags = known.bags()
        for parts in zip(*texts, strict=True):
            bags.append(rule.words(" ".join(parts)))
        return check_features(frequencies(bags.finish()), None)


def _open_table(path: Path, text: Sequence[str] = ()) -> Any:
    """The whole table; columns of text are not taken for anything else."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if path.name.lower().endswith(PARQUET_ENDINGS):
            table = parquet.read_table(path)
        else:
            tabs = ".tsv" in path.suffixes
            table = csv.read_csv(
                path,
                parse_options=csv.ParseOptions(
                    delimiter="\t" if tabs else ",", newlines_in_values=bool(text)
                ),
                convert_options=csv.ConvertOptions(
                    column_types={name: pa.string() for name in text}
                ),
            )
        table.column_names  # noqa: B018  They are decoded, and may fail, only when asked for.
        return table
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise PmtlError(f"{path} cannot be read as a table: {error}.") from error


def _find_columns(path: Path, columns: Sequence[str], names: Sequence[str]) -> None:
    counts = Counter(columns)
    for name in names:
        if not counts[name]:
            raise PmtlError(f"{path} lacks the feature column {name!r} that training used.")
        if counts[name] > 1:
            raise PmtlError(f"{path} has more than one column named {name!r}: rename one.")


def _read_table(
    path: Path, shape: tuple[int, ...], names: Sequence[str] | None
) -> NDArray[np.float64]:
    import pyarrow as pa

    table = _open_table(path)
    columns = table.column_names
    if names is None:
        # Trained on bare arrays, whose features have places and no names.
        names = columns
        if (len(names),) != shape:
            raise PmtlError(f"{path} has {len(names)} columns, but the model reads {shape}.")
    _find_columns(path, columns, names)
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
