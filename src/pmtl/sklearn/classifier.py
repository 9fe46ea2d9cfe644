"""`PMTLClassifier`: classes, or several labels of 0 and 1."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from pmtl.errors import PmtlError
from pmtl.models import probabilities
from pmtl.sklearn.base import FLOATS, PMTLEstimator
from pmtl.sklearn.columns import check_rows


class PMTLClassifier(ClassifierMixin, PMTLEstimator):  # type: ignore[misc]
    """A private, personal classifier for each group of rows.

    With several columns of 0 and 1 as `y`, every column is a label that is predicted for itself.

    `__init__` explains the parameters.

    Attributes:
        classes_: the classes, sorted; with several labels the numbers of the labels.
        groups_: the names of the groups (clients); None after a fit without groups.
        privacy_: the privacy statement of the fit.
        run_: the run, a `pmtl.Run`.
        n_features_in_, feature_names_in_: the features that `fit` saw.
    """

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Train a model for each group.

        Args:
            X: rows of numbers: an array, a frame or a sparse matrix.
            y: the class of each row, or columns of 0 and 1.
            groups: the client of each row. Without it, all rows belong to one client.
        """
        return self._fit(X, groups, lambda rows: self._columns(rows, y))

    def _columns(self, X: Any, y: Any) -> dict[str, Any]:
        X, y = check_rows(self, X, y, dtype=FLOATS, multi_output=True)
        check_classification_targets(y)
        self._multilabel = type_of_target(y) == "multilabel-indicator"
        if self._multilabel:
            y = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
            self.classes_: NDArray[Any] = np.arange(y.shape[1])
            return {"x": X, "y": y, "task": "multilabel"}
        if type_of_target(y) == "multiclass-multioutput":
            raise PmtlError(
                "Several targets of a row must be labels of 0 and 1: fit one estimator for each "
                "column of classes."
            )
        y = column_or_1d(y, warn=True)
        self.classes_, codes = np.unique(y, return_inverse=True)
        # A softmax needs two classes; with one class, its column is the only one used.
        outputs = max(2, len(self.classes_))
        labels = [str(name) for name in self.classes_]
        if len(set(labels)) < len(labels):
            labels = [repr(name) for name in self.classes_]
        return {"x": X, "y": codes, "task": "classification", "outputs": outputs, "labels": labels}

    def predict(self, X: Any, *, groups: Any = None) -> NDArray[Any]:
        """The class of each row, or 0 and 1 for each label.

        Args:
            X: rows of the features that `fit` saw.
            groups: the client of each row. The shared model answers for clients that `fit` did not
                see and, with a warning, if groups are left out.
        """
        chances = self._chances(X, groups, "predict")
        if self._multilabel:
            return (chances > 0.5).astype(np.int64)
        return np.asarray(self.classes_[chances.argmax(axis=1)])

    def predict_proba(self, X: Any, *, groups: Any = None) -> NDArray[np.float64]:
        """The probability of each class, [rows, classes], or of a 1 for each label.

        Args:
            X: rows of the features that `fit` saw.
            groups: the client of each row, as for `predict`.
        """
        return self._chances(X, groups, "predict_proba")

    def _chances(self, X: Any, groups: Any, name: str) -> NDArray[np.float64]:
        found = self._answers(X, groups, name, probabilities)
        chances = found.astype(np.float64)
        if self._multilabel:
            return chances
        chances = chances[:, : len(self.classes_)]
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))

    def score(self, X: Any, y: Any, *, groups: Any = None, sample_weight: Any = None) -> float:
        """The share of rows that are predicted correctly, each by its client's model.

        Args:
            X: rows of the features that `fit` saw.
            y: their classes, or their labels.
            groups: the client of each row, as for `predict`.
            sample_weight: the weight of each row in the score.
        """
        self._refuse_score()
        return float(accuracy_score(y, self.predict(X, groups=groups), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
