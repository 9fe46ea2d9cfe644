"""One client's local training: ClientUpdate of the paper's Algorithm 1, for any algorithm.

A real site calls `train_client`. The engines run the same steps for many clients at once, and the
debug engine, which only loops over `train_client`, is the reference that they are tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from pmtl.algorithms import Algorithm
from pmtl.models import Batch, FlatModel, Task

#: Inputs [b, …], targets [b, …] and a mask [b] that marks the real rows; the others are padding.
Rows = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class OneTrained:
    """The result of one client's local training."""

    kept: Tensor  #: [own] what the client owns from now on
    upload: Tensor  #: [P] what it sends; not yet clipped
    loss: float  #: the mean objective of its batches; 0 without batches


def train_client(
    algorithm: Algorithm,
    model: FlatModel,
    task: Task,
    own: Tensor,
    shared: Tensor,
    batches: Iterable[Rows],
    lr: float,
    on_stage: Callable[[str], None] | None = None,
) -> OneTrained:
    """Train one client for one round.

    Padding is dropped, so the result depends on the real rows alone, to the last bit.

    Args:
        algorithm: Its `begin`, `step`, `upload` and `keep` are called.
        model: The model as a function of a flat vector.
        task: What the model is trained for; decides the loss.
        own: [own] what the client owned when the round began.
        shared: [P] the part of the billboard that it reads.
        batches: The rows of each local step, in order; steps without real rows are left out.
        lr: The step size η.
        on_stage: Called with "begin", "step 1", "step 2", …, "upload", "keep" before each of them.

    Returns:
        What the client keeps, what it uploads, and its mean loss.
    """
    enter = on_stage or (lambda stage: None)
    model.module.train()
    # Copies: the last bits may depend on where a vector lies in memory.
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
                given = (state, shared, inputs, targets, mask, lr)
                state, loss = client_step(algorithm, model, task, *given, _grad_and_value)
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

    Where a step takes several gradients, the objective is that of the last one.
    """
    batch = Batch(task, lambda weights: model.apply(weights, inputs), targets, mask)
    values: list[Tensor] = []

    def gradient(w: Tensor) -> Tensor:
        direction: Tensor
        direction, value = differentiate(algorithm.objective)(w, shared, batch)
        values.append(value)
        return direction

    return algorithm.step(state, shared, gradient, lr), values[-1]


def _grad_and_value(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """As `torch.func.grad_and_value`, by plain autograd: a sixth faster where nothing is mapped."""

    def both(w: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            value = function(w, *others)
        (direction,) = torch.autograd.grad(value, w)
        return direction, value.detach()

    return both
