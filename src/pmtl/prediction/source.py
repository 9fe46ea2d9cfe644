"""Rows to predict on: a table, a frame or arrays, read in pieces of the same number of rows.

The number of rows of a piece depends on the model alone. So the same rows get the same answers to
the last bit, whether they come from a CSV file, a Parquet file or a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import as_array, is_sparse
from pmtl.data.client_names import Coded, distinct
from pmtl.data.load import read_columns
from pmtl.data.readers.cells import Table, coded_names
from pmtl.data.readers.columns import CLIENT, TABLES, dropped_names
from pmtl.data.readers.npz import read_new_rows
from pmtl.data.readers.table import frame_table, open_table
from pmtl.data.schema.inputs import Inputs, find_columns
from pmtl.errors import PmtlError, errors_naming
from pmtl.spec import parse_spec, unknown
from pmtl.storage import as_path

#: Rows of a piece, and floats of a piece of dense rows.
MOST_ROWS, MOST_FLOATS = 2**14, 2**24
#: Options of a spec: columns that are not features, and who reads the file.
_OPTIONS = ("client", "target", "split", "drop", "reader")


@dataclass(frozen=True)
class Piece:
    first: int  #: the number of the first row
    x: Any  #: features, an array or a CSR matrix
    usable: NDArray[np.bool_]  #: which rows can be predicted
    clients: Coded | None
    kept: dict[str, Any]  #: the columns that are carried over, Arrow arrays


@dataclass(frozen=True)
class Source:
    """Rows that can be read several times."""

    where: str  #: the name in messages
    size: int  #: how many rows a piece has
    client_column: str | None
    kept: tuple[str, ...]  #: the columns that are carried over
    #: The clients of all rows, part by part; without a client column, how many rows a part has.
    clients: Callable[[], Iterator[Coded | int]]
    pieces: Callable[[], Iterator[Piece]]


@dataclass(frozen=True)
class ReadingRules:
    """How rows are read."""

    inputs: Inputs  #: what the model reads
    client_names: tuple[str, ...] = CLIENT  #: the names that the client column may have
    client_column: str | None = None  #: by default the first of `client_names` that is there
    keep: tuple[str, ...] | None = None  #: columns to carry over; by default all but features
    lenient: bool = False  #: whether rows that cannot be read are marked instead of refused
    drop: tuple[str, ...] = ()  #: columns that are not carried over by default
    clients: Any = None  #: the client of each row of an array
    options: Mapping[str, str] = field(default_factory=dict)  #: what a spec says

    @property
    def rows(self) -> int:
        """The rows of a piece."""
        floats = 1 if self.inputs.text is not None else prod(self.inputs.shape)
        return max(1, min(MOST_ROWS, MOST_FLOATS // floats))


@contextmanager
def open_rows(given: Any, reading: ReadingRules) -> Iterator[Source]:
    """Open rows: a path or `PATH:client=COLUMN`, a frame, or an array of features."""
    if isinstance(given, np.ndarray) or is_sparse(given):
        clients = None if reading.clients is None else np.asarray(reading.clients)
        yield _array_source(given, clients, "the array", reading)
        return
    if reading.clients is not None:
        raise PmtlError(
            "clients=… names the clients of an array's rows; a file or a frame has a client column "
            "(client_column=…)."
        )
    if not isinstance(given, (str, Path)):
        if not hasattr(given, "columns"):
            raise PmtlError(
                f"Rows to predict on are a file, a frame or an array, not {type(given).__name__}."
            )
        yield _table_source(frame_table(given, reading.lenient), reading)
        return
    path, reading = _parse(given, reading)
    if not path.exists():
        raise PmtlError(f"There is no file {path} to predict on.")
    named = "reader" in reading.options
    arrays = not named and path.suffix.lower() in (".npz", ".npy")
    a_table = not named and path.name.lower().endswith(tuple(f".{ending}" for ending in TABLES))
    for option in reading.options:
        if option not in _OPTIONS and (arrays or a_table):  # Other readers have their own options.
            raise unknown("option of rows to predict on named", option, _OPTIONS)
    if a_table:
        with open_table(path) as table:
            yield _table_source(replace(table, lenient=reading.lenient), reading)
        return
    text, schema = reading.inputs.text, reading.inputs.schema
    if text is not None or schema is not None:
        needs = "text" if schema is None else "a table with the columns of its schema"
        raise PmtlError(
            f"{path} is not a table: this model needs {needs} in .csv, .tsv or .parquet."
        )
    with errors_naming(str(path)):
        if arrays:
            x, client = read_new_rows(path, reading.client_column or "client")
        else:
            columns = read_columns(path, reading.options, _OPTIONS)
            x, client = _in_order(columns, path, reading), _names_of(columns.get("client"))
            reading = replace(reading, client_column=None)
        source = _array_source(x, client, str(path), reading)
    yield source


def _parse(given: str | Path, reading: ReadingRules) -> tuple[Path, ReadingRules]:
    path = as_path(given, "The rows")
    if path.exists():
        return path, reading
    name, options = parse_spec(str(given))
    column = reading.client_column or options.get("client")
    dropped = dropped_names(options.get("drop", ""))
    reading = replace(reading, client_column=column, drop=dropped, options=options)
    return as_path(name, "The rows"), reading


def _names_of(column: Any) -> NDArray[Any] | None:
    """The name of the client of each row, if a reader returned clients."""
    if isinstance(column, Coded):
        return np.array(column.names)[column.codes]
    return None if column is None else as_array(column, "clients")


def _in_order(columns: Mapping[str, Any], path: Path, reading: ReadingRules) -> Any:
    """The features that a reader returned, in the order of training if they have names."""
    x = columns["x"] if is_sparse(columns["x"]) else as_array(columns["x"], "features")
    names, wanted = columns.get("feature_names"), reading.inputs.names
    if names is None or wanted is None:
        return x
    places = {name: place for place, name in enumerate(names)}
    for name in wanted:
        if name not in places:
            raise unknown(f"column of {path} named", name, tuple(places))
    return x[:, [places[name] for name in wanted]]


def _table_source(table: Table, reading: ReadingRules) -> Source:
    client = _client_column(table, reading)
    features = reading.inputs.columns(table, {client, *(reading.keep or ()), *reading.drop})
    if reading.keep is None:
        without = {*features, *reading.drop}
        kept = tuple(name for name in table.names if name not in without)
    else:
        kept = reading.keep
    for name in kept:
        if name not in table.names:
            raise unknown(f"column of {table.where} named", name, table.names)
    find_columns(table, kept)
    used = tuple(dict.fromkeys((*features, *kept, *((client,) if client else ()))))

    def clients() -> Iterator[Coded | int]:
        for _, batch in table.batches((client or used[0],)):
            yield _names(batch, client, table) if client else batch.num_rows

    def pieces() -> Iterator[Piece]:
        first = 0
        with errors_naming(table.where):
            for batch in _of_size((batch for _, batch in table.batches(used)), reading.rows):
                x, usable = reading.inputs.rows(batch, features, table, first)
                names = _names(batch, client, table) if client else None
                yield Piece(first, x, usable, names, {name: batch.column(name) for name in kept})
                first += batch.num_rows

    return Source(table.where, reading.rows, client, kept, clients, pieces)


def _client_column(table: Table, reading: ReadingRules) -> str | None:
    if reading.client_column is not None:
        if reading.client_column not in table.names:
            raise unknown(f"column of {table.where} named", reading.client_column, table.names)
        return reading.client_column
    schema, features = reading.inputs.schema, reading.inputs.names or ()
    if schema is not None:
        features = tuple(column.name for column in schema.features)
    found = (name for name in reading.client_names if name in table.names and name not in features)
    return next(found, None)


def _names(batch: Any, client: str, table: Table) -> Coded:
    return coded_names([batch.column(client)], table, "client", client)


def _of_size(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """The same rows in batches of `rows`; the last one may have fewer."""
    import pyarrow as pa

    held: list[Any] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            table = pa.Table.from_batches(held)
            for at in range(0, count - count % rows, rows):
                yield _as_batch(table.slice(at, rows))
            held = table.slice(count - count % rows).to_batches()
            count %= rows
    if count:
        yield _as_batch(pa.Table.from_batches(held))


def _as_batch(table: Any) -> Any:
    (batch,) = table.combine_chunks().to_batches()
    return batch


def _array_source(
    given: Any, client: NDArray[Any] | None, where: str, reading: ReadingRules
) -> Source:
    import pyarrow as pa

    x = reading.inputs.array(given, where)
    total = int(x.shape[0])
    if client is None and reading.client_column is not None:
        raise PmtlError(f"{where} has no array {reading.client_column!r} that names the clients.")
    if client is not None and client.shape != (total,):
        raise PmtlError(f"{where} has {total} rows, but names {client.size} clients.")
    name = reading.client_column or "client"
    kept: tuple[str, ...] = () if client is None else (name,)
    if reading.keep is not None:
        for column in reading.keep:
            if column not in kept:
                raise unknown(f"column of {where} named", column, kept)
        kept = reading.keep

    def clients() -> Iterator[Coded | int]:
        yield total if client is None else distinct(client, "client")

    def pieces() -> Iterator[Piece]:
        with errors_naming(where):
            for first in range(0, total, reading.rows):
                some = slice(first, min(first + reading.rows, total))
                rows, usable = reading.inputs.part(x, some, reading.lenient)
                coded = None if client is None else distinct(client[some], "client")
                columns = {}
                if coded is not None and kept:
                    columns[name] = pa.array(coded.names).take(pa.array(coded.codes))
                yield Piece(first, rows, usable, coded, columns)

    found = None if client is None else name
    return Source(where, reading.rows, found, kept, clients, pieces)
