"""One client's local training: ClientUpdate of the paper's Algorithm 1, for any algorithm.

A site calls `train_client`. The engines run the same steps for many clients at once; tests compare
them with the debug engine, which is a loop over `train_client`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from pmtl.algorithms import Algorithm
from pmtl.errors import PmtlError
from pmtl.models import Batch, FlatModel, Task

#: Inputs [b, …], targets [b, …] and a mask [b] that is true for real rows and false for padding.
StepRows = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class OneTrained:
    """The result of one client's local training."""

    kept: Tensor  #: [own] the client's own vector after the round
    upload: Tensor  #: [P] the upload, not yet clipped
    loss: float  #: the mean objective over its batches; 0 without batches


def train_client(
    algorithm: Algorithm,
    model: FlatModel,
    task: Task,
    own: Tensor,
    shared: Tensor,
    batches: Iterable[StepRows],
    lr: float,
    on_stage: Callable[[str], None] | None = None,
) -> OneTrained:
    """Train one client for one round.

    Padding is removed first, so the result depends only on the real rows, to the last bit.

    Args:
        algorithm: its `begin`, `step`, `upload` and `keep` are called.
        model: the model as a function of a flat vector.
        task: decides the loss.
        own: [own] the client's own vector when the round begins.
        shared: [P] the vector that it reads from the billboard.
        batches: the rows of each local step; a step without real rows is skipped.
        lr: the step size η.
        on_stage: called with "begin", "step 1", …, "upload", "keep" before each stage.
    """
    enter = on_stage or (lambda stage: None)
    model.module.train()
    # Copies, because the last bits may depend on a vector's address in memory.
    own, shared = own.clone(), shared.clone()
    losses: list[float] = []
    with torch.no_grad():
        enter("begin")
        state = algorithm.begin(own, shared)
        for inputs, targets, mask in batches:
            if mask.any():
                if not mask.all():
                    inputs, targets, mask = inputs[mask], targets[mask], mask[mask]
                enter(f"step {len(losses) + 1}")
                state, loss = client_step(
                    algorithm=algorithm,
                    model=model,
                    task=task,
                    state=state,
                    shared=shared,
                    inputs=inputs,
                    targets=targets,
                    mask=mask,
                    lr=lr,
                    differentiate=_grad_and_value,
                )
                losses.append(float(loss))
        enter("upload")
        upload = algorithm.upload(state, own, shared)
        enter("keep")
        kept = algorithm.keep(state)
    return OneTrained(kept, upload, sum(losses) / max(1, len(losses)))


def client_step(
    algorithm: Algorithm,
    model: FlatModel,
    task: Task,
    state: Any,
    shared: Tensor,
    inputs: Tensor,
    targets: Tensor,
    mask: Tensor,
    lr: Any,
    differentiate: Callable[..., Any] = grad_and_value,
) -> tuple[Any, Tensor]:
    """One local step; returns the new state and the batch's objective.

    If a step takes several gradients, the objective is the objective of the last gradient.
    """
    batch = Batch(task, lambda weights: model.apply(weights, inputs), targets, mask)
    values: list[Tensor] = []

    def gradient(w: Tensor) -> Tensor:
        direction: Tensor
        direction, value = differentiate(algorithm.objective)(w, shared, batch)
        values.append(value)
        return direction

    after = algorithm.step(state, shared, gradient, lr)
    if not values:
        raise PmtlError(f"A step of the algorithm {algorithm.name!r} asked for no gradient.")
    return after, values[-1]


def _grad_and_value(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """`torch.func.grad_and_value` by plain autograd: a sixth faster without vmap."""

    def both(w: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            value = function(w, *others)
        (direction,) = torch.autograd.grad(value, w)
        return direction, value.detach()

    return both
