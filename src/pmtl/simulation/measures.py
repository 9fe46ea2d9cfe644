"""Common measures of quality, for many clients at once.

A measure is a number for each client, computed from the targets and the models' outputs for all of
its rows: `accuracy`, `balanced_accuracy`, `f1` (macro), `auc` (one against the rest, macro),
`log_loss`, `brier`, `calibration_error`; for numbers `r2`, `mae` and `rmse`. They agree with
scikit-learn if it has them. The rows of all clients are one array, and `owner` is the client of
each row, so there is no loop over clients.

A client has no value (NaN) where a measure is not defined: `auc` needs rows of two classes, and
`r2` targets that differ. With several classes or labels, `auc` is the mean over those that some
rows of the client have and other rows do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import PmtlError
from pmtl.models import Task

Floats = NDArray[np.float64]

#: Bins of confidence for `calibration_error` (Guo et al. 2017).
BINS = 15


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """The targets and the models' outputs for rows of many clients."""

    task: Task
    truth: NDArray[Any]  #: classes [n], labels [n, outputs] or numbers [n] or [n, outputs]
    outputs: NDArray[Any]  #: [n, outputs] of the models: scores (logits), or numbers
    owner: NDArray[np.int64]  #: [n] the client of each row, from 0 on
    clients: int  #: the number of clients; each has at least one row

    @cached_property
    def scores(self) -> Floats:
        """The outputs in double precision."""
        return np.asarray(self.outputs, dtype=np.float64)

    @cached_property
    def log_sum(self) -> Floats:
        """[n] log Σ exp(score)."""
        top = self.scores.max(axis=1)
        return np.asarray(top + np.log(np.exp(self.scores - top[:, None]).sum(axis=1)))

    @cached_property
    def probabilities(self) -> Floats:
        """[n, outputs] the probabilities of classes or labels."""
        if self.task == "multilabel":
            return np.asarray(np.exp(-np.logaddexp(0, -self.scores)))
        return np.asarray(np.exp(self.scores - self.log_sum[:, None]))

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """[n] the predicted classes, or [n, outputs] the predicted labels."""
        if self.task == "multilabel":
            return (self.scores > 0).astype(np.int64)
        return np.asarray(self.scores.argmax(axis=1))

    @cached_property
    def one_hot_truth(self) -> Floats:
        """[n, outputs] 1 for the true class, or for true labels."""
        if self.task == "multilabel":
            return np.asarray(self.truth, dtype=np.float64)
        return np.asarray(np.eye(self.scores.shape[1])[self.truth])

    @cached_property
    def errors(self) -> Floats:
        """[n, outputs] the errors of predicted numbers."""
        return np.asarray(self.scores - self.truth.reshape(self.scores.shape).astype(np.float64))

    @cached_property
    def hits(self) -> Floats:
        """[clients, outputs] the number of correctly predicted rows of each class."""
        return self.pairs(self.truth, self.predicted == self.truth)

    def mean(self, values: Floats) -> Floats:
        """[clients] the mean over each client's rows of one number per row."""
        return self.sum(values) / self.counts

    def sum(self, values: Floats) -> Floats:
        """[clients] or [clients, columns] the sum over each client's rows."""
        if values.ndim == 1:
            return np.bincount(self.owner, values, minlength=self.clients).astype(np.float64)
        return np.stack([self.sum(column) for column in values.T], axis=1)

    @cached_property
    def counts(self) -> Floats:
        """[clients] the number of rows."""
        return np.bincount(self.owner, minlength=self.clients).astype(np.float64)

    def pairs(self, classes: NDArray[np.int64], counts: NDArray[Any] | None = None) -> Floats:
        """[clients, outputs] the number of rows (or the sum of `counts`) of each class [n]."""
        outputs = self.scores.shape[1]
        cells = self.owner * outputs + classes
        found = np.bincount(cells, counts, minlength=self.clients * outputs)
        return found.reshape(self.clients, outputs).astype(np.float64)


def accuracy(given: PredictedRows) -> Floats:
    """The share of rows with the predicted class, or that have the most probable label."""
    if given.task == "multilabel":
        best = given.scores.argmax(axis=1)
        return given.mean(np.take_along_axis(given.one_hot_truth, best[:, None], axis=1)[:, 0])
    return given.mean((given.predicted == given.truth).astype(np.float64))


def balanced_accuracy(given: PredictedRows) -> Floats:
    """The mean, over the client's classes, of the share of rows that is predicted correctly."""
    present = given.pairs(given.truth)
    return _mean_where(_ratio(given.hits, present), present > 0)


def f1(given: PredictedRows) -> Floats:
    """The mean of F1 over the classes that occur in the client's rows or predictions; of labels,
    over all of them, where one that never occurs counts 0."""
    if given.task == "multilabel":
        predicted, truth = given.predicted.astype(np.float64), given.one_hot_truth
        hits, true, called = (given.sum(v) for v in (predicted * truth, truth, predicted))
        return np.asarray(_ratio(2 * hits, true + called).mean(axis=1))
    both = given.pairs(given.truth) + given.pairs(given.predicted)
    return _mean_where(_ratio(2 * given.hits, both), both > 0)


def auc(given: PredictedRows) -> Floats:
    """The area under the ROC curve of each class or label against the rest, and their mean."""
    columns = range(given.scores.shape[1])
    if given.task == "classification" and len(columns) == 2:
        columns = range(1, 2)  # The other class has the same area.
    found = np.stack([_auc_of_class(given, column) for column in columns], axis=1)
    return _mean_where(np.nan_to_num(found), ~np.isnan(found))


