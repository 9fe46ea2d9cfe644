"""Tables: CSV, TSV (also gzipped) and Parquet, and pandas frames; one row per sample.

`open_table` opens every table: for experiments, for production (`lenient`: see `cells.py`) and for
prediction. A table may be larger than memory: it is read in batches, and its features move to disk
if necessary. Text is accepted as a name (client, split, class) and in the columns of `text=`
(`text.py`). A table with other columns than numbers is read by its schema (`data/schema/`), which
an experiment infers if there is none.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import is_missing
from pmtl.data.disk import ArrayBuilder
from pmtl.data.readers.bounds import TARGET, GivenBounds, read_bounds
from pmtl.data.readers.cells import Table, clients_and_splits, concat, number_rows, targets, texts
from pmtl.data.readers.columns import Columns, Roles, assign_roles, dropped_names
from pmtl.data.readers.text import Bags, TextRule
from pmtl.data.readers.text_rows import TextOptions, TextRows
from pmtl.data.schema.cells import as_text
from pmtl.data.schema.infer import infer
from pmtl.data.schema.rows import read_rows
from pmtl.data.schema.schema import Schema
from pmtl.errors import PmtlError, PublicError, kind_of, listed

#: The possible delimiters of a CSV file; the first is the default.
_DELIMITERS = (",", ";", "\t", "|")
_LONGEST_HEADER = 2**24
PARQUET_ENDINGS = (".parquet", ".pq")


@contextmanager
def open_table(path: Path, lenient: bool = False, progress: bool = False) -> Iterator[Table]:
    """Open a CSV or TSV file with a header line, or a Parquet file. If `lenient`, CSV rows with too
    many or too few cells are left out; `progress` shows a bar for a large table."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    # In production nothing is read ahead: no thread of pyarrow calls the handler of bad rows when
    # the program ends.
    reading = csv.ReadOptions(use_threads=not lenient)
    opened = ExitStack()

    def read_csv(columns: Sequence[str]) -> Any:
        types = {name: pa.string() for name in columns}
        convert = csv.ConvertOptions(column_types=types, include_columns=list(columns))
        return opened.enter_context(csv.open_csv(path, reading, parsing, convert))

    try:
        if path.name.lower().endswith(PARQUET_ENDINGS):
            with parquet.ParquetFile(path) as file:
                yield Table(
                    *(str(path), file.schema_arrow.names, False, lenient),
                    read=lambda columns: file.iter_batches(columns=list(columns)),
                    steps=file.metadata.num_rows >> 16,
                    progress=progress,
                )
        else:
            parsing = _parse_options(_delimiter(path), lenient)
            with csv.open_csv(path, reading, parsing) as header:
                names = header.schema.names
            steps = path.stat().st_size >> 20  # A batch is a mebibyte of text.
            with opened:
                yield Table(str(path), names, True, lenient, read_csv, steps, progress)
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        no_text = "UTF8" in reason or isinstance(error, UnicodeDecodeError)
        if no_text and not path.name.lower().endswith(PARQUET_ENDINGS):
            raise PmtlError(
                f"{path} is not UTF-8 text: save it again in UTF-8 (spreadsheets call this format "
                '"CSV UTF-8").'
            ) from error
        raise PmtlError(
            f"{path} cannot be read as a table: {reason}. "
            "A table has a header line, and every row as many cells as that line."
        ) from error


@cache
def _parse_options(delimiter: str, lenient: bool) -> Any:
    """How CSV is parsed. They are kept until the program ends: a thread of pyarrow that dropped the
    last reference to the handler while Python ends would abort the process."""
    from pyarrow import csv

    return csv.ParseOptions(
        delimiter=delimiter,
        newlines_in_values=True,
        invalid_row_handler=(lambda row: "skip") if lenient else None,
    )


