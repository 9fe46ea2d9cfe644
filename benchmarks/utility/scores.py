"""From answers to scores: losses on test rows, paired differences, and the share of the gap won."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: A probability below this counts as this, so that one wrong certainty does not decide everything.
LEAST = 1e-6


def logits_of(answers: Any, task: str) -> Array:
    """One column of a yes-or-no answer as the two of the package: 0 and the logit."""
    given: Array = np.asarray(answers, dtype=np.float64)
    if task == "classification" and given.shape[1] == 1:
        return np.column_stack([np.zeros(len(given)), given])
    return given


def row_losses(answers: Any, y: Any, task: str) -> tuple[Array, Array]:
    """The loss of each row (squared error, or log loss) and whether the answer is right, [rows].
    Answers that are not finite give a loss of infinity."""
    answers = logits_of(answers, task)
    bad = ~np.isfinite(answers).all(axis=1)
    answers = np.where(bad[:, None], 0, answers)
    if task == "regression":
        loss, right = np.square(answers[:, 0] - y), np.zeros(len(y))
    elif task == "multilabel":
        chance = np.clip(1 / (1 + np.exp(-np.clip(answers, -50, 50))), LEAST, 1 - LEAST)
        loss = -np.where(y == 1, np.log(chance), np.log(1 - chance)).mean(axis=1)
        right = ((answers > 0) == (y == 1)).mean(axis=1)
    else:
        top = answers - answers.max(axis=1, keepdims=True)
        chance = np.exp(top[np.arange(len(y)), y]) / np.exp(top).sum(axis=1)
        loss, right = -np.log(np.maximum(chance, LEAST)), (answers.argmax(axis=1) == y)
    return np.where(bad, np.inf, loss), np.asarray(right * ~bad, dtype=np.float64)


@dataclass
class Sums:
    """Losses of one method, summed for each client over all test rows of all seeds, [m]."""

    rows: Array
    loss: Array
    right: Array

    @classmethod
    def nothing(cls, m: int) -> Sums:
        return cls(np.zeros(m), np.zeros(m), np.zeros(m))

    def add(
        self, answers: Any, y: Any, client: NDArray[np.int64], task: str, errors: bool = False
    ) -> None:
        """Add the test rows of one seed; with `errors` the loss is whether an answer is wrong."""
        m = len(self.rows)
        loss, right = row_losses(answers, y, task)
        if errors:
            loss = np.where(np.isfinite(loss), 1 - right, np.inf)
        self.rows += np.bincount(client, minlength=m)
        self.loss += np.bincount(client, loss, minlength=m)
        self.right += np.bincount(client, right, minlength=m)

    def include(self, other: Sums) -> None:
        """Add another seed's sums."""
        self.rows += other.rows
        self.loss += other.loss
        self.right += other.right

    def score(self, task: str) -> float:
        """The root of the mean squared error, or the mean loss."""
        mean = self.loss.sum() / self.rows.sum()
        return float(np.sqrt(mean)) if task == "regression" else float(mean)

    def accuracy(self) -> float:
        return float(self.right.sum() / self.rows.sum())

    def beside(self, other: Sums, task: str) -> tuple[float, float]:
        """This score less the other's, and its standard error over clients (paired; for the root
        of a mean by its derivative)."""
        difference = self.loss - other.loss
        if not np.isfinite(difference).all():
            return float("inf"), float("nan")
        rows = self.rows.sum()
        spread = difference - self.rows * (difference.sum() / rows)
        m = np.count_nonzero(self.rows)
        error = float(np.sqrt(np.square(spread).sum() * m / (m - 1)) / rows)
        ours, theirs = self.score(task), other.score(task)
        if task == "regression":
            error /= ours + theirs
        return ours - theirs, error


def share(method: float, alone: float, ceiling: float) -> float | None:
    """(alone − method) / (alone − ceiling); None where there is no gap to win."""
    gap = alone - ceiling
    return (alone - method) / gap if gap > 0 and np.isfinite(method) else None
