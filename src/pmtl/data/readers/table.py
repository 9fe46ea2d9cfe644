"""Tables: CSV, TSV (also gzipped) and Parquet, one row per sample.

A file is read in batches by pyarrow, and features go batch by batch into an array that moves to
disk when it outgrows memory, so a table may be larger than memory. Text is accepted where it
names something (client, split, class) and in the columns that `text=` says are text (`text.py`);
as any other feature it is refused, because an encoding that we chose silently would be wrong for
somebody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.disk import ArrayBuilder
from pmtl.data.names import Coded, Vocabulary, whole, without_points
from pmtl.data.readers.columns import Columns, Roles, assign_roles, missing_value, wrong_kind
from pmtl.data.readers.lenient import Lenient, is_text, kind_of
from pmtl.data.readers.text import TextRule
from pmtl.data.readers.text_rows import TextOptions, text_options
from pmtl.errors import PmtlError

CSV_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET_ENDINGS = (".parquet", ".pq")


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
    *,
    lenient: bool = False,
) -> Columns:
    """A CSV or TSV file with a header line, or a Parquet file. If `lenient`, a row with an empty
    cell, or with text where a number is needed, is marked as not usable and not refused."""
    import pyarrow as pa
    from pyarrow import parquet

    reading = text_options(text, words, vocabulary, hash, tags, taglist)
    try:
        if path.name.lower().endswith(PARQUET_ENDINGS):
            with parquet.ParquetFile(path) as file:
                names = file.schema_arrow.names
                roles = assign_roles(names, str(path), client, target, split, drop, text)
                batches = file.iter_batches(columns=list(roles.used))
                if not lenient:
                    return _collect(batches, roles, path, reading)
                kinds = {name: file.schema_arrow.field(name).type for name in roles.used}
                return _collect_lenient(batches, roles, path, reading, kinds)
        schema = _open_csv(path, {}, lenient=lenient).schema
        roles = assign_roles(schema.names, str(path), client, target, split, drop, text)
        types = _csv_types(schema, roles, path, lenient)
        if reading is not None and reading.tags is not None:
            types |= {name: pa.string() for name in roles.targets}
        columns = _collect_csv(path, roles, types, reading, lenient)
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    columns["client"] = without_points(columns["client"])
    return columns


def _collect_csv(
    path: Path, roles: Roles, types: dict[str, Any], reading: TextOptions | None, lenient: bool
) -> Columns:
    """The columns, with the first types for the targets that hold all the way down; if `lenient`,
    the types that were guessed, with numbers read cell by cell where those do not hold."""
    import pyarrow as pa

    if lenient:
        if len(roles.targets) == 1 and reading is None and is_text(types[roles.targets[0]]):
            (target,) = roles.targets
            types[target] = kind_of(_open_csv(path, types, [target], lenient), target)
        as_text = {name: pa.string() for name in (*roles.features, *roles.targets)}
        for attempt in (types, types | as_text):
            with suppress(pa.ArrowInvalid):
                batches = _open_csv(path, attempt, roles.used, lenient)
                return _collect_lenient(batches, roles, path, reading, types)
    *attempts, last = _attempts(types, roles.targets)
    for attempt in attempts:
        with suppress(pa.ArrowInvalid):
            return _collect(_open_csv(path, attempt, roles.used), roles, path, reading)
    return _collect(_open_csv(path, last, roles.used), roles, path, reading)


def _collect_lenient(
    batches: Iterable[Any],
    roles: Roles,
    path: Path,
    reading: TextOptions | None,
    types: dict[str, Any],
) -> Columns:
    """The columns with the rows that can be used; `types` are the columns' own, or guessed."""
    import pyarrow as pa

    targets = {name: types[name] for name in roles.targets if _numeric(types[name])}
    numbers = dict.fromkeys(roles.features, pa.float64()) | targets
    texts = {roles.client, *roles.text, *(name for name in roles.targets if name not in targets)}
    if roles.split is not None:
        texts.add(roles.split)
    filled = Lenient(batches, numbers, texts)
    columns = _collect(filled, roles, path, reading)
    columns["usable"] = filled.usable()
    return columns