def _delimiter(path: Path) -> str:
    """The most frequent delimiter in the header. Spreadsheets write semicolons in countries with a
    decimal comma."""
    if ".tsv" in path.suffixes:
        return "\t"
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        header = file.readline(_LONGEST_HEADER)
    if header.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnicodeDecodeError("utf-8", header, 0, 2, "UTF-16")
    unquoted = b"".join(header.split(b'"')[::2])
    return max(_DELIMITERS, key=lambda mark: unquoted.count(mark.encode()))


def read_table(
    path: Path,
    client: str | None = None,
    target: str | None = None,
    split: str | None = None,
    drop: str | Sequence[str] = (),
    text: str | None = None,
    words: int | None = None,
    vocabulary: str | None = None,
    hash: int | None = None,
    tags: int | None = None,
    taglist: str | None = None,
    schema: str | Path | Schema | None = None,
    task: str | None = None,
    bounds: Any = None,
    *,
    lenient: bool = False,
    progress: bool = False,
) -> Columns:
    """The columns of a table file.

    Args:
        path: the file.
        client: the column that names the client; `client` or `client_id` unless given.
        target: the column to predict, or several joined by `+`; `target`, `y` or `label` unless
            given.
        split: the column that says train, validation or test; `split`, if there is one, unless
            given.
        drop: columns to leave out, a list or joined by `+`.
        text: columns of text that become words, joined by `+`.
        words: how many words are columns: the most used, or the first of `vocabulary`.
        vocabulary: a file with the words.
        hash: into how many columns words are hashed; 10,000 unless words are listed.
        tags: how many tags are targets: the most used, or the first of `taglist`.
        taglist: a file with the tags.
        schema: what the columns hold, or a file that says so.
        task: regression, classification or multilabel; found from the target unless given.
        bounds: public (low, high) of columns by name, or a file with them.
        lenient: mark unusable rows instead of refusing the file.
        progress: show a progress bar.
    """
    options = TextOptions(words, vocabulary, hash, tags, taglist)
    known = None if text is None else (options.word_bags(), options.tag_bags())
    if text is None and options.given:
        raise PmtlError(f"{options.given[0]}= needs text: name its column with text=COLUMN.")
    if schema is not None and text is not None:
        raise PublicError(
            'text= and a schema were both given: say kind = "text" in the schema instead.'
        )
    with open_table(path, lenient, progress) as table:
        if known is None:
            given = (client, target, split, drop)
            return _any_columns(table, table.where, given, schema, task, bounds)
        roles = assign_roles(table.names, table.where, client, target, split, drop, text)
        return _collect(table, roles, known)


def frame_columns(
    frame: Any, given: tuple[Any, ...], schema: Any, task: str | None, bounds: GivenBounds | None
) -> Columns:
    """The columns of a pandas or polars frame (or anything with `columns` and `frame[name]`);
    `given` are the options client, target, split and drop."""
    for name in getattr(getattr(frame, "index", None), "names", ()):
        if name is not None and name in given[:3]:
            raise PmtlError(
                f"{name!r} is the index of the frame: make it a column, with frame.reset_index()."
            )
    return _any_columns(frame_table(frame), "The frame", given, schema, task, bounds)


def frame_table(frame: Any, lenient: bool = False) -> Table:
    """A frame as an open table: pandas, polars, Arrow, a mapping of columns, or anything with
    `columns` and `frame[name]`."""
    import pyarrow as pa

    if not hasattr(frame, "columns") and not isinstance(frame, Mapping):
        raise PublicError(
            f"A frame of pandas or polars is needed, but {kind_of(frame)} was given: files are "
            "read by pmtl.load(path), arrays by pmtl.FederatedData.from_arrays(x, y, client)."
        )
    of_arrow = isinstance(frame, (pa.Table, pa.RecordBatch))
    names = frame.schema.names if of_arrow else getattr(frame, "columns", frame)
    series = {str(name): name for name in names}

    def read(columns: Sequence[str]) -> list[Any]:
        arrays = {name: _arrow_array(frame[series[name]]) for name in columns}
        return [pa.RecordBatch.from_pydict(arrays)]

    return Table("the frame", [str(name) for name in names], False, lenient, read)


