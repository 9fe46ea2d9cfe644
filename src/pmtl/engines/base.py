"""The interface of engines: batches in, trained clients out.

An algorithm is written for one client (`client/step.py`). An *engine* runs it for many clients:
over a client axis (`axis.py`), one per thread, or one after the other (`loops.py`). Engines differ
in speed and in the last bits of sums only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.client.step import OneTrained, StepRows
from pmtl.models import FlatModel, Task

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class CohortBatches(ABC):
    """The batches of K clients in one round, padded to one shape."""

    mask: Mask  #: [K, steps, batch] real rows; a client's steps with any come first

    @abstractmethod
    def select(self, clients: Ints, rows: int) -> CohortBatches:
        """The first `rows` rows of the batches of the clients at these positions."""

    @abstractmethod
    def read(self, step: int, n: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets [n, batch, …] of a step, of the first n clients."""

    def of_client(self, k: int) -> Iterator[StepRows]:
        """The batches of client k alone, as `train_client` takes them."""
        mask = self.mask[k]
        one = self.select(np.array([k]), mask.shape[1])
        for step in np.flatnonzero(mask.any(axis=1)).tolist():
            inputs, targets = one.read(step, 1)
            yield inputs[0], targets[0], torch.from_numpy(mask[step]).to(inputs.device)

    def name(self, k: int) -> str:
        """The name of client k in error messages."""
        return f"number {k}"


@dataclass(frozen=True)
class TensorBatches(CohortBatches):
    """Batches in memory, `[K, steps, batch, …]`."""

    inputs: Tensor
    targets: Tensor
    mask: Mask

    def select(self, clients: Ints, rows: int) -> TensorBatches:
        part = (clients, slice(None), slice(rows))
        return TensorBatches(self.inputs[part], self.targets[part], self.mask[part])

    def read(self, step: int, n: int) -> tuple[Tensor, Tensor]:
        return self.inputs[:n, step], self.targets[:n, step]


class Trained(NamedTuple):
    """The result of a cohort's training."""

    kept: Tensor  #: [K, own] each client's own vector after the round
    uploads: Tensor  #: [K, P] each client's upload; not yet clipped
    losses: Tensor  #: [K] each client's mean batch loss

    def take(self, positions: Tensor) -> Trained:
        """The results of the clients at these positions."""
        return Trained(*(part[positions] for part in self))

    @staticmethod
    def joined(parts: Sequence[Trained]) -> Trained:
        """The clients of all parts, in order."""
        return Trained(*map(torch.cat, zip(*parts, strict=True)))

    @staticmethod
    def stacked(clients: Sequence[OneTrained]) -> Trained:
        """The results of clients that were trained one by one."""
        kept = torch.stack([client.kept for client in clients])
        uploads = torch.stack([client.upload for client in clients])
        losses = [client.loss for client in clients]
        return Trained(kept, uploads, torch.tensor(losses, dtype=uploads.dtype).to(uploads.device))


class CohortTrainer(ABC):
    """Trains cohorts with one algorithm and one model."""

    def __init__(self, algorithm: Algorithm, model: FlatModel, task: Task) -> None:
        self._algorithm = algorithm
        self._model = model
        self._task = task

    @abstractmethod
    def train(self, own: Tensor, shared: Tensor, batches: CohortBatches, lr: float) -> Trained:
        """Train every client of a cohort for one round, from the own vectors `own` [K, own] and the
        vectors `shared` [K, P] of the billboard, with the step size `lr`."""


def by_size(counts: Ints, width: Callable[[int], int]) -> Iterator[Ints]:
    """Positions of clients with about as many rows, a few at a time, so that padding at most
    doubles a client's rows. `width` says how many clients with so many rows fit in memory."""
    order = np.argsort(-counts, kind="stable")
    while len(order):
        most = int(counts[order[0]])
        alike = int((2 * counts[order] >= most).sum())
        some, order = np.split(order, [min(alike, max(1, width(most)))])
        yield some