def _open_csv(
    path: Path, types: dict[str, Any], columns: Sequence[str] = (), lenient: bool = False
) -> Any:
    """The batches of a file; if `lenient`, a row with too many or too few cells is left out."""
    from pyarrow import csv

    tabs = ".tsv" in path.suffixes
    return csv.open_csv(
        path,
        parse_options=csv.ParseOptions(
            delimiter="\t" if tabs else ",",
            newlines_in_values=True,
            invalid_row_handler=(lambda row: "skip") if lenient else None,
        ),
        convert_options=csv.ConvertOptions(column_types=types, include_columns=list(columns)),
    )


def _csv_types(schema: Any, roles: Roles, path: Path, lenient: bool) -> dict[str, Any]:
    """Types for the whole file from the guess at its first block: names are text (client 007 is
    not client 7), and integers may turn into fractions further down."""
    import pyarrow as pa

    names = (roles.client, roles.split, *roles.text)
    types = {name: pa.string() for name in names if name is not None}
    for name in roles.features:
        kind = schema.field(name).type
        if lenient and is_text(kind):
            types[name] = pa.string()  # One cell of text makes the whole column text.
            continue
        if not _numeric(kind) and not pa.types.is_null(kind):
            raise wrong_kind(str(path), "feature", name, _kind(kind))
        types[name] = pa.bool_() if pa.types.is_boolean(kind) else pa.float64()
    for name in roles.targets:
        kind = schema.field(name).type
        types[name] = kind if _numeric(kind) else pa.string()
        if pa.types.is_null(kind) and len(roles.targets) > 1:
            types[name] = pa.float64()
    return types


def _attempts(types: dict[str, Any], targets: tuple[str, ...]) -> list[dict[str, Any]]:
    """What to try when the targets' types, guessed from the first block, fail further down:
    targets may begin like integers and go on as fractions, and one may turn out to be a name."""
    import pyarrow as pa

    attempts = [types]
    floats = {name: pa.float64() for name in targets if pa.types.is_integer(types[name])}
    if floats:
        attempts.append(types | floats)
    if len(targets) == 1 and not pa.types.is_string(types[targets[0]]):
        attempts.append(types | {targets[0]: pa.string()})
    return attempts


def _collect(
    batches: Iterable[Any], roles: Roles, path: Path, reading: TextOptions | None
) -> Columns:
    builder = ArrayBuilder((len(roles.features),), np.float32)
    text = None if reading is None else reading.rows(TextRule(roles.text))
    client = _Names(path, "client", roles.client)
    split = _Names(path, "split", roles.split or "")
    targets: list[_Names | _Numbers] = []
    first = 0
    for batch in batches:
        client.append(batch.column(roles.client), first)
        if roles.split is not None:
            split.append(batch.column(roles.split), first)
        columns_y = [batch.column(name) for name in roles.targets]
        if text is not None and text.tagged:
            _each_text(columns_y, roles.targets, path, first, text.append_tags)
        else:
            targets = targets or _targets(path, roles.targets, columns_y)
            for target, column in zip(targets, columns_y, strict=True):
                target.append(column, first)
        if text is not None:
            columns_x = [batch.column(name) for name in roles.text]
            _each_text(columns_x, roles.text, path, first, text.append)
        else:
            builder.append(_features(batch, roles, path, first))
        first += batch.num_rows
    if not first:
        raise PmtlError(f"{path} has a header but no rows: a federation needs data.")
    y = _side_by_side([target.finish() for target in targets]) if targets else None
    splits = None if roles.split is None else split.finish()
    if text is not None:
        return text.finish(client.finish(), splits, y, roles.labels)
    columns = Columns(
        x=builder.finish(),
        y=y,
        client=client.finish(),
        feature_names=roles.features,
        labels=roles.labels,
    )
    if splits is not None:
        columns["split"] = splits
    return columns