def _arrow_array(series: Any) -> Any:
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


def _any_columns(
    table: Table,
    where: str,
    given: tuple[Any, ...],
    schema: Any,
    task: str | None,
    bounds: GivenBounds | None,
) -> Columns:
    """The columns of a table: by its schema, or as numbers. If not all columns are numbers, an
    experiment infers a schema."""
    client, target, split, drop = given
    if schema is not None:
        known = Schema.of(schema).with_roles(client, target, split, dropped_names(drop))
        return read_rows(table, known)
    roles = assign_roles(table.names, where, *given)
    try:
        return _collect(table, roles)
    except _NotNumbers:
        ranges = read_bounds(bounds) if isinstance(bounds, (str, Path)) else bounds
        bounded = {str(name) for name in ranges} if isinstance(ranges, Mapping) else set()
        if bounded & {*roles.targets, TARGET}:
            task = task or "regression"  # A target with bounds is a number.
        inferred = infer(table, roles, task)
    columns = read_rows(table, inferred.schema)
    columns["disclosed"] = inferred.disclosed
    columns["notes"] = (inferred.decided, *columns.get("notes", ()))
    return columns


class _NotNumbers(PmtlError):
    """A feature is not a number; a schema may say what it is."""


def _collect(table: Table, roles: Roles, known: tuple[Bags, Bags | None] | None = None) -> Columns:
    """The columns of all batches; with `known` words (and tags), the features are text."""
    features = _Features(table, roles.features)
    text = None if known is None else TextRows(TextRule(roles.text), *known)
    tagged = text is not None and text.tagged
    special = (roles.client, roles.split, *(() if tagged else roles.targets))
    chunks: dict[str, list[Any]] = {name: [] for name in special if name is not None}
    marks: list[NDArray[np.bool_]] = []
    for first, batch in table.batches(roles.used):
        marks.append(np.ones(batch.num_rows, dtype=bool))
        for name, held in chunks.items():
            held.append(batch.column(name))
        if text is None:
            features.append(batch, first)
            continue
        for row in texts(batch, roles.text, table, first, marks[-1]):
            text.append(row)
        if tagged:
            for row in texts(batch, roles.targets, table, first, marks[-1]):
                text.append_tags(row)
    usable = concat(marks, table)
    client, split = clients_and_splits(chunks, table, roles.client, roles.split)
    y = None if tagged else targets(table, {name: chunks[name] for name in roles.targets}, usable)
    if text is not None:
        return text.finish(client, split, y, roles.labels, usable)
    return Columns(
        x=features.finish(),
        y=y,
        client=client,
        split=split,
        feature_names=roles.features,
        target_names=roles.targets,
        labels=roles.labels,
        usable=usable,
    )


class _Features:
    """Collects columns of numbers batch by batch."""

    def __init__(self, table: Table, names: Sequence[str]) -> None:
        self._table, self._names = table, names
        self._builder = ArrayBuilder((len(names),), np.float32)
        self._has_numbers = np.zeros(len(names), dtype=bool)

    def append(self, batch: Any, first: int) -> None:
        """Add a batch; `first` is the number of its first row."""
        try:
            x = number_rows(batch, first, self._table, self._names)
        except PmtlError as error:
            if not self._table.lenient:
                raise _NotNumbers(str(error)) from error
            raise
        self._has_numbers |= np.isfinite(x).any(axis=0)
        self._builder.append(x)

    def finish(self) -> NDArray[np.float32]:
        """All rows; in production, columns without any number are refused."""
        pairs = zip(self._names, self._has_numbers, strict=True)
        empty = [name for name, filled in pairs if self._table.lenient and not filled]
        if empty:
            one = len(empty) == 1
            raise PublicError(
                f"The column{'' if one else 's'} {listed(empty)} hold{'s' if one else ''} no "
                "numbers. Production does not infer from the rows what else a column holds: say it "
                "in a schema (pmtl data schema, then --schema), or leave it out with "
                f"drop={'+'.join(empty)}."
            )
        return self._builder.finish()
