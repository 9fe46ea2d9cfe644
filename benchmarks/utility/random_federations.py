"""Federations drawn at random, from ordinary to odd, to check what nothing was tuned for.

A client k has rows x and answers η = b + b_k + x·(w + u_k), where b_k and u_k are its own. A number
is η plus noise, a class is drawn from the softmax of one η for each class, a label from the sigmoid
of its own η. Sizes, strengths and oddities are drawn, too: units, shifts, columns that are constant
for all or for some clients, heavy tails, rare classes, clients with one row or with one class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from federation import Federation, Task, named
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: The most rows of a federation, so that thousands of them can be tried.
MOST_ROWS = 10_000


@dataclass(frozen=True)
class Recipe:
    """How one federation is drawn.

    Args:
        task, outputs: what is predicted.
        m: the number of clients.
        rows: the mean number of rows of a client.
        unbalanced: the deviation of the logarithm of their number.
        columns: the number of columns that matter.
        shared: the size of the common slopes.
        slopes: the deviation of clients' own slopes, of all columns together.
        intercepts: the deviation of their intercepts.
        rare: the deviation of the common intercepts of classes and labels.
        noise: the deviation of the noise on numbers.
        tails: degrees of freedom of Student's t for columns and noise; 0: normal.
        kind: what the columns are: normal, 0/1, rare 0/1, alike, or of different levels in clients.
        units: whether columns have odd units and levels.
        constants: whether there are columns that are constant for all or for clients.
        size, level: the unit and the level of a numeric target.
    """

    task: Task
    outputs: int
    m: int
    rows: float
    unbalanced: float
    columns: int
    shared: float
    slopes: float
    intercepts: float
    rare: float
    noise: float
    tails: int
    kind: str
    units: bool
    constants: bool
    size: float
    level: float

    @property
    def about(self) -> str:
        what = f"{self.outputs} labels" if self.task == "multilabel" else f"{self.outputs} classes"
        what = "numbers" if self.task == "regression" else what
        return (
            f"drawn: {what}, common slopes {self.shared:g}, own {self.slopes:g}, own intercepts "
            f"{self.intercepts:g}, {self.kind} columns"
        )


def recipe(seed: int) -> Recipe:
    """The recipe of this number."""
    random = _generator(seed, 1)

    def one(*of: Any) -> Any:
        return of[int(random.integers(len(of)))]

    def between(low: float, high: float) -> float:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    task: Task = one("regression", "regression", "classification", "classification", "multilabel")
    outputs = 1 if task == "regression" else int(one(2, 2, 2, 3, 4, 6, 10))
    outputs = min(outputs, 5) if task == "multilabel" else outputs
    m, rows = round(between(30, 3000)), between(2, 100)
    size = between(1e-4, 1e6) if one(True, False) else 1.0
    return Recipe(
        task=task,
        outputs=outputs,
        m=m,
        rows=min(rows, MOST_ROWS / m),
        unbalanced=one(0.0, 0.5, 1.2),
        columns=round(between(1, 25)),
        shared=one(0.0, 0.5, 1.0, 3.0),
        slopes=one(0.0, 0.2, 0.5, 1.5),
        intercepts=one(0.0, 0.3, 1.0, 3.0),
        rare=one(0.0, 1.0, 3.0),
        noise=one(0.3, 1.0, 3.0),
        tails=one(0, 0, 3),
        kind=one("normal", "normal", "0/1", "rare 0/1", "alike", "levelled"),
        units=one(True, False),
        constants=one(True, False, False),
        size=size,
        level=size * one(0.0, 0.0, 10.0, -1000.0),
    )


def draw(seed: int) -> Federation:
    """The federation of this number."""
    it = recipe(seed)
    random = _generator(seed, 2)
    counts = np.exp(it.unbalanced * random.normal(size=it.m) - it.unbalanced**2 / 2) * it.rows
    counts = np.clip(random.poisson(counts), 1, 2000)
    counts[0] = max(counts[0], 8)  # At least one client has a test row.
    client = np.repeat(np.arange(it.m), counts)
    x = _columns(it, client, random)
    d, outputs = x.shape[1], it.outputs
    slopes = it.shared * random.normal(size=(outputs, d)) / np.sqrt(d)
    own = it.slopes * random.normal(size=(it.m, outputs, d)) / np.sqrt(d)
    levels = it.rare * random.normal(size=outputs) * (it.task != "regression")
    intercepts = levels + it.intercepts * random.normal(size=(it.m, outputs))
    eta = np.einsum("rd,rod->ro", x, slopes + own[client]) + intercepts[client]
    y: NDArray[Any]
    if it.task == "regression":
        y = it.level + it.size * (eta[:, 0] + it.noise * _noise(it, random, len(client)))
    elif it.task == "multilabel":
        y = random.random(eta.shape) < 1 / (1 + np.exp(-eta))
    else:
        y = (eta + random.gumbel(size=eta.shape)).argmax(axis=1)
        y[: it.outputs] = np.arange(it.outputs)  # The number of classes is known.
    x = _odd(it, x, client, random)
    names = np.asarray([f"{k:05d}" for k in range(it.m)])[client]
    columns = [f"x{column}" for column in range(x.shape[1])]
    return named(f"drawn_{seed}", x, y, names, it.task, columns, it.about)


def _columns(it: Recipe, client: NDArray[np.int64], random: np.random.Generator) -> Array:
    shape = len(client), it.columns
    if it.kind in ("0/1", "rare 0/1"):
        return (random.random(shape) < (0.4 if it.kind == "0/1" else 0.05)).astype(np.float64)
    x = _noise(it, random, *shape)
    if it.kind == "alike":
        return np.asarray((x + 2 * _noise(it, random, shape[0], 1)) / np.sqrt(5))
    if it.kind == "levelled":
        return np.asarray((x + 2 * random.normal(size=(it.m, it.columns))[client]) / np.sqrt(5))
    return x


def _odd(it: Recipe, x: Array, client: NDArray[np.int64], random: np.random.Generator) -> Array:
    """Units from 0.001 to 100,000 and levels up to a thousand deviations; constant columns."""
    if it.units and "0/1" not in it.kind:
        levels = random.choice([0.0, 3.0, 1000.0], x.shape[1])
        x = (x + levels) * np.exp(random.uniform(np.log(1e-3), np.log(1e5), x.shape[1]))
    if it.constants:
        own = random.normal(size=it.m)[client]
        some = np.where(client % 3 > 0, random.normal(size=len(x)), 2.0)
        x = np.column_stack([x, np.full(len(x), 7.0), own, np.zeros(len(x)), some])
    return x


def _noise(it: Recipe, random: np.random.Generator, *shape: int) -> Array:
    if it.tails:
        return np.asarray(random.standard_t(it.tails, shape))
    return np.asarray(random.normal(size=shape))


def _generator(seed: int, part: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox([seed, part, 17]))
