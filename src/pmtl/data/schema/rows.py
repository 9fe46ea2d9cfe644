"""The rows of a table with a schema: for training, and for prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.disk import ArrayBuilder
from pmtl.data.readers.cells import Table, clients_and_splits, concat
from pmtl.data.readers.columns import Columns
from pmtl.data.schema.encode import Encoder
from pmtl.data.schema.schema import Schema
from pmtl.errors import PmtlError, PublicError, how_many

STATED_PUBLIC = (
    "The columns were described by a schema, which the user states is public. It must not come "
    "from the clients' rows."
)
NOT_PUBLIC = (
    "The schema of the columns does not say that it is public (public = true). Categories and "
    "other settings that came from the clients' rows disclose something that no noise covers."
)
LEFT_OUT = "{:,} of {:,} rows were left out, because a cell of {} is empty."


def read_rows(table: Table, schema: Schema) -> Columns:
    """The columns of a federation. Rows that the schema drops are left out; in production (a table
    that is `lenient`) unusable rows are marked, not refused."""
    if table.lenient and not schema.public:
        raise PublicError(
            "Production needs a schema that is public: check that all of it is known without the "
            "clients' rows, and write public = true at the top of its file."
        )
    import pyarrow as pa

    client, split = schema.named("client"), schema.named("split")
    lacks = [] if client else ['which column names the client (role = "client")']
    lacks += [] if schema.targets else ['which column is to be predicted (role = "target")']
    if client is None or lacks:
        raise PublicError(
            f"The schema of {table.where} does not say {' and '.join(lacks)}: add it, or name it "
            "with --client-column and --target."
        )
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
            held.append(batch.column(name).filter(pa.array(kept)))
        builder.append(x[kept])
        targets.append(y[kept])
        marks.append(usable)
    usable = concat(marks, table)
    encoder.finish(table.where)
    if not builder.rows:
        raise PmtlError(f"{table.where} has no rows left: all have an empty cell that drops them.")
    clients, splits = clients_and_splits(chunks, table, client, split)
    y, labels = _targets(schema, np.concatenate(targets))
    columns = Columns(
        x=builder.finish(),
        y=y,
        client=clients,
        split=splits,
        feature_names=schema.feature_names,
        target_names=tuple(column.name for column in schema.targets),
        labels=labels,
        schema=schema,
        disclosed=(STATED_PUBLIC if schema.public else NOT_PUBLIC,),
        usable=usable if table.lenient else None,
    )
    if not table.lenient and not usable.all():
        dropping = [c.name for c in schema.columns if c.missing == "drop"]
        left_out = LEFT_OUT.format((~usable).sum(), len(usable), " or ".join(dropping))
        columns["notes"] = (left_out,)
    return columns


def encode_new_rows(
    schema: Schema, batch: Any, where: str, first: int = 0, lenient: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The features of new rows, with NaN where the client has to fill, and which rows are usable.
    Unless `lenient`, a row that training would drop is refused; `first` is the number of the
    batch's first row."""
    encoder = Encoder(schema, lenient)
    x, usable = encoder.encode(batch, first)
    encoder.finish(where)
    if not lenient and not usable.all():
        dropped = np.flatnonzero(~usable)
        raise PmtlError(
            f"{where} has {how_many(len(dropped), 'row')} (first row {first + dropped[0]}, "
            "counting from 0) with an empty cell for which the schema leaves rows out: fill it in, "
            "or remove these rows."
        )
    return x, usable


def _targets(
    schema: Schema, values: NDArray[np.float64]
) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """The targets, and the names of classes or labels."""
    columns = schema.targets
    names = tuple(column.name for column in columns) if len(columns) > 1 else None
    if any(column.kind == "number" for column in columns):
        return values if names else values[:, 0], names
    whole = np.where(np.isnan(values), -1, values).astype(np.int64)
    if names:
        return whole, names
    return whole[:, 0], ("false", "true") if columns[0].kind == "boolean" else columns[0].categories
