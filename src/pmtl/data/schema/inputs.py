"""Rows of a file as a finished model reads them.

`Inputs.rows` is the one place where cells of a new table become features, for one batch of rows at
a time: columns are found by the names they had in training, text becomes words by the rule of
training, and other columns become numbers by the schema of training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pmtl.data import checks
from pmtl.data.checks import Mask, is_sparse
from pmtl.data.readers.cells import Table, number_rows, texts
from pmtl.data.readers.text import Bags, TextRule, frequencies
from pmtl.data.schema.rows import encode_new_rows
from pmtl.data.schema.schema import Schema
from pmtl.errors import PmtlError, how_many


@dataclass(frozen=True)
class Inputs:
    """What a model reads. With a schema, NaN is an empty cell, which the client's model fills."""

    shape: tuple[int, ...]  #: of a row
    names: tuple[str, ...] | None = None  #: of the features in training, if they had names
    text: TextRule | None = None  #: how text became features in training, if it did
    pixels: bool = True  #: whether bytes are pixels, which become numbers between 0 and 1
    schema: Schema | None = None  #: of the table in training, if it had one

    def columns(self, table: Table, others: Collection[str | None] = ()) -> tuple[str, ...]:
        """The columns of a table that hold features. If they had no names in training, these are
        all columns but the `others`, in their order. With a schema, columns that it does not know
        are refused, except the `others`."""
        if self.schema is not None:
            known = [name for name in others if name is not None]
            self.schema.check_names(table.names, table.where, ignore=known)
            return tuple(column.name for column in self.schema.features)
        wanted = self.names if self.text is None else self.text.columns
        if wanted is None:
            wanted = tuple(name for name in table.names if name not in others)
            if (len(wanted),) != self.shape:
                raise PmtlError(
                    f"{table.where} has {how_many(len(wanted), 'column')} of features, but the "
                    f"model reads {self.shape}, and training gave them no names."
                )
        find_columns(table, wanted)
        return wanted

    def rows(
        self, batch: Any, columns: Sequence[str], table: Table, first: int
    ) -> tuple[Any, Mask]:
        """The features of an Arrow record batch, an array or a CSR matrix, and which rows are
        usable. `columns` found the columns; `first` is the number of the batch's first row. If the
        table is not `lenient`, an unusable row is refused."""
        if self.schema is not None:
            x, usable = encode_new_rows(self.schema, batch, table.where, first, table.lenient)
            return x, usable & self.check(x, table.lenient, first)
        usable = np.ones(batch.num_rows, dtype=bool)
        if self.text is not None:
            bags = Bags(self.names, self.text.hashed)
            for row in texts(batch, columns, table, first, usable):
                bags.append(self.text.words(row))
            return frequencies(bags.finish()), usable
        x = number_rows(batch, first, replace(table, parse=True), columns, "input")
        return x, self.check(x, table.lenient, first)

    def check(self, x: Any, lenient: bool = False, first: int = 0) -> Mask:
        """Which of these rows are usable; unless `lenient`, an unusable row is refused."""
        finite = np.isfinite(x) if x.dtype.kind == "f" else np.ones(x.shape, dtype=bool)
        if self.schema is not None:
            finite |= np.isnan(x)
        if not lenient and not finite.all():
            row, *place = np.argwhere(~finite)[0]
            raise checks.not_finite(x[(row, *place)], first + int(row), np.array(place), self.names)
        return checks.all_in_row(finite)

    def array(self, x: Any, where: str) -> Any:
        """The rows of an array or a sparse matrix, or a refusal of rows that do not fit."""
        marks = np.ones(x.shape[0] if x.ndim else 0, dtype=bool)
        fillable = self.schema is not None
        x = checks.check_features(x, self.names, None if is_sparse(x) else marks, fillable)
        if x.shape[1:] != self.shape:
            raise PmtlError(
                f"{where} holds rows of shape {x.shape[1:]}, but the model reads {self.shape}."
            )
        return x

    def part(self, x: Any, rows: slice, lenient: bool = False) -> tuple[Any, Mask]:
        """Some rows of an array as the model reads them, and which of them are usable."""
        if is_sparse(x):  # `array` refused unusable rows.
            return x[rows], np.ones(rows.stop - rows.start, dtype=bool)
        some = (checks.as_model_input if self.pixels else checks.as_float32)(x[rows])
        return some, self.check(some, lenient, rows.start)


def find_columns(table: Table, names: Sequence[str]) -> None:
    """Refuse a table that lacks one of the columns, or has one of them twice."""
    counts = Counter(table.names)
    for name in names:
        if not counts[name]:
            raise PmtlError(f"{table.where} lacks the feature column {name!r} that training used.")
        if counts[name] > 1:
            raise PmtlError(f"{table.where} has more than one column named {name!r}: rename one.")
