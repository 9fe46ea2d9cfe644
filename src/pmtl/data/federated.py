"""A federation of data: all rows in one array, and who owns which of them.

Rows stay in the order and the storage in which they came (an array, a memory map, a sparse
matrix). Clients and splits are lists of row numbers over it, so grouping by client or keeping
some of the clients never copies the data.

>>> data = FederatedData.from_arrays(np.eye(6), [0, 1] * 3, ["b", "b", "b", "a", "a", "a"])
>>> data.clients, data.m, data.input_shape, data.rows("test").counts.tolist()
(('a', 'b'), 2, (6,), [1, 1])
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import (
    Task,
    Usable,
    as_float32,
    as_model_input,
    check_features,
    check_lengths,
    check_targets,
    is_sparse,
    row_chunks,
    without_nobody,
)
from pmtl.data.client_names import encode
from pmtl.data.readers.text import TextRule
from pmtl.data.scaling import Scaling, scale_by_client
from pmtl.data.splits import UNUSED, draw_parts, read_parts
from pmtl.errors import PmtlError

__all__ = ["SPLITS", "FederatedData", "Rows", "Split", "Task"]

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

COUNTED = (
    "Which clients take part was decided by how many rows each of them has (min_rows, largest): "
    "that is treated as public. Name the clients beforehand where it is not."
)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one split, grouped by client."""

    order: NDArray[np.int64]
    """Row numbers, client after client; each client's in the order of the file."""
    offsets: NDArray[np.int64]
    """[m+1]: client k owns `order[offsets[k]:offsets[k+1]]`."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """[m]: how many rows each client has."""
        return np.diff(self.offsets)

    def of(self, client: int) -> NDArray[np.int64]:
        """The row numbers of one client, by its position."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Rows of features and targets, the clients who own them, and their splits."""

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
    """How text became features, if it did."""
    disclosed: tuple[str, ...] = ()
    """What reading took from all clients' rows and treats as public, in sentences."""
    for_owner: tuple[str, ...] = ()
    """What was left out of clients' rows, in sentences for the owner of the data alone."""

    @property
    def m(self) -> int:
        """How many clients there are."""
        return len(self.clients)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row of features."""
        return tuple(int(size) for size in self.x.shape[1:])

    def rows(self, split: Split) -> Rows:
        """The rows of one split."""
        if split not in self.splits:
            raise PmtlError(f"There is no split {split!r}: use {', '.join(SPLITS)}.")
        return self.splits[split]

    def gather(self, index: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Features (dense float32) and targets of the rows in `index`, which may have any shape.

        Dense bytes are pixels and come out between 0 and 1. Only these rows of a sparse matrix
        are made dense.
        """
        index = np.asarray(index, dtype=np.int64)
        taken = self._take(index.reshape(-1))
        x = as_float32(taken.toarray()) if is_sparse(taken) else as_model_input(taken)
        return x.reshape(index.shape + self.input_shape), np.asarray(self.y[index])

    def _take(self, index: NDArray[np.int64]) -> Any:
        taken = self.x[index]
        return taken if is_sparse(taken) else np.asarray(taken)

    def index_of(self, client: str) -> int:
        """The position of a client by its name."""
        position = self._positions.get(str(client))
        if position is None:
            near = difflib.get_close_matches(str(client), self.clients, n=3)
            hint = (
                f"Did you mean {' or '.join(repr(name) for name in near)}?"
                if near
                else f"The clients run from {self.clients[0]!r} to {self.clients[-1]!r}."
            )
            raise PmtlError(f"There is no client {str(client)!r} among the {self.m}. {hint}")
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
            splits[split] = Rows(order, _offsets(rows.counts[keep]))
        scaling = None if self.scaling is None else self.scaling.select(keep)
        names = tuple(self.clients[k] for k in keep)
        return replace(self, clients=names, splits=splits, scaling=scaling, source=None)

    def fingerprint(self) -> str:
        """SHA-256 of what is learned from; computed once."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        """SHA-256 of what is learned from: features, targets, clients, splits and task.

        Rows are read client after client, so the place of a client's rows in a file and rows that
        belong to nobody do not matter. A sparse matrix is hashed by its entries.
        """
        storage = (
            "sparse" if is_sparse(self.x) else "uint8" if self.x.dtype == np.uint8 else "float"
        )
        head: list[Any] = [self.task, self.outputs, storage, self.input_shape, self.clients]
        if self.text is not None:  # The same numbers mean something else under other words.
            head += [self.text.to_dict(), self.feature_names, self.labels]
        digest = hashlib.sha256(json.dumps(head).encode())
        width = 64 if is_sparse(self.x) else int(np.prod(self.input_shape)) * 4
        for split in SPLITS:
            rows = self.rows(split)
            # One digest per column, so that it does not matter where a chunk ends.
            columns = [hashlib.sha256(rows.offsets.tobytes()) for _ in range(4)]
            for chunk in row_chunks(len(rows.order), width):
                index = rows.order[chunk]
                parts = (self.y[index], *_canonical(self._take(index)))
                for column, part in zip(columns, parts, strict=False):
                    column.update(np.ascontiguousarray(part).tobytes())
            for column in columns:
                digest.update(column.digest())
        return digest.hexdigest()

    @classmethod
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
        feature_names: Sequence[str] | None = None,
        text: TextRule | None = None,
        disclosed: tuple[str, ...] = (),
        source: str | None = None,
        bad_rows: str = "refuse",
        usable: NDArray[np.bool_] | None = None,
    ) -> FederatedData:
        """Check everything and group the rows by client.

        `client` names the owner of every row. Without `split`, every client's rows are divided
        into training, `validation` and `test` parts; a split of only train and test gives up a
        fraction `validation` of every client's training rows. `min_rows` drops clients that have
        fewer rows in all, `largest` then keeps that many with the most rows (of equals the first in
        sorted order), and `clients` that many, the first in sorted order.
        `scale="client"` lets every client standardise its features by its own training rows.

        A row with a value that is missing, infinite or no class is refused. With `bad_rows="drop"`
        (production) it is left out, also if `usable` [rows] is false for it, and a client without
        any row that trains stays a client: nothing that others get, not even an error, then depends
        on one client's rows.
        """
        check_lengths(x=x, y=y, client=client, split=split)
        names = None if feature_names is None else tuple(feature_names)
        drops = _drops(bad_rows)
        if drops:
            client, (x, y, split, usable) = without_nobody(client, (x, y, split, usable))
        marks = Usable(x.shape[0] if hasattr(x, "shape") else len(x)) if drops else None
        if marks is not None and usable is not None:
            marks.leave_out(~usable)
        kept_x = check_features(x, names, marks)
        kept_y, task, outputs, classes = check_targets(y, task, outputs, labels, marks)
        codes, known = encode(client, "client")
        given = None if split is None else read_parts(split, lenient=drops)
        parts = draw_parts(codes, known, given, validation, test, each=drops)
        left_out: tuple[str, ...] = ()
        if marks is not None:
            parts = np.where(marks.mask, parts, np.int8(UNUSED))
            left_out = _left_out(codes, known, marks.mask)
        codes, known, parts = _keep(codes, known, parts, min_rows, largest, clients)
        splits = {
            name: _group(codes, parts == part, len(known)) for part, name in enumerate(SPLITS)
        }
        if not drops:
            _check_training(splits["train"], known)
        scaling = None
        if scale is not None:
            if scale != "client":
                raise PmtlError(f"There is no scale {scale!r}: use scale=client, or leave it out.")
            kept_x, scaling = scale_by_client(kept_x, codes, splits["train"])
        if min_rows > 1 or largest is not None:
            disclosed = (*disclosed, COUNTED)
        about = (classes, names, source, scaling, text, disclosed, left_out)
        return cls(kept_x, kept_y, known, splits, task, outputs, *about)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        client: str = "client",
        target: str = "target",
        split: str | None = None,
        *,
        drop: str | Sequence[str] = (),
        **options: Any,
    ) -> FederatedData:
        """A pandas DataFrame: one column names the client, one is the target (several are written
        `a+b`), and every other column is a feature. `options` are those of `from_arrays`."""
        from pmtl.data.readers.table import frame_columns

        columns = frame_columns(frame, client, target, split, drop)
        arguments: dict[str, Any] = {**columns, **options}
        return cls.from_arrays(**arguments)


def _drops(bad_rows: str) -> bool:
    if bad_rows not in ("refuse", "drop"):
        raise PmtlError(f"There is no bad_rows {bad_rows!r}: use refuse or drop.")
    return bad_rows == "drop"


def _left_out(
    codes: NDArray[np.int64], known: tuple[str, ...], usable: NDArray[np.bool_]
) -> tuple[str, ...]:
    """Sentences on whose rows were left out."""
    rows, bad = (
        np.bincount(codes[rows], minlength=len(known)) for rows in (usable | True, ~usable)
    )
    return tuple(
        f"Client {known[k]!r}: {bad[k]} of {rows[k]} rows were left out, because a value is "
        "missing, infinite or no class."
        for k in np.flatnonzero(bad)
    )


def _keep(
    codes: NDArray[np.int64],
    known: tuple[str, ...],
    parts: NDArray[np.int8],
    min_rows: int,
    largest: int | None,
    clients: int | None,
) -> tuple[NDArray[np.int64], tuple[str, ...], NDArray[np.int8]]:
    """Drop small clients, then all but the `largest`, then all but the first `clients`; their rows
    belong to nobody."""
    counts = np.bincount(codes, minlength=len(known))
    kept = np.flatnonzero(counts >= min_rows)
    for name, number in (("largest", largest), ("clients", clients)):
        if number is None:
            continue
        if not 1 <= number <= len(kept):
            raise PmtlError(
                f"{name}={number} was asked for, but there are {len(kept)} clients"
                + (f" with at least {min_rows} rows." if min_rows > 1 else ".")
            )
        if name == "largest":
            kept = kept[np.argsort(-counts[kept], kind="stable")]
        kept = np.sort(kept[:number])
    if not len(kept):
        raise PmtlError(f"No client has {min_rows} rows: lower min_rows.")
    renumber = np.full(len(known), UNUSED, dtype=np.int64)
    renumber[kept] = np.arange(len(kept))
    codes = renumber[codes]
    parts = np.where(codes == UNUSED, np.int8(UNUSED), parts)
    return codes, tuple(known[k] for k in kept), parts


def _group(codes: NDArray[np.int64], member: NDArray[np.bool_], m: int) -> Rows:
    index = np.flatnonzero(member)
    owner = codes[index]
    return Rows(index[np.argsort(owner, kind="stable")], _offsets(np.bincount(owner, minlength=m)))


def _offsets(counts: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _check_training(train: Rows, clients: tuple[str, ...]) -> None:
    empty = np.flatnonzero(train.counts == 0)
    if len(empty):
        raise PmtlError(
            f"Client {clients[empty[0]]!r} has no training rows ({len(empty)} of {len(clients)} "
            "clients have none): give every client rows marked train, or remove these clients."
        )


def _canonical(taken: Any) -> tuple[NDArray[Any], ...]:
    """Rows as the arrays a fingerprint is taken of."""
    if is_sparse(taken):
        lengths = np.diff(taken.indptr).astype(np.int64)
        return lengths, taken.indices.astype(np.int64), as_float32(taken.data)
    return (taken,) if taken.dtype == np.uint8 else (as_float32(taken),)
