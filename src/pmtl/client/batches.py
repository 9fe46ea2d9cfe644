"""Which rows a client trains on, step by step.

A client goes through its rows in shuffled epochs; a batch never straddles two of them, so the last
batch of an epoch may be short. The shuffle is a function of (seed, client, round, epoch), and so
does not depend on who else is in the cohort. All clients of a cohort get batches of one shape,
`[K, steps, batch]`, with a mask that marks what is real.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pmtl import streams
from pmtl.errors import PmtlError
from pmtl.options import check_options, option

if TYPE_CHECKING:  # The command line reads `LocalTraining`, and starts quicker without the readers.
    from pmtl.data import Rows

DEFAULT_STEPS = 10

#: Batches are not cut below so many rows.
FEW_ROWS = 32


@dataclass(frozen=True)
class LocalTraining:
    """How much a client does in a round: `steps` (the paper's E, 10 unless given), or `epochs`
    over its rows."""

    steps: int | None = option(
        None, help=f"E, steps of SGD; {DEFAULT_STEPS} unless given.", at_least=1
    )
    epochs: int | None = option(
        None, help="Passes over a client's rows; instead of steps.", at_least=1
    )
    batch: int = option(10, help="Rows a step; 0 for all rows.", at_least=0)
    lr: float = option(0.1, help="η, the step size.", above=0, finite=True)
    halve_every: int | None = option(None, help="Halve η every so many rounds.", at_least=1)

    def __post_init__(self) -> None:
        check_options(self)
        if self.steps is not None and self.epochs is not None:
            raise PmtlError(
                f"Both steps ({self.steps}) and epochs ({self.epochs}) were given, and each "
                "decides the other: give one of them."
            )
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", DEFAULT_STEPS)

    def lr_at(self, round: int) -> float:
        """η in a round."""
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
        # One batch size for the whole run: the shapes of a step never change between rounds.
        self.size = min(local.batch, longest) if local.batch else longest

    def own_sizes(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of a batch and steps of a round that follow from each client's own rows alone, both
        a little more than it needs, so that few sizes exist."""
        counts = self._rows.counts[clients]
        size = power_of_two(counts, FEW_ROWS)
        if self._local.batch:
            size = np.minimum(size, self._local.batch)
        return size, power_of_two(self._wanted(counts, -(-counts // size)))

    def _wanted(self, counts: NDArray[np.int64], per_epoch: NDArray[np.int64]) -> NDArray[np.int64]:
        """Steps of a round, for clients with so many rows and batches in an epoch."""
        epochs = self._local.epochs
        return epochs * per_epoch if epochs else np.full_like(counts, self._local.steps)

    def draw(
        self, clients: NDArray[np.int64], round: int, size: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Row indices `[K, steps, batch]` into the data, and the mask of the real ones; batches
        have room for `size` rows, or for as many as the largest client needs."""
        size = self.size if size is None else size
        counts = self._rows.offsets[clients + 1] - self._rows.offsets[clients]
        per_epoch = -(-counts // size)
        wanted = self._wanted(counts, per_epoch)
        shape = (len(clients), int(wanted.max()), size)
        real = np.zeros(shape, dtype=bool)
        # Padding is one of the client's own rows, never another's.
        first = self._rows.order[self._rows.offsets[clients]]
        index = np.broadcast_to(first[:, None, None], shape).copy()
        # Clients of like size go together, so that a single large one does not make the shuffles
        # and steps of all the others as many as its own.
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
        if len(place) <= size:  # Every epoch is one whole batch: order does not matter.
            return np.broadcast_to(place, shape)
        tickets = streams.words(
            self._seed,
            "batches",
            self._keys[clients][:, None, None],
            round,
            np.arange(epochs)[:, None],
            place,
        )
        # The same for such clients when larger ones are drawn with them: the order of a sum must
        # not depend on who else was drawn.
        whole = (counts <= size)[:, :, None]
        tickets = np.where(whole, place.astype(np.uint64), tickets)
        tickets = np.where(place < counts[:, :, None], tickets, np.uint64(2**64 - 1))
        return np.argsort(tickets, axis=-1, kind="stable")


def power_of_two(numbers: NDArray[np.int64], least: int = 1) -> NDArray[np.int64]:
    """The numbers rounded up to powers of two, and to `least`."""
    exponents = np.ceil(np.log2(np.maximum(numbers, 1))).astype(np.int64)
    return np.maximum(np.left_shift(np.int64(1), exponents), least)
