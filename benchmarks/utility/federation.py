"""One federation of the suite: plain arrays in raw units, and which rows are kept for the test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # The baselines use this file, and nothing of the package.
    from pmtl import FederatedData

Task = Literal["regression", "classification", "multilabel"]

#: With more classes or labels than these the score is the error rate, and there is one seed.
MANY = 10
#: The part of every client's rows that is kept for the test.
TEST = 0.25


class Absent(Exception):
    """The data of a federation are not on this machine; the message says what to do."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Rows of several clients.

    Args:
        name: the federation's name in the suite.
        x: features in raw units, [rows, columns], float64; a CSR matrix for bags of words.
        y: targets: [rows] numbers, [rows] classes 0, 1, …, or [rows, labels] of 0 and 1.
        client: the client of each row as a position in `clients`, [rows].
        clients: the names of the clients, sorted.
        task: regression, classification or multilabel.
        columns: the names of the columns.
        about: one sentence for the page.
        test: true for the test rows, where the data have a split of their own.
        outputs: how many classes or labels there are; 1 for a number.
    """

    name: str
    x: Any
    y: NDArray[Any]
    client: NDArray[np.int64]
    clients: tuple[str, ...]
    task: Task
    columns: tuple[str, ...]
    about: str
    outputs: int
    test: NDArray[np.bool_] | None = None

    @property
    def m(self) -> int:
        """How many clients there are."""
        return len(self.clients)

    def test_rows(self, seed: int = 0) -> NDArray[np.bool_]:
        """True for the rows of the test, [rows]: a quarter of each client's rows, rounded, at
        least one of three rows or more, and never all. Given splits do not depend on the seed."""
        if self.test is not None:
            return self.test
        return draw_rows(self.client, self.m, seed, TEST, 3)

    def to_pmtl(self, seed: int = 0, validation: float = 0.0, **options: Any) -> FederatedData:
        """The federation as the package reads it.

        Args:
            seed: the seed of the split.
            validation: the part of each client's training rows that become validation rows, at
                least one of two; with 0 there are none.
            **options: further options of `FederatedData.from_arrays`, such as `scale`.
        """
        from pmtl import FederatedData

        test = self.test_rows(seed)
        split = np.where(test, "test", "train").astype("<U10")
        if validation:
            train = np.flatnonzero(~test)
            drawn = draw_rows(self.client[train], self.m, seed + 1000, validation, 2)
            split[train[drawn]] = "validation"
        outputs = None if self.task == "regression" else self.outputs
        names = np.asarray(self.clients)[self.client]
        settings: dict[str, Any] = {"task": self.task, "outputs": outputs, "validation": 0.0}
        settings |= {"feature_names": self.columns, **options}
        return FederatedData.from_arrays(self.x, self.y, names, split, **settings)


def draw_rows(
    client: NDArray[np.int64], m: int, seed: int, part: float, least: int
) -> NDArray[np.bool_]:
    """True for a part of each client's rows, drawn at random: at least one where the client has
    `least` rows, and never all."""
    random = np.random.Generator(np.random.Philox([seed, 14]))
    order = np.lexsort((random.random(len(client)), client))
    counts = np.bincount(client, minlength=m)
    position = np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts, counts)
    sizes = np.maximum(np.rint(part * counts).astype(np.int64), counts >= least)
    sizes = np.minimum(sizes, np.maximum(counts - 1, 0))
    chosen = np.zeros(len(client), dtype=bool)
    chosen[order] = position < sizes[client[order]]
    return chosen


def named(
    name: str,
    x: Any,
    y: Any,
    client: Any,
    task: Task,
    columns: Any,
    about: str,
    test: NDArray[np.bool_] | None = None,
) -> Federation:
    """A federation whose clients are named in a column. Names that are all integers are sorted as
    integers, others as text, as the package does."""
    given = np.asarray(client).astype(str)
    if np.char.isdecimal(given).all():
        given = given.astype(np.int64)
    clients, codes = np.unique(given, return_inverse=True)
    y = np.asarray(y)
    y = y.astype(np.float64) if task == "regression" else y.astype(np.int64)
    outputs = 1 if task == "regression" else y.shape[1] if y.ndim == 2 else int(y.max()) + 1
    names = tuple(str(client) for client in clients)
    codes = codes.reshape(-1).astype(np.int64)
    columns = tuple(str(column) for column in columns)
    return Federation(name, x, y, codes, names, task, columns, about, outputs, test)
