"""Which rows a client trains on in each local step.

A client goes through its rows in shuffled epochs. A batch never contains rows of two epochs, so the
last batch of an epoch may be short. The shuffle is a function of (seed, client, round, epoch) and
does not depend on the other clients of the cohort. All clients of a cohort get batches of one
shape, `[K, steps, batch]`, with a mask of the real rows; the others are padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pmtl import streams
from pmtl.errors import PmtlError
from pmtl.options import check_options, option

if TYPE_CHECKING:  # The command line imports `LocalTraining` and starts faster without the readers.
    from pmtl.data import Rows

DEFAULT_STEPS = 10
#: The largest number of steps or epochs, and the largest step size that fits in 32 bits.
MOST_STEPS, MOST_LR = 10**9, 1e38

#: `own_sizes` gives no batch fewer rows than this, unless `LocalTraining.batch` is smaller.
MIN_BATCH_ROWS = 32


@dataclass(frozen=True)
class LocalTraining:
    """How much a client trains in a round.

    Fine-tuning, which has these settings too, is a single round, the first: it trains with
    `lr_at(0)` and does not offer settings that are `rounds_only`.
    """

    steps: int | None = option(
        None, help=f"E, steps of SGD; {DEFAULT_STEPS} unless given.", at_least=1, at_most=MOST_STEPS
    )
    epochs: int | None = option(
        None, help="Passes over a client's rows; instead of steps.", at_least=1, at_most=MOST_STEPS
    )
    batch: int = option(10, help="Rows a step; 0 for all rows.", at_least=0)
    lr: float = option(0.1, help="η, the step size.", above=0, at_most=MOST_LR, finite=True)
    halve_every: int | None = option(
        None,
        help="Halve η each time this many rounds have passed.",
        at_least=1,
        rounds_only=True,
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.steps is not None and self.epochs is not None:
            raise PmtlError(
                f"Both steps ({self.steps}) and epochs ({self.epochs}) were given, but each "
                "determines the other: give one of them."
            )
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", DEFAULT_STEPS)

    def lr_at(self, round: int) -> float:
        """The step size η in a round.

        Args:
            round: the number of the round, from 0.
        """
        return self.lr * 0.5 ** (round // self.halve_every) if self.halve_every else self.lr


class Batches:
    """Draws the batches of a cohort from the stream "batches"."""

    def __init__(
        self, rows: Rows, local: LocalTraining, seed: int, client_keys: NDArray[np.uint64]
    ) -> None:
        self._rows = rows
        self._local = local
        self._seed = seed
        self._keys = client_keys
        longest = int(rows.counts.max())
        # One batch size for the whole run, so the shapes of a step never change between rounds.
        self.size = min(local.batch, longest) if local.batch else longest

    def own_sizes(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The batch size and number of steps for each client, computed from its own rows alone.
        Both are rounded up to powers of two, so that there are few different sizes."""
        counts = self._rows.counts[clients]
        size = power_of_two(counts, MIN_BATCH_ROWS)
        if self._local.batch:
            size = np.minimum(size, self._local.batch)
        return size, power_of_two(self._wanted(counts, -(-counts // size)))

    def _wanted(self, counts: NDArray[np.int64], per_epoch: NDArray[np.int64]) -> NDArray[np.int64]:
        """Steps in a round, for clients with `counts` rows and `per_epoch` batches in an epoch."""
        epochs = self._local.epochs
        return epochs * per_epoch if epochs else np.full_like(counts, self._local.steps)

    def draw(
        self, clients: NDArray[np.int64], round: int, size: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Row indices `[K, steps, batch]` into the data, and the mask of the real ones. `size` is
        the batch dimension; by default the one that the largest client needs."""
        size = self.size if size is None else size
        counts = self._rows.offsets[clients + 1] - self._rows.offsets[clients]
        per_epoch = -(-counts // size)
        wanted = self._wanted(counts, per_epoch)
        shape = (len(clients), int(wanted.max()), size)
        real = np.zeros(shape, dtype=bool)
        # Padding repeats the client's own first row, never a row of another client.
        first = self._rows.order[self._rows.offsets[clients]]
        index = np.broadcast_to(first[:, None, None], shape).copy()
        # Clients of similar size are drawn together: otherwise one large client would make the
        # arrays of all others as long as its own.
        group = np.ceil(np.log2(per_epoch)).astype(np.int64)
        for like in np.unique(group):
            mine = np.flatnonzero(group == like)
            steps = int(wanted[mine].max())
            index[mine, :steps], real[mine, :steps] = self._draw(
                clients[mine], counts[mine], per_epoch[mine], wanted[mine], (steps, size), round
            )
        return index, real

    def _draw(
        self,
        clients: NDArray[np.int64],
        counts: NDArray[np.int64],
        per_epoch: NDArray[np.int64],
        wanted: NDArray[np.int64],
        shape: tuple[int, int],
        round: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        steps, size = shape
        step = np.arange(steps)
        active = step < wanted[:, None]
        epoch = np.where(active, step // per_epoch[:, None], 0)
        within = (step % per_epoch[:, None]) * size
        position = within[..., None] + np.arange(size)
        real = (position < counts[:, None, None]) & active[..., None]
        shuffled = self._shuffles(clients, counts[:, None], int(epoch.max()) + 1, size, round)
        client = np.arange(len(clients))[:, None, None]
        place = shuffled[client, epoch[..., None], np.where(real, position, 0)]
        start = self._rows.offsets[clients][:, None, None]
        return self._rows.order[start + place], real

    def _shuffles(
        self,
        clients: NDArray[np.int64],
        counts: NDArray[np.int64],
        epochs: int,
        size: int,
        round: int,
    ) -> NDArray[np.int64]:
        """A permutation of every client's rows for every epoch, `[K, epochs, longest]`."""
        place = np.arange(int(counts.max()))
        shape = (len(clients), epochs, len(place))
        if len(place) <= size:  # Every epoch is one batch: order does not matter.
            return np.broadcast_to(place, shape)
        tickets = streams.words(
            self._seed,
            "batches",
            self._keys[clients][:, None, None],
            round,
            np.arange(epochs)[:, None],
            place,
        )
        # Clients with one batch keep their order here, too: the order of their sums must not
        # depend on which larger clients were drawn with them.
        whole = (counts <= size)[:, :, None]
        tickets = np.where(whole, place.astype(np.uint64), tickets)
        tickets = np.where(place < counts[:, :, None], tickets, np.uint64(2**64 - 1))
        return np.argsort(tickets, axis=-1, kind="stable")


def power_of_two(numbers: NDArray[np.int64], least: int = 1) -> NDArray[np.int64]:
    """The numbers rounded up to powers of two, at least `least`."""
    exponents = np.ceil(np.log2(np.maximum(numbers, 1))).astype(np.int64)
    return np.maximum(np.left_shift(np.int64(1), exponents), least)
