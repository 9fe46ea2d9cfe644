"""The rows of a table with a schema: for training, and for prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import without_points
from pmtl.data.disk import ArrayBuilder
from pmtl.data.readers.cells import Table, coded_names
from pmtl.data.readers.columns import Columns
from pmtl.data.schema.encode import Encoder
from pmtl.data.schema.schema import Schema
from pmtl.errors import PmtlError, PublicError

GIVEN = (
    "What the columns hold was said in a schema, which is public by the user's word. It must not "
    "come from the clients' rows."
)
NOT_PUBLIC = (
    "The schema of the columns does not say that it is public (public = true). Categories and "
    "other settings that came from the clients' rows disclose something that no noise covers."
)
LEFT_OUT = "{:,} of {:,} rows were left out, because a cell of {} is empty."


def read_rows(table: Table, schema: Schema) -> Columns:
    """The columns of a federation. Rows that the schema drops are left out.

    Args:
        table: the open table; in production (`lenient`) unusable rows are marked, not refused.
        schema: what its columns hold.
    """
    if table.lenient and not schema.public:
        raise PublicError(
            "Production needs a schema that is public: check that all of it is known without the "
            "clients' rows, and write public = true at the top of its file."
        )
    client, split = _owner(table, schema), schema.named("split")
    schema.check_names(table.names, table.where, training=True)
    used = [column.name for column in schema.columns if column.role != "dropped"]
    encoder = Encoder(schema, table.lenient)
    builder = ArrayBuilder((len(schema.feature_names),), np.float32)
    chunks: dict[str, list[Any]] = {name: [] for name in (client, split) if name is not None}
    targets: list[NDArray[np.float64]] = []
    marks: list[NDArray[np.bool_]] = []
    for first, batch in table.batches(used):
        x, usable = encoder.encode(batch, first)
        y, known = encoder.targets(batch, first)
        usable &= known
        kept = np.ones_like(usable) if table.lenient else usable
        for name, held in chunks.items():
            held.append(batch.column(name).filter(_arrow(kept)))
        builder.append(x[kept])
        targets.append(y[kept])
        marks.append(usable)
    usable = np.concatenate(marks) if marks else np.empty(0, dtype=bool)
    if not len(usable):
        raise PmtlError(f"{table.where} has a header but no rows: a federation needs data.")
    encoder.finish(table.where)
    if not builder.rows:
        raise PmtlError(f"{table.where} has no row without an empty cell that drops its row.")
    owner = coded_names(chunks[client], table, "client", client)
    owner = without_points(owner) if table.parse else owner
    y, labels = _targets(schema, np.concatenate(targets))
    columns = Columns(
        x=builder.finish(),
        y=y,
        client=owner,
        split=None if split is None else coded_names(chunks[split], table, "split", split),
        feature_names=schema.feature_names,
        target_names=tuple(column.name for column in schema.targets),
        labels=labels,
        schema=schema,
        disclosed=(GIVEN if schema.public else NOT_PUBLIC,),
        usable=usable if table.lenient else None,
    )
    if not table.lenient and not usable.all():
        dropping = [c.name for c in schema.columns if c.missing == "drop"]
        left_out = LEFT_OUT.format((~usable).sum(), len(usable), " or ".join(dropping))
        columns["notes"] = (left_out,)
    return columns


def read_features(table: Table, schema: Schema) -> NDArray[np.float32]:
    """The features of new rows, with NaN where the client has to fill.

    Args:
        table: the open table.
        schema: the schema of training.
    """
    schema.check_names(table.names, table.where)
    encoder = Encoder(schema)
    builder = ArrayBuilder((len(schema.feature_names),), np.float32)
    rows = [np.empty(0, dtype=np.int64)]
    for first, batch in table.batches([column.name for column in schema.features]):
        x, usable = encoder.encode(batch, first)
        rows.append(first + np.flatnonzero(~usable))
        builder.append(x)
    encoder.finish(table.where)
    refuse_dropped(table.where, np.concatenate(rows))
    return np.asarray(builder.finish())


def refuse_dropped(where: str, rows: NDArray[np.int64]) -> None:
    """Refuse to predict rows that the schema drops; `rows` are their numbers."""
    if len(rows):
        raise PmtlError(
            f"{where} has {len(rows)} rows (first row {rows[0]}, counting from 0) with an "
            "empty cell for which the schema leaves rows out: fill it in, or remove these rows."
        )


def _owner(table: Table, schema: Schema) -> str:
    client = schema.named("client")
    problems = [] if client else ['which column names the client (role = "client")']
    problems += [] if schema.targets else ['which column is to be predicted (role = "target")']
    if client is None or problems:
        raise PublicError(
            f"The schema of {table.where} does not say {' and '.join(problems)}: add it, or name "
            "it with --client-column and --target."
        )
    return client


def _targets(
    schema: Schema, values: NDArray[np.float64]
) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """The targets, and the names of classes or labels."""
    columns = schema.targets
    names = tuple(column.name for column in columns)
    whole = np.where(np.isnan(values), -1, values).astype(np.int64)
    if len(columns) > 1:
        labels = all(column.kind == "boolean" for column in columns)
        return (whole, names) if labels else (values, names)
    kind = columns[0].kind
    if kind == "number":
        return values[:, 0], None
    classes = ("false", "true") if kind == "boolean" else columns[0].categories
    return whole[:, 0], classes


def _arrow(marks: NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    return pa.array(marks)
