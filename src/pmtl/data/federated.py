"""A federation of data: all rows in one array, and the client that owns each row.

Rows keep their order and storage (an array, a memory map, a sparse matrix). Clients and splits are
lists of row numbers, so grouping by client or selecting clients never copies the rows.

>>> data = FederatedData.from_arrays(np.eye(6), [0, 1] * 3, ["b", "b", "b", "a", "a", "a"])
>>> data.clients, data.m, data.input_shape, data.rows("test").counts.tolist()
(('a', 'b'), 2, (6,), [1, 1])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import (
    as_float32,
    as_model_input,
    check_features,
    check_lengths,
    is_sparse,
    row_chunks,
)
from pmtl.data.client_names import drop_rows_without_client
from pmtl.data.fingerprint import fingerprint_of
from pmtl.data.readers.bounds import Bounds, GivenBounds, check_bounds, find_bounds
from pmtl.data.readers.text import TextRule
from pmtl.data.scaling import Scaling, check_scale, fill_by_client, scale_by_client
from pmtl.data.schema import Schema
from pmtl.data.splits import SPLITS, Rows, Split, divide, offsets
from pmtl.data.targets import Task, check_targets
from pmtl.errors import PmtlError, did_you_mean
from pmtl.spec import explain_wrong_calls, format_spec, parse_spec

__all__ = ["SPLITS", "FederatedData", "Rows", "Split", "Task"]

SELECTED_BY_ROWS = (
    "Clients were selected by their number of rows (min_rows, largest), which is treated as "
    "public. If it is not public, name the clients beforehand."
)

_CLIPPED = "In {:,} of {:,} rows a value is beyond the bounds, and it was clipped."


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Rows of features and targets, the clients who own them, and their splits.

    Args:
        x: features, [rows, …]: an array, a memory map or a CSR matrix.
        y: targets, [rows] or [rows, outputs].
        clients: the clients' names, sorted.
        splits: which rows of which clients train, validate and test.
        task: classification, multilabel or regression.
        outputs: number of model outputs.
        labels: the names of classes or labels.
        feature_names: the names of the features.
        source: the spec that reads the same data again.
        scaling: the means and widths by which each client scaled its features.
        text: how text became features, if it did.
        disclosed: sentences on what reading took from all clients' rows and treats as public.
        for_owner: sentences on rows that were left out or clipped, for the data's owner only.
        bounds: the public bounds of features and target, if the user gave any.
        schema: what a table's columns hold and how they became features, if they were not all
            numbers.
    """

    x: Any
    y: NDArray[Any]
    clients: tuple[str, ...]
    splits: Mapping[Split, Rows]
    task: Task
    outputs: int
    labels: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    source: str | None = None
    scaling: Scaling | None = None
    text: TextRule | None = None
    disclosed: tuple[str, ...] = ()
    for_owner: tuple[str, ...] = ()
    bounds: Bounds | None = None
    schema: Schema | None = None

    @property
    def m(self) -> int:
        """How many clients there are."""
        return len(self.clients)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row of features."""
        return tuple(int(size) for size in self.x.shape[1:])

    @property
    def is_scaled(self) -> bool:
        """Whether features were scaled, and not only filled."""
        return self.scaling is not None and self.scaling.scales

    def rows(self, split: Split) -> Rows:
        """The rows of one split.

        Args:
            split: "train", "validation" or "test".
        """
        if split not in self.splits:
            raise PmtlError(f"There is no split {split!r}: use {', '.join(SPLITS)}.")
        return self.splits[split]

    def gather(self, index: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Features and targets of some rows; features are dense float32.

        Args:
            index: row numbers, an array of any shape. Pixels stored as bytes become 0 to 1.
        """
        index = np.asarray(index, dtype=np.int64)
        taken = self.x[index.reshape(-1)]
        x = as_float32(taken.toarray()) if is_sparse(taken) else as_model_input(np.asarray(taken))
        return x.reshape(index.shape + self.input_shape), np.asarray(self.y[index])

    def index_of(self, client: str) -> int:
        """The position of a client.

        Args:
            client: the name of the client.
        """
        position = self._positions.get(str(client))
        if position is None:
            ends = f" The clients run from {self.clients[0]!r} to {self.clients[-1]!r}."
            hint = did_you_mean(str(client), self.clients, 3) or ends
            raise PmtlError(f"There is no client {str(client)!r} among the {self.m}.{hint}")
        return position

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.clients)}

    def select(self, clients: Sequence[str]) -> FederatedData:
        """The federation of these clients only, over the same array of rows."""
        keep = np.array(sorted({self.index_of(name) for name in clients}), dtype=np.int64)
        if not len(keep):
            raise PmtlError("No client was selected: name at least one.")
        splits: dict[Split, Rows] = {}
        for split, rows in self.splits.items():
            order = np.concatenate([rows.of(int(client)) for client in keep])
            splits[split] = Rows(order, offsets(rows.counts[keep]))
        scaling = None if self.scaling is None else self.scaling.select(keep)
        names = tuple(self.clients[k] for k in keep)
        return replace(self, clients=names, splits=splits, scaling=scaling, source=None)

    def scaled(self) -> FederatedData:
        """The federation with features that were scaled by their bounds or, without bounds, by
        every client's own training rows."""
        x, scaling = scale_by_client(self.x, self._owner, self.rows("train"), self.bounds)
        if self.scaling is not None:
            scaling = replace(scaling, fills=self.scaling.fills)
        source = self.source
        if source is not None:
            name, options = parse_spec(source)
            source = format_spec(name, {**options, "scale": "client"})
        return replace(self, x=x, scaling=scaling, source=source)

    @property
    def _owner(self) -> NDArray[np.int64]:
        """The client of each row; -1 for rows that are in no split."""
        owner = np.full(len(self.y), -1, dtype=np.int64)
        for rows in self.splits.values():
            owner[rows.order] = np.repeat(np.arange(self.m), rows.counts)
        return owner

    def bounded(self, bounds: Bounds) -> FederatedData:
        """The federation scaled by public bounds. Features and the targets of training rows are
        clipped to them; the targets of other rows are not, because they measure errors."""
        beyond = np.zeros(len(self.y), dtype=bool)
        y, train = self.y, self.rows("train").order
        if bounds.features:
            low, high = bounds.limits()
            for rows in row_chunks(len(self.x), self.x.nbytes // len(self.x)):
                beyond[rows] = ((self.x[rows] < low) | (self.x[rows] > high)).any(axis=1)
        if bounds.target is not None:
            y = np.array(self.y)
            y[train] = np.clip(y[train], *np.array(bounds.target, dtype=np.float32))
            beyond |= y != self.y
        used = np.concatenate([rows.order for rows in self.splits.values()])
        notes = (_CLIPPED.format(beyond[used].sum(), len(used)),) if beyond[used].any() else ()
        disclosed, notes = (*self.disclosed, bounds.sentence), (*self.for_owner, *notes)
        made = replace(self, y=y, bounds=bounds, disclosed=disclosed, for_owner=notes)
        return replace(made.scaled(), source=self.source) if bounds.features else made

    def fingerprint(self, again: bool = False) -> str:
        """SHA-256 of features, targets, clients, splits and task; computed once.

        Rows are read client by client: their order in the file, and rows without a client, do not
        change it. A sparse matrix is hashed by its entries.

        Args:
            again: compute it again, because somebody may have written into the arrays.
        """
        if again:
            self.__dict__.pop("_fingerprint", None)
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint_of(self)

    @classmethod
    @explain_wrong_calls()
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        client: Any,
        split: Any = None,
        *,
        task: Task | None = None,
        outputs: int | None = None,
        labels: Sequence[str] | None = None,
        validation: float = 0.1,
        test: float = 0.2,
        min_rows: int = 0,
        clients: int | None = None,
        largest: int | None = None,
        scale: str | None = None,
        bounds: GivenBounds | None = None,
        feature_names: Sequence[str] | None = None,
        target_names: Sequence[str] = (),
        text: TextRule | None = None,
        schema: Schema | None = None,
        disclosed: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        source: str | None = None,
        bad_rows: str = "refuse",
        usable: NDArray[np.bool_] | None = None,
    ) -> FederatedData:
        """Check everything and group the rows by client.

        Args:
            x: features, [rows, …]: an array, a memory map or a SciPy sparse matrix.
            y: targets, [rows] or [rows, outputs]: classes, names of classes, 0/1 labels or numbers.
            client: the client of each row, [rows].
            split: train, validation or test for each row. Without it, the rows of each client are
                divided. If it has no validation rows, some training rows become validation rows.
            task: classification, multilabel or regression; by default inferred from `y`.
            outputs: the number of classes or labels; by default inferred from `y`.
            labels: the names of the outputs.
            validation: the fraction of a client's rows for validation.
            test: the fraction of a client's rows for testing, if `split` is not given.
            min_rows: leave out clients with fewer rows.
            clients: keep this many clients, the first in sorted order (after `largest`).
            largest: keep this many clients, those with the most rows.
            scale: "client": each client standardises its features by its own training rows.
            bounds: public (low, high) of columns: by name or position, as a list in the order of
                the columns, or a TOML file; `"target"` is the target, which is then a number.
            feature_names: the names of the features.
            target_names: the names of the targets.
            text: how text became features, if it did.
            schema: the schema by which a table's columns became features, if any. NaN is then an
                empty cell, which its client fills.
            disclosed: sentences on what reading made public.
            notes: sentences on the rows, for the data's owner only.
            source: the spec that reads the same data again.
            bad_rows: "refuse": a missing or infinite value, or an invalid class, is an error.
                "drop" (production): its row is left out, and clients without training rows stay
                clients, so that no error or result of others depends on one client's rows.
            usable: false for further rows to leave out, [rows]; only with "drop".
        """
        check_lengths(x=x, y=y, client=client, split=split)
        if bad_rows not in ("refuse", "drop"):
            raise PmtlError(f"There is no bad_rows {bad_rows!r}: use refuse or drop.")
        check_scale(scale)
        mask = None
        if bad_rows == "drop":
            client, (x, y, split, mask) = drop_rows_without_client(client, (x, y, split, usable))
            rows = x.shape[0] if hasattr(x, "shape") else len(x)
            mask = np.ones(rows, dtype=bool) if mask is None else mask.copy()
        names = None if feature_names is None else tuple(feature_names)
        x = check_features(x, names, mask, fillable=schema is not None)
        ranges = None
        if schema is not None:
            schema = schema if bounds is None else schema.with_bounds(bounds)
            ranges = schema.bounds
            task = task if ranges is None else check_bounds(ranges, x, y, task)
        elif bounds is not None:
            words = None if text is None else text.columns
            ranges = find_bounds(bounds, x.shape[1:], names, target_names, words)
            task = check_bounds(ranges, x, y, task)
        y, task, outputs, classes = check_targets(y, task, outputs, labels, mask)
        kept = (min_rows, largest, clients)
        known, splits, left_out = divide(client, split, validation, test, kept, mask)
        if min_rows > 1 or largest is not None:
            disclosed = (*disclosed, SELECTED_BY_ROWS)
        made = cls(
            x=x,
            y=y,
            clients=known,
            splits=splits,
            task=task,
            outputs=outputs,
            labels=classes,
            feature_names=names,
            source=source,
            text=text,
            disclosed=disclosed,
            for_owner=(*notes, *left_out),
            schema=schema,
        )
        if schema is not None and schema.fills:
            x, scaling = fill_by_client(x, made._owner, made.rows("train"), ranges)
            made = replace(made, x=x, scaling=scaling)
        made = made if ranges is None else made.bounded(ranges)
        return made if scale is None or made.is_scaled else replace(made.scaled(), source=source)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        client: str | None = None,
        target: str | None = None,
        split: str | None = None,
        *,
        drop: str | Sequence[str] = (),
        schema: Any = None,
        **options: Any,
    ) -> FederatedData:
        """The federation of a pandas or polars frame; columns that are not named here are features.

        Args:
            frame: the rows.
            client: the column that names the client; by default the schema's, or "client".
            target: the column to predict; several are written `a+b`. By default the
                schema's, or "target".
            split: the column with train, validation or test.
            drop: columns to leave out (a list, or `a+b`).
            schema: what the columns hold: a `Schema`, its content or its file. Without one, it is
                inferred if not all columns are numbers.
            **options: the options of `from_arrays`.
        """
        from pmtl.data.readers.table import frame_columns

        given, known = (client, target, split, drop), (options.get("task"), options.get("bounds"))
        columns: dict[str, Any] = {**frame_columns(frame, given, schema, *known)}
        return cls.from_arrays(**(columns | options))
