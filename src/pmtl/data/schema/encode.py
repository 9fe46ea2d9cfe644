"""Rows of a table as features and targets, by its schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import as_float32
from pmtl.data.readers.text import hashed_column, tokenise
from pmtl.data.schema.cells import (
    Cells,
    boolean,
    date_reader,
    distinct_texts,
    find_category,
    is_empty,
    is_readable,
    months_and_weekdays,
    read_each,
    read_numbers,
)
from pmtl.data.schema.column import Column
from pmtl.data.schema.problems import refuse
from pmtl.errors import PublicError

if TYPE_CHECKING:
    from pmtl.data.schema.schema import Schema


@dataclass
class _Problem:
    """Cells of one column that are empty, or that cannot be read."""

    column: Column
    empty: bool
    row: int  #: the first of them
    example: str
    count: int = 0

    def sentence(self) -> str:
        column, name = self.column, self.column.name
        target, category = column.role == "target", column.kind == "category"
        if self.empty:
            choices = '"drop"' if target else '"indicator", "fill" or "drop"'
            return (
                f"the column {name!r} has {_cells(self.count)} without a value (first in row "
                f"{self.row}, counting from 0): fill in, or write missing = {choices} under "
                f"[columns.{name}] of a schema."
            )
        what = "not among its categories" if category else f"not a {column.kind}"
        what += " with a decimal comma" if column.decimal == "," else ""
        what = _cells(self.count, f"that is {what}", f"that are {what}")
        return (
            f"the column {name!r} has {what} (first in row "
            f"{self.row}, counting from 0: {self.example!r}): correct that, list it in "
            f"{'categories' if category else 'missing_values'} under [columns.{name}] of a "
            f"schema{'.' if target else f', or leave the column out with drop={name}.'}"
        )


class Encoder:
    """Encodes batch by batch, and collects problems. If `lenient` (production), rows with a cell
    that cannot be read are dropped without an error."""

    def __init__(self, schema: Schema, lenient: bool = False) -> None:
        self._schema, self._lenient = schema, lenient
        self._problems: dict[tuple[str, bool], _Problem] = {}

    def encode(self, batch: Any, first: int = 0) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Features, [rows, features], and which rows can be used; `first` is the number of the
        batch's first row. Features are NaN where the client has to fill."""
        usable = np.ones(batch.num_rows, dtype=bool)
        x = np.empty((batch.num_rows, len(self._schema.feature_names)), dtype=np.float32)
        start = 0
        for column in self._schema.features:
            end = start + len(column.features)
            cells = self._column(column, batch.column(column.name))
            x[:, start:end] = self._features(column, cells)
            self._mark_unusable(column, cells, batch, first, usable)
            start = end
        return x, usable

    def targets(self, batch: Any, first: int = 0) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Targets, [rows, targets] (of classes the number), and which rows can be used."""
        usable = np.ones(batch.num_rows, dtype=bool)
        found = []
        for column in self._schema.targets:
            cells = self._column(column, batch.column(column.name))
            self._mark_unusable(column, cells, batch, first, usable)
            found.append(cells.values)
        return np.stack(found, axis=1), usable

    def finish(self, where: str) -> None:
        """Refuse the rows if anything was wrong; `where` is their name."""
        refuse(where, [p.sentence() for p in self._problems.values()], public=False)

    def _column(self, column: Column, cells: Any) -> Cells:
        """The cells of a column: the numbers, or the places of categories (−1: unknown)."""
        if not is_readable(cells.type):
            raise PublicError(
                f"The column {column.name!r} holds {cells.type}, which is not a {column.kind}: "
                f"leave it out with drop={column.name}, or make columns of it."
            )
        more, size = column.missing_values, column.hash
        if column.kind == "number":
            return read_numbers(cells, more, column.decimal)
        if column.kind == "boolean":
            return read_each(cells, boolean, more)
        if column.kind == "date":
            return read_each(cells, date_reader(column.formats), more)
        if column.kind == "category" and size is not None:
            return read_each(cells, lambda text: float(hashed_column(text, size)), more)
        codes, texts = distinct_texts(cells)
        if column.kind == "text":
            missing = np.array([is_empty(text, more) for text in texts])[codes]
            return _Texts(np.empty(len(codes)), missing, np.zeros_like(missing), codes, texts)
        places = {value.strip(): place for place, value in enumerate(column.categories or ())}
        # A listed category counts, also if it is spelled like an empty cell.
        found = [None if text is None else find_category(text, places) for text in texts]
        values = np.array([-1.0 if place is None else place for place in found])[codes]
        missing = np.array([is_empty(text, more) for text in texts])[codes] & (values < 0)
        refused = column.unknown == "refuse" or column.role == "target"
        return Cells(values, missing, (values < 0) & ~missing & refused)

    def _features(self, column: Column, cells: Cells) -> NDArray[np.float32]:
        rows, width = len(cells.missing), len(column.features)
        x = np.zeros((rows, width), dtype=np.float32)
        here = np.flatnonzero(~cells.missing & ~cells.wrong)
        if isinstance(cells, _Texts):
            assert column.hash is not None
            x[:, : column.hash] = cells.frequencies(column.hash)
        elif column.kind == "category":
            place = cells.values[here].astype(np.int64)
            known = place >= 0
            x[here[known], place[known]] = 1
            if column.unknown == "other":
                x[here[~known], len(column.categories or ())] = 1
        else:
            x[:, 0] = as_float32(cells.values)
            for number, part in enumerate(column.parts):
                month, weekday = months_and_weekdays(cells.values[here])
                angle = 2 * np.pi * (month / 12 if part == "month" else weekday / 7)
                x[here, 1 + 2 * number] = np.sin(angle)
                x[here, 2 + 2 * number] = np.cos(angle)
        if column.missing == "indicator":
            x[:, -1] = cells.missing
        return x

    def _mark_unusable(
        self, column: Column, cells: Cells, batch: Any, first: int, usable: NDArray[np.bool_]
    ) -> None:
        """Mark the rows that cannot be used and, unless `lenient`, note what is wrong."""
        usable &= ~cells.wrong
        if column.missing in ("drop", "refuse"):
            usable &= ~cells.missing
        if self._lenient:
            return
        refused = cells.missing & (column.missing == "refuse")
        for empty, marked in ((True, refused), (False, cells.wrong)):
            if not marked.any():
                continue
            row, key = int(np.argmax(marked)), (column.name, empty)
            if key not in self._problems:
                example = str(batch.column(column.name)[row].as_py())[:40]
                self._problems[key] = _Problem(column, empty, first + row, example)
            self._problems[key].count += int(marked.sum())


def _cells(count: int, one: str = "", many: str = "") -> str:
    return f"a cell {one}".rstrip() if count == 1 else f"{count} cells {many}".rstrip()


@dataclass(frozen=True)
class _Texts(Cells):
    """Cells whose words are hashed."""

    codes: NDArray[np.int64]
    texts: Sequence[str | None]

    def frequencies(self, columns: int) -> NDArray[np.float32]:
        """How often words of each column occur, divided by the number of words, [rows, columns]."""
        table = np.zeros((len(self.texts), columns), dtype=np.float32)
        for place, text in enumerate(self.texts):
            words = tokenise(text or "")
            for word in words:
                table[place, hashed_column(word, columns)] += 1 / len(words)
        x = table[self.codes]
        x[self.missing] = 0
        return x
