"""How a finished run predicts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.readers.columns import CLIENT
from pmtl.models import predictions, probabilities
from pmtl.prediction.answers import Asked
from pmtl.prediction.models import Models
from pmtl.prediction.rows import Predictions, predict_rows
from pmtl.prediction.source import Reading


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
        return self._models.answers(client, x, predictions(self._models.task))

    def predict_proba(self, client: str | None, x: Any) -> NDArray[np.float32]:
        """The probabilities of classes or labels, `[rows, classes]`; `client` and `x` as for
        `predict`."""
        return self._models.answers(client, x, probabilities(self._models.task))

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
        models = self._models
        known = (models.client_column,) if models.client_column else CLIENT
        kept = None if keep is None else tuple(keep)
        reading = Reading(models.inputs, known, client_column, kept, lenient=skip, clients=clients)
        asked = Asked(client, new, shared, any_client, skip)
        target = None if out is None else Path(out)
        return predict_rows(models, rows, reading, asked, target, probabilities, progress)