def _auc_of_class(given: PredictedRows, column: int) -> Floats:
    """[clients] the area for one class, from the ranks of its rows (Mann & Whitney 1947)."""
    score, mark = given.probabilities[:, column], given.one_hot_truth[:, column]
    order = np.lexsort((score, given.owner))
    owner, score, mark = given.owner[order], score[order], mark[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (owner[1:] != owner[:-1]) | (score[1:] != score[:-1])
    tie = np.cumsum(first) - 1
    begins = np.flatnonzero(first)
    ends = np.append(begins[1:], len(order))
    before = np.cumsum(given.counts) - given.counts
    rank = ((begins + ends + 1) / 2)[tie] - before[owner]
    true = np.bincount(owner, mark, minlength=given.clients)
    ranks = np.bincount(owner, rank * mark, minlength=given.clients)
    pairs = true * (given.counts - true)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, (ranks - true * (true + 1) / 2) / pairs, np.nan)


def log_loss(given: PredictedRows) -> Floats:
    """The mean of −log(probability of the true class); over labels, too."""
    if given.task == "multilabel":
        losses = np.logaddexp(0, np.where(given.one_hot_truth > 0, -given.scores, given.scores))
        return given.mean(losses.mean(axis=1))
    right = np.take_along_axis(given.scores, given.truth[:, None], axis=1)[:, 0]
    return given.mean(given.log_sum - right)


def brier(given: PredictedRows) -> Floats:
    """The mean squared distance of probabilities from the truth: of the second class if there are
    two, summed over several classes, averaged over labels."""
    squares = (given.probabilities - given.one_hot_truth) ** 2
    if given.task == "multilabel":
        return given.mean(squares.mean(axis=1))
    return given.mean(squares[:, 1] if squares.shape[1] == 2 else squares.sum(axis=1))


def calibration_error(given: PredictedRows) -> Floats:
    """The expected calibration error: the distance of confidence from the share that is right, in
    15 bins of confidence, weighted by their rows."""
    if given.task == "multilabel":
        sure, right = given.probabilities.ravel(), given.one_hot_truth.ravel()
        owner = np.repeat(given.owner, given.probabilities.shape[1])
    else:
        sure = given.probabilities.max(axis=1)
        right = (given.predicted == given.truth).astype(np.float64)
        owner = given.owner
    bins = np.clip(np.ceil(sure * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(owner * BINS + bins, right - sure, minlength=given.clients * BINS)
    rows = np.bincount(owner, minlength=given.clients)
    return np.asarray(np.abs(gaps).reshape(given.clients, BINS).sum(axis=1) / rows)


def r2(given: PredictedRows) -> Floats:
    """1 − (squared errors)/(squared deviations from the client's mean), averaged over outputs."""
    truth = given.truth.reshape(given.scores.shape).astype(np.float64)
    means = given.sum(truth) / given.counts[:, None]
    spread = given.sum((truth - means[given.owner]) ** 2)
    lowest, highest = np.full(spread.shape, np.inf), np.full(spread.shape, -np.inf)
    np.minimum.at(lowest, given.owner, truth)
    np.maximum.at(highest, given.owner, truth)
    differ = (lowest < highest).all(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (1 - given.sum(given.errors**2) / spread).mean(axis=1)
    return np.where(differ, found, np.nan)


def mae(given: PredictedRows) -> Floats:
    """The mean absolute error."""
    return given.mean(np.abs(given.errors).mean(axis=1))


def rmse(given: PredictedRows) -> Floats:
    """The root of the mean squared error."""
    return np.sqrt(given.mean((given.errors**2).mean(axis=1)))


def _ratio(part: Floats, whole: Floats) -> Floats:
    """part/whole, and 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _mean_where(values: Floats, present: NDArray[np.bool_]) -> Floats:
    """[clients] the mean over the columns that are present; NaN if none is."""
    counts = present.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(present, values, 0).sum(axis=1) / counts)


Measure = Callable[[PredictedRows], Floats]

_OF_CLASSES = (accuracy, balanced_accuracy, f1, auc, log_loss, brier, calibration_error)
_OF_LABELS = (accuracy, f1, auc, log_loss, brier, calibration_error)
_OF_NUMBERS = (r2, mae, rmse)
#: The measures of each task, by name.
MEASURES: dict[Task, dict[str, Measure]] = {
    "classification": {measure.__name__: measure for measure in _OF_CLASSES},
    "multilabel": {measure.__name__: measure for measure in _OF_LABELS},
    "regression": {measure.__name__: measure for measure in _OF_NUMBERS},
}
NAMES = tuple(dict.fromkeys(name for known in MEASURES.values() for name in known))
ALL = "all"
#: Measures of which less is better.
LESS_IS_BETTER = ("log_loss", "brier", "calibration_error", "mae", "rmse")
#: Why a client may have no value of a measure.
UNDEFINED = {"auc": "their rows have one class only", "r2": "their targets are all the same"}


def measures_of(task: Task, names: Iterable[str]) -> dict[str, Measure]:
    """The measures of these names (`all`: every one of the task); others are refused."""
    found: dict[str, Measure] = {}
    for name in names:
        if name != ALL and name not in MEASURES[task]:
            raise PmtlError(
                f"There is no {name} for {task}: use {', '.join(MEASURES[task])}, or a metric of "
                "your own as package.module:function."
            )
        found |= MEASURES[task] if name == ALL else {name: MEASURES[task][name]}
    return found