def _features(batch: Any, roles: Roles, path: Path, first: int) -> NDArray[np.float32]:
    x = np.empty((batch.num_rows, len(roles.features)), dtype=np.float32)
    for position, name in enumerate(roles.features):
        with np.errstate(over="ignore"):
            x[:, position] = _column(batch.column(name), "feature", name, path, first)
    return x


def _each_text(
    columns: list[Any], names: Sequence[str], path: Path, first: int, take: Callable[[str], None]
) -> None:
    """Hand over every row's text; that of several columns is joined by a space."""
    lists = []
    for column, name in zip(columns, names, strict=True):
        if not is_text(column.type):
            raise wrong_kind(str(path), "text", name, _kind(column.type))
        _refuse_nulls(column, name, path, first)
        lists.append(column.to_pylist())
    for parts in zip(*lists, strict=True):
        take(" ".join(parts))


def _targets(path: Path, names: tuple[str, ...], columns: list[Any]) -> list[_Names | _Numbers]:
    """One target may be numbers or names; several are numbers."""
    if len(names) == 1 and not _numeric(columns[0].type):
        return [_Names(path, "target", names[0])]
    return [_Numbers(path, name) for name in names]


def _side_by_side(targets: list[Any]) -> Any:
    return targets[0] if len(targets) == 1 else np.stack(targets, axis=1)


class _Names:
    """A column of names, collected as codes."""

    def __init__(self, path: Path, role: str, name: str) -> None:
        self.path, self.role, self.name = path, role, name
        self._vocabulary = Vocabulary(role)
        self._codes: list[NDArray[np.int64]] = []

    def append(self, column: Any, first: int) -> None:
        import pyarrow as pa

        kind = column.type
        if pa.types.is_dictionary(kind):
            column = column.dictionary_decode()
        _refuse_nulls(column, self.name, self.path, first)
        if self.role == "client" and pa.types.is_floating(column.type):
            numbers = _column(column, self.role, self.name, self.path, first)
            column = pa.array(whole(numbers, self.role))
        try:
            encoded = column.dictionary_encode()
            names = encoded.dictionary.to_pylist()
        except UnicodeDecodeError:
            raise  # Text that is none is damage to the file.
        except (pa.ArrowException, ValueError, OverflowError):
            raise wrong_kind(str(self.path), self.role, self.name, _kind(kind)) from None
        names = [name if isinstance(name, bytes) else str(name) for name in names]
        codes = np.array([self._vocabulary.code(name) for name in names], dtype=np.int64)
        self._codes.append(codes[encoded.indices.to_numpy(zero_copy_only=False)])

    def finish(self) -> Coded:
        return self._vocabulary.coded(self._codes)


class _Numbers:
    """A numeric target."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._chunks: list[NDArray[Any]] = []

    def append(self, column: Any, first: int) -> None:
        self._chunks.append(_column(column, "target", self.name, self.path, first))

    def finish(self) -> NDArray[Any]:
        return np.concatenate(self._chunks)


def _column(column: Any, role: str, name: str, path: Path, first: int) -> NDArray[Any]:
    import pyarrow as pa

    if not _numeric(column.type):
        raise wrong_kind(str(path), role, name, _kind(column.type))
    _refuse_nulls(column, name, path, first)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise missing_value(str(path), name, first + int(np.argmax(np.isnan(values))))
    return values


def _refuse_nulls(column: Any, name: str, path: Path, first: int) -> None:
    if column.null_count:
        empty = column.is_null().to_numpy(zero_copy_only=False)
        raise missing_value(str(path), name, first + int(np.argmax(empty)))


def _numeric(kind: Any) -> bool:
    from pyarrow import types

    checks: tuple[Callable[[Any], bool], ...] = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_decimal,
    )
    return any(check(kind) for check in checks)


def _kind(kind: Any) -> str:
    from pyarrow import types

    return "text" if is_text(kind) or types.is_dictionary(kind) else str(kind)


def _unreadable(path: Path, error: Exception) -> PmtlError:
    told = " ".join(str(error).split()).rstrip(".")
    return PmtlError(
        f"{path} cannot be read as a table: {told}. "
        "Every row needs the same columns, and a feature column holds numbers only."
    )
