"""Predictions for whole files and frames, larger than memory, for many clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pmtl.errors import PmtlError
from pmtl.models import predictions, probabilities
from pmtl.prediction.answers import NOBODY, Answering, Asked, decide
from pmtl.prediction.models import Models
from pmtl.prediction.output import check_place, write
from pmtl.prediction.source import Piece, Reading, Source, open_rows
from pmtl.progress import Bar, progress_bar
from pmtl.spec import unknown

#: Refused rows whose numbers, and unknown clients whose names, a summary has.
_NUMBERED = 20


@dataclass(frozen=True)
class Predictions:
    """Predictions of rows.

    Args:
        table: an Arrow table: the columns that were carried over, `prediction` and the
            probabilities; None if it was written to a file.
        summary: how many rows and clients were answered, and by which models.
    """

    table: Any
    summary: dict[str, Any]

    def to_pandas(self) -> Any:
        """The table as a pandas frame."""
        return self._table.to_pandas()

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A column of the table as an array."""
        if column not in self._table.column_names:
            raise unknown("column of answers named", column, self._table.column_names)
        return np.asarray(self._table.column(column).to_numpy())

    @property
    def _table(self) -> Any:
        if self.table is None:
            raise PmtlError(f"The answers were written to {self.summary['out']}: read them there.")
        return self.table

    def __len__(self) -> int:
        return int(self.summary["rows"])


@dataclass(frozen=True)
class Form:
    """What the answers look like."""

    models: Models
    sure: bool  #: whether probabilities are part of the answers

    @property
    def _labels(self) -> list[str]:
        return [str(label) for label in self.models.labels or range(self.models.outputs)]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of answers."""
        task = self.models.task
        if task == "multilabel":
            first = [f"prediction of {label}" for label in self._labels]
        elif task == "classification" or self.models.outputs == 1:
            first = ["prediction"]
        else:
            first = [f"prediction_{place}" for place in range(self.models.outputs)]
        return (*first, *(f"probability of {label}" for label in self._labels if self.sure))

    def columns(self, outputs: NDArray[np.float32], there: NDArray[np.bool_]) -> dict[str, Any]:
        """The columns of answers as Arrow arrays, empty for rows that are not `there`."""
        import pyarrow as pa

        tensor = torch.from_numpy(outputs)
        told = predictions(self.models.task)(tensor).numpy()
        missing = None if there.all() else ~there
        parts: list[NDArray[Any]] = [told] if told.ndim == 1 else list(told.T)
        made = []
        for part in parts:
            if self.models.task == "classification" and self.models.labels is not None:
                names = np.array(self.models.labels, dtype=object)
                made.append(pa.array(names[np.where(there, part, 0)], pa.string(), mask=missing))
            else:
                made.append(pa.array(np.ascontiguousarray(part), mask=missing))
        if self.sure:
            sure = probabilities(self.models.task)(tensor).numpy()
            made += [pa.array(np.ascontiguousarray(part), mask=missing) for part in sure.T]
        return dict(zip(self.names, made, strict=True))


def predict_rows(
    models: Models,
    rows: Any,
    reading: Reading,
    asked: Asked,
    target: Path | None,
    sure: bool | None,
    progress: bool,
) -> Predictions:
    """Predict rows, and write the answers to a file or, without a `target`, return them. `sure`:
    whether probabilities are written; None: where there are any."""
    if target is not None:
        check_place(target)
    asked.check(models)
    if sure:
        probabilities(models.task)  # Refuses a model of numbers, which has none.
    elif sure is None:
        sure = models.task != "regression" and (target is None or target.suffix != ".npy")
    form = Form(models, sure)
    with open_rows(rows, reading) as source:
        there = target is not None and target.exists() and Path(source.where).exists()
        if there and target is not None and target.samefile(source.where):
            raise PmtlError(f"{target} holds the rows: write the answers to another file.")
        if twice := [name for name in source.kept if name in form.names]:
            raise PmtlError(
                f"{source.where} has a column {twice[0]!r}, which is also the name of an answer: "
                "rename it, or say which columns are carried over (--keep id,client)."
            )
        with progress_bar("predicting", None, 0, progress) as bar:
            answering = decide(models, source, asked, bar)
            summary = Summary(source, answering, target)
            table = write(target, _answers(source, answering, form, summary, bar), form.names)
    return Predictions(table, summary.to_dict())


def _answers(
    source: Source, answering: Answering, form: Form, summary: Summary, bar: Bar
) -> Iterator[dict[str, Any]]:
    for piece in source.pieces():
        codes = answering.of(piece)
        summary.add(piece, codes)
        outputs = answering.outputs(piece, codes)
        yield {**piece.kept, **form.columns(outputs, codes != NOBODY)}
        bar.advance()


class Summary:
    """Counts rows, clients and refusals."""

    def __init__(self, source: Source, answering: Answering, out: Path | None) -> None:
        self._source, self._answering, self._out = source, answering, out
        self._m = len(answering.models.clients)
        self._own = np.zeros(self._m, dtype=np.int64)
        self._new = self._refused = 0
        self._numbers: list[int] = []

    def add(self, piece: Piece, codes: NDArray[np.int64]) -> None:
        """Count the rows of a piece."""
        known = codes[(codes >= 0) & (codes < self._m)]
        self._own += np.bincount(known, minlength=self._m)
        self._new += int((codes >= self._m).sum())
        wrong = np.flatnonzero(codes == NOBODY)
        self._refused += len(wrong)
        self._numbers += (piece.first + wrong)[: _NUMBERED - len(self._numbers)].tolist()

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        asked, strangers = self._answering.asked, self._answering.unknown
        return {
            "rows": self._answering.rows,
            "clients": int((self._own > 0).sum()),
            "model": "shared" if asked.shared else "personal",
            "client_column": self._source.client_column,
            "unknown_clients": len(strangers),
            "first_unknown": list(strangers[:_NUMBERED]),
            "rows_of_new_clients": self._new,
            "rows_refused": self._refused,
            "first_refused": self._numbers,
            "data": self._source.where,
            "out": None if self._out is None else str(self._out),
        }
