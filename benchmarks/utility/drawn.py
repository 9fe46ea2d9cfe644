"""Synthetic families: clients that share slopes, or groups, or nothing, and awkward columns.

A client k has about 12 rows x ~ N(0, I) and answers η = b_k + x·(w + u_k), where b_k and u_k are
its own. A number is η plus noise, a class is drawn from the softmax of one η for each class, a
label from the sigmoid of its own η. Then the units of the columns change, or columns are added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from federation import Federation, Task, named
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """How to draw a federation.

    Args:
        m: the number of clients.
        about: one sentence for the page.
        task: regression, classification or multilabel.
        outputs: classes or labels; 1 for a number.
        columns: the number of columns.
        rows: the mean number of rows of a client.
        shared: the size of the slopes that all clients share.
        clusters: groups of clients with slopes of their own.
        intercepts: the deviation of the clients' intercepts.
        slopes: the deviation of the clients' own slopes, of all columns together.
        noise: the deviation of the noise on numbers.
        tails: degrees of freedom of Student's t for columns and noise; 0: normal.
        binary: the chance of a 1 if the columns are 0/1; 0: they are not.
        change: what happens to the columns after the targets are drawn.
    """

    m: int
    about: str
    task: Task = "regression"
    outputs: int = 1
    columns: int = 6
    rows: int = 12
    shared: float = 1.0
    clusters: int = 1
    intercepts: float = 0.5
    slopes: float = 0.2
    noise: float = 1.0
    tails: int = 0
    binary: float = 0.0
    change: Callable[[Array, NDArray[np.int64], np.random.Generator], Array] | None = None


def _years(x: Array, client: NDArray[np.int64], random: np.random.Generator) -> Array:
    """The first column is a year around 2005, the second an income of some ten thousand."""
    x[:, 0] = 2005 + 5 * x[:, 0]
    x[:, 1] = 30_000 + 8_000 * x[:, 1]
    return x


def _constants(x: Array, client: NDArray[np.int64], random: np.random.Generator) -> Array:
    """One more column is 7 for everybody, one is a number of the client, one is zero."""
    own = random.normal(size=int(client.max()) + 1)[client]
    return np.column_stack([x, np.full(len(x), 7.0), own, np.zeros(len(x))])


def _units(x: Array, client: NDArray[np.int64], random: np.random.Generator) -> Array:
    """Deviations from 0.001 to 100,000."""
    return np.asarray(x * np.logspace(-3, 5, x.shape[1]))


FAMILIES = {
    "alike_100": Family(100, "equal slopes, own intercepts", slopes=0),
    "alike_500": Family(500, "equal slopes, own intercepts", slopes=0),
    "alike_2000": Family(2000, "equal slopes, own intercepts", slopes=0),
    "near_100": Family(100, "slopes near common ones", slopes=0.5),
    "near_500": Family(500, "slopes near common ones", slopes=0.5),
    "near_2000": Family(2000, "slopes near common ones", slopes=0.5),
    "clusters": Family(500, "four groups with slopes of their own", clusters=4),
    "unrelated": Family(500, "clients that have nothing in common", shared=0, slopes=1),
    "years": Family(500, "a year and an income among the columns", change=_years),
    "constants": Family(
        500, "columns that are constant for all or for a client", change=_constants
    ),
    "heavy_tails": Family(500, "Student's t with 3 degrees of freedom", tails=3),
    "units": Family(500, "units from 0.001 to 100,000", columns=9, change=_units),
    "zero_one": Family(
        500, "rare 0/1 columns, yes or no", "classification", 2, columns=12, binary=0.2, shared=3
    ),
    "yes_no_100": Family(100, "yes or no", "classification", 2, shared=2),
    "yes_no_2000": Family(2000, "yes or no", "classification", 2, shared=2),
    "three_classes": Family(500, "three classes", "classification", 3, rows=20, shared=2),
    "five_classes": Family(1000, "five classes", "classification", 5, rows=20, shared=2),
    "labels": Family(500, "four yes-or-no labels", "multilabel", 4, rows=16, shared=2),
}


def draw(name: str, seed: int = 0) -> Federation:
    """The federation with this name; other seeds give others of the same family."""
    family = FAMILIES[name]
    random = np.random.Generator(np.random.Philox([seed, *name.encode()]))
    m, d, outputs = family.m, family.columns, family.outputs
    counts = np.maximum(3, random.poisson(family.rows, m))
    client = np.repeat(np.arange(m), counts)
    rows = len(client)

    def noise(*shape: int) -> Array:
        if family.tails:
            return random.standard_t(family.tails, shape)
        return random.normal(size=shape)

    x = noise(rows, d)
    if family.binary:
        x = (random.random((rows, d)) < family.binary).astype(np.float64)
    groups = family.shared * random.normal(size=(family.clusters, outputs, d)) / np.sqrt(d)
    own = family.slopes * random.normal(size=(m, outputs, d)) / np.sqrt(d)
    slopes = groups[np.arange(m) % family.clusters] + own
    intercepts = family.intercepts * random.normal(size=(m, outputs))
    eta = np.einsum("rd,rod->ro", x, slopes[client]) + intercepts[client]
    y: NDArray[np.float64] | NDArray[np.bool_] | NDArray[np.int64]
    if family.task == "regression":
        y = eta[:, 0] + family.noise * noise(rows)
    elif family.task == "multilabel":
        y = random.random(eta.shape) < 1 / (1 + np.exp(-eta))
    else:
        y = (eta + random.gumbel(size=eta.shape)).argmax(axis=1)
    if family.change is not None:
        x = family.change(x, client, random)
    columns = [f"x{column}" for column in range(x.shape[1])]
    width = len(str(m - 1))
    names = [f"{k:0{width}d}" for k in range(m)]
    about = f"synthetic: {family.about}"
    return named(name, x, y, np.asarray(names)[client], family.task, columns, about)
