"""`PMTLRegressor`: one or several numbers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import column_or_1d

from pmtl.models import predictions
from pmtl.sklearn.base import FLOATS, PMTLEstimator
from pmtl.sklearn.columns import check_rows


class PMTLRegressor(RegressorMixin, PMTLEstimator):  # type: ignore[misc]
    """A private, personal regression for each group of rows.

    `bounds={"target": (low, high)}` (public knowledge) saves releases and lets the shared model
    answer for new groups at every ε.

    `__init__` explains the parameters.

    Attributes:
        groups_: the names of the groups (clients); None after a fit without groups.
        privacy_: the privacy statement of the fit.
        run_: the run, a `pmtl.Run`.
        n_features_in_, feature_names_in_: the features that `fit` saw.
    """

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Train a model for each group.

        Args:
            X: rows of numbers: an array, a frame or a sparse matrix.
            y: the number to predict for each row, or several columns of numbers.
            groups: the client of each row. Without it, all rows belong to one client.
        """
        return self._fit(X, groups, lambda rows: self._columns(rows, y))

    def _columns(self, X: Any, y: Any) -> dict[str, Any]:
        options = {"dtype": FLOATS, "multi_output": True, "y_numeric": True}
        X, y = check_rows(self, X, y, **options)
        y = np.asarray(y, dtype=np.float64)
        self._flat = y.ndim == 1
        if y.ndim == 2 and y.shape[1] == 1:
            y, self._flat = column_or_1d(y, warn=True), True
        return {"x": X, "y": y, "task": "regression"}

    def predict(self, X: Any, *, groups: Any = None) -> NDArray[np.float64]:
        """The number, or numbers, of each row.

        Args:
            X: rows of the features that `fit` saw.
            groups: the client of each row. The shared model answers for clients that `fit` did not
                see and, with a warning, if groups are left out.
        """
        found = self._answers(X, groups, "predict", predictions)
        found = found.astype(np.float64)
        return found.reshape(len(found)) if self._flat else found.reshape(len(found), -1)

    def score(self, X: Any, y: Any, *, groups: Any = None, sample_weight: Any = None) -> float:
        """R² of the predictions, each by its client's model.

        Args:
            X: rows of the features that `fit` saw.
            y: their numbers.
            groups: the client of each row, as for `predict`.
            sample_weight: the weight of each row in the score.
        """
        self._refuse_score()
        return float(r2_score(y, self.predict(X, groups=groups), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
