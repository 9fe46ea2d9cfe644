"""Local training of many clients as one computation.

The algorithm's functions are written for one client. `torch.func.vmap` gives them a client axis:
a step of a whole cohort is one call on `[K, P]` weights and `[K, batch, …]` rows, whatever K is.
Clients with fewer rows or fewer steps are padded and masked, which leaves their mathematics as it
was: a padded row has weight zero, a padded step changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.utils._pytree import tree_map

from pmtl.algorithms import Algorithm
from pmtl.models import FlatModel, Task, batch_loss


@dataclass(frozen=True)
class Trained:
    """What a cohort's training gives."""

    kept: Tensor  #: [K, own] what each client owns from now on
    uploads: Tensor  #: [K, P] what each client sends; not yet clipped
    losses: Tensor  #: [K] each client's mean batch loss


class CohortTrainer:
    """Trains cohorts with one algorithm and one model."""

    def __init__(self, algorithm: Algorithm, model: FlatModel, task: Task) -> None:
        self._algorithm = algorithm
        self._model = model
        randomness = "different" if model.random_forward else "error"
        step = _one_step(algorithm, model, task)
        self._step = vmap(step, in_dims=(0, 0, 0, 0, 0, None), randomness=randomness)
        self._begin = vmap(algorithm.begin)
        self._upload = vmap(algorithm.upload)
        self._keep = vmap(algorithm.keep)

    def train(
        self,
        own: Tensor,
        shared: Tensor,
        rows: Callable[[int], tuple[Tensor, Tensor]],
        mask: Tensor,
        lr: float,
    ) -> Trained:
        """Take each client from `own` [K, …] around its `shared` [K, P] through its batches.

        `rows(step)` reads the cohort's inputs and targets of a step, `mask` is [K, steps, batch].
        """
        self._model.module.train()
        with torch.no_grad():
            state = self._begin(own, shared)
            losses = torch.zeros(len(own), dtype=shared.dtype, device=shared.device)
            for step in range(mask.shape[1]):
                inputs, targets = rows(step)
                real = mask[:, step]
                state, loss = self._step(state, shared, inputs, targets, real, lr)
                losses += loss * real.any(dim=1)
            steps = mask.any(dim=2).sum(dim=1).clamp(min=1)
            return Trained(
                kept=self._keep(state),
                uploads=self._upload(state, own, shared),
                losses=losses / steps,
            )


def _one_step(algorithm: Algorithm, model: FlatModel, task: Task) -> Callable[..., Any]:
    """The algorithm's step for one client, on one batch; returns the state and the batch's loss."""

    def loss(w: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        return batch_loss(task, model.apply(w, inputs), targets, mask)

    def step(
        state: Any, shared: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, lr: float
    ) -> tuple[Any, Tensor]:
        values: list[Tensor] = []

        def gradient(w: Tensor) -> Tensor:
            slope: Tensor
            slope, value = grad_and_value(loss)(w, inputs, targets, mask)
            values.append(value)
            return slope

        after = algorithm.step(state, shared, gradient, lr)
        active = mask.any()
        after = tree_map(lambda new, old: torch.where(active, new, old), after, state)
        return after, values[-1]

    return step
