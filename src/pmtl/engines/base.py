"""Local training of a cohort: what every engine is given, does and gives back.

The algorithm's functions are written for one client. An *engine* runs them for many: over a client
axis (`axis.py`) or one client per thread (`threads.py`). Engines differ in speed and in the last
bits of a sum, never in what is computed: a padded row has weight zero, a padded step changes
nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from pmtl.algorithms import Algorithm
from pmtl.models import Batch, FlatModel, Task

#: The inputs and targets `[n, batch, …]` of a step, for the first n of some clients.
Reader = Callable[[int, int], tuple[Tensor, Tensor]]
#: From places in the cohort to a reader of these clients' batches, of which only the first so many
#: rows are wanted.
Rows = Callable[[NDArray[np.int64], int], Reader]

#: The derivative of a loss at its first argument, and its value.
Slope = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Trained:
    """What a cohort's training gives."""

    kept: Tensor  #: [K, own] what each client owns from now on
    uploads: Tensor  #: [K, P] what each client sends; not yet clipped
    losses: Tensor  #: [K] each client's mean batch loss

    def take(self, places: Tensor) -> Trained:
        """The same of the clients at these places."""
        return Trained(self.kept[places], self.uploads[places], self.losses[places])

    @staticmethod
    def joined(parts: Sequence[Trained]) -> Trained:
        """The clients of all parts, one part after the other."""
        return Trained(
            kept=torch.cat([part.kept for part in parts]),
            uploads=torch.cat([part.uploads for part in parts]),
            losses=torch.cat([part.losses for part in parts]),
        )


class CohortTrainer(ABC):
    """Trains cohorts with one algorithm and one model."""

    name: ClassVar[str]

    def __init__(self, algorithm: Algorithm, model: FlatModel, task: Task) -> None:
        self._algorithm = algorithm
        self._model = model
        self._task = task

    @property
    def compiled(self) -> bool:
        """Whether steps are compiled before they are run."""
        return False

    @abstractmethod
    def train(self, own: Tensor, shared: Tensor, rows: Rows, mask: Tensor, lr: float) -> Trained:
        """Take each client from `own` [K, …] around its `shared` [K, P] through its batches.

        `rows` reads their batches, and `mask` [K, steps, batch], which lies on the CPU, says which
        rows of them are real.
        """


def client_step(
    algorithm: Algorithm, model: FlatModel, task: Task, slope: Callable[..., Slope], guarded: bool
) -> Callable[..., Any]:
    """The algorithm's step for one client, on one batch; returns the state and what the
    batch's objective was.

    A `guarded` step leaves a client without a single real row where it is; it costs one more pass
    over the weights.
    """

    def objective(
        w: Tensor, shared: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor
    ) -> Tensor:
        batch = Batch(task, lambda weights: model.apply(weights, inputs), targets, mask)
        return algorithm.objective(w, shared, batch)

    def step(
        state: Any, shared: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, lr: Any
    ) -> tuple[Any, Tensor]:
        values: list[Tensor] = []

        def gradient(w: Tensor) -> Tensor:
            direction, value = slope(objective)(w, shared, inputs, targets, mask)
            values.append(value)
            return direction

        after = algorithm.step(state, shared, gradient, lr)
        if guarded:
            active = mask.any()
            after = tree_map(lambda new, old: torch.where(active, new, old), after, state)
        return after, values[-1]

    return step
