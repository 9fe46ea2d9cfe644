"""How a finished run predicts: rows in memory, and whole files and frames, larger than memory, for
many clients at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pmtl.data.readers.columns import CLIENT
from pmtl.errors import PmtlError
from pmtl.models import losses
from pmtl.prediction.answers import NO_MODEL, ModelAssignment, ModelRequest, assign_models
from pmtl.prediction.models import Models
from pmtl.prediction.output import check_output_path, write
from pmtl.prediction.source import Piece, ReadingRules, Source, open_rows
from pmtl.spec import unknown
from pmtl.views.progress import Bar, progress_bar

#: The most refused rows and unknown clients that a summary lists.
_MOST_LISTED = 20


@dataclass(frozen=True)
class Predictions:
    #: An Arrow table: the columns that were carried over, `prediction` and the probabilities; None
    #: if it was written to a file.
    table: Any
    summary: dict[str, Any]  #: how many rows and clients were answered, and by which models

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
class AnswerColumns:
    models: Models
    probabilities: bool  #: whether probabilities are part of the answers

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
        return (
            *first,
            *(f"probability of {label}" for label in self._labels if self.probabilities),
        )

    def columns(self, outputs: NDArray[np.float32], there: NDArray[np.bool_]) -> dict[str, Any]:
        """The columns of answers as Arrow arrays, empty for rows that are not `there`."""
        import pyarrow as pa

        tensor, task, labels = torch.from_numpy(outputs), self.models.task, self.models.labels
        predictions = losses.predictions(task)(tensor).numpy()
        if task == "classification" and labels is not None:
            predictions = np.array(labels, dtype=object)[np.where(there, predictions, 0)]
        parts = [predictions] if predictions.ndim == 1 else [*predictions.T]
        parts += [*losses.probabilities(task)(tensor).numpy().T] if self.probabilities else []
        missing = None if there.all() else ~there
        kinds = [pa.string() if part.dtype == object else None for part in parts]
        made = (
            pa.array(np.ascontiguousarray(part), kind, mask=missing)
            for part, kind in zip(parts, kinds, strict=True)
        )
        return dict(zip(self.names, made, strict=True))


def _answers(
    source: Source, assignment: ModelAssignment, form: AnswerColumns, summary: Summary, bar: Bar
) -> Iterator[dict[str, Any]]:
    for piece in source.pieces():
        codes = assignment.of(piece)
        summary.add(piece, codes)
        outputs = assignment.outputs(piece, codes)
        yield {**piece.kept, **form.columns(outputs, codes != NO_MODEL)}
        bar.advance()


class Summary:
    """Counts rows, clients and refusals."""

    def __init__(self, source: Source, assignment: ModelAssignment, out: Path | None) -> None:
        self._source, self._assignment, self._out = source, assignment, out
        self._m = len(assignment.models.clients)
        self._own = np.zeros(self._m, dtype=np.int64)
        self._new = self._refused = 0
        self._numbers: list[int] = []

    def add(self, piece: Piece, codes: NDArray[np.int64]) -> None:
        """Count the rows of a piece."""
        known = codes[(codes >= 0) & (codes < self._m)]
        self._own += np.bincount(known, minlength=self._m)
        self._new += int((codes >= self._m).sum())
        wrong = np.flatnonzero(codes == NO_MODEL)
        self._refused += len(wrong)
        self._numbers += (piece.first + wrong)[: _MOST_LISTED - len(self._numbers)].tolist()

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        asked, unknown_clients = self._assignment.asked, self._assignment.unknown
        return {
            "rows": self._assignment.rows,
            "clients": int((self._own > 0).sum()),
            "model": "shared" if asked.shared else "personal",
            "client_column": self._source.client_column,
            "unknown_clients": len(unknown_clients),
            "first_unknown": list(unknown_clients[:_MOST_LISTED]),
            "rows_of_new_clients": self._new,
            "rows_refused": self._refused,
            "first_refused": self._numbers,
            "data": self._source.where,
            "out": None if self._out is None else str(self._out),
        }


class Predicting(ABC):
    """Predicts with the models of a run."""

    @property
    @abstractmethod
    def _models(self) -> Models: ...

    def predict(self, client: str | None, x: Any) -> NDArray[Any]:
        """The predictions of the client's model: class numbers, 0/1 per label, or numbers.

        Args:
            client: the name of the client. None: the shared model answers for a client that is not
                in the run. If clients scale their features, the new client's are scaled by `x`.
            x: rows of features, an array or a sparse matrix.
        """
        return self._models.answers(client, x, losses.predictions(self._models.task))

    def predict_proba(self, client: str | None, x: Any) -> NDArray[np.float32]:
        """The probabilities of classes or labels, `[rows, classes]`; `client` and `x` as for
        `predict`."""
        return self._models.answers(client, x, losses.probabilities(self._models.task))

    def predict_rows(
        self,
        rows: Any,
        out: str | Path | None = None,
        *,
        clients: Any = None,
        client: str | None = None,
        new: bool = False,
        shared: bool = False,
        any_client: bool = False,
        skip: bool = False,
        client_column: str | None = None,
        keep: Sequence[str] | None = None,
        probabilities: bool | None = None,
        progress: bool = False,
    ) -> Predictions:
        """Predict a file or a frame with rows of many clients; `pmtl predict` calls this.

        Every row is answered by the model of the client that the client column names. The column is
        found by the name that it had in training.

        Args:
            rows: a path, `PATH:client=COLUMN`, a frame (pandas, polars, Arrow), or an array or
                sparse matrix of features.
            out: a file for the answers: .csv, .parquet, .npz or .npy. None: they are returned.
            clients: the client of each row of an array.
            client: the client whose model answers for all rows. Rows that the client column gives
                to other clients are refused.
            new: the shared model answers for clients that are not in the run, and for all rows if
                there is no client column.
            shared: the shared model answers for all clients.
            any_client: with `client`, also answer for rows of other clients.
            skip: leave rows that cannot be predicted without an answer, instead of refusing them.
            client_column: the column that names the client.
            keep: the columns that are carried over; by default all that are not features.
            probabilities: whether probabilities are among the answers; by default where there are
                any (not in .npy).
            progress: show a progress bar.
        """
        models, target = self._models, None if out is None else Path(out)
        asked = ModelRequest(client, new, shared, any_client, skip)
        if target is not None:
            check_output_path(target)
        asked.check(models)
        if probabilities:
            losses.probabilities(models.task)  # Refuses a model of numbers, which has none.
        elif probabilities is None:
            probabilities = models.task != "regression"
            probabilities &= target is None or target.suffix != ".npy"
        form = AnswerColumns(models, probabilities)
        known = (models.client_column,) if models.client_column else CLIENT
        kept = None if keep is None else tuple(keep)
        reading = ReadingRules(
            models.inputs, known, client_column, kept, lenient=skip, clients=clients
        )
        with open_rows(rows, reading) as source:
            there = target is not None and target.exists() and Path(source.where).exists()
            if there and target is not None and target.samefile(source.where):
                raise PmtlError(f"{target} holds the rows: write the answers to another file.")
            if twice := [name for name in source.kept if name in form.names]:
                raise PmtlError(
                    f"{source.where} has a column {twice[0]!r}, which is also the name of an "
                    "answer: rename it, or say which columns are carried over (--keep id,client)."
                )
            with progress_bar("predicting", None, 0, progress) as bar:
                assignment = assign_models(models, source, asked, bar)
                summary = Summary(source, assignment, target)
                table = write(target, _answers(source, assignment, form, summary, bar), form.names)
        return Predictions(table, summary.to_dict())
