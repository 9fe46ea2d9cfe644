"""Losses, metrics and likelihoods of the three kinds of task.

The outputs of a classifier are the logits of a softmax; for several labels they are the logits of
independent labels, and for regression the means of Gaussians of variance one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pmtl.errors import PmtlError

Task = Literal["classification", "multilabel", "regression"]

#: The number of highest scores that `recall_at_5` looks at.
TOP = 5


def row_losses(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of every row: cross-entropy, the sum of the labels' binary cross-entropies, or the
    squared error summed over the outputs."""
    if task == "classification":
        # Cross-entropy, three times as fast as torch's function for few classes.
        right = outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return torch.logsumexp(outputs, dim=-1) - right
    if task == "multilabel":
        losses = F.binary_cross_entropy_with_logits(
            outputs, targets.to(outputs.dtype), reduction="none"
        )
        return losses.sum(-1)
    errors: Tensor = (outputs - targets.to(outputs.dtype).reshape(outputs.shape)) ** 2
    return errors.sum(-1)


def row_squares(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared distance of every row's prediction from its target: the Brier score of the
    probabilities, or the squared error."""
    if task == "classification":
        shares = torch.softmax(outputs, dim=-1)
        right = shares.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return shares.square().sum(-1) - 2 * right + 1
    if task == "multilabel":
        errors: Tensor = (torch.sigmoid(outputs) - targets.to(outputs.dtype)) ** 2
        return errors.sum(-1)
    return row_losses(task, outputs, targets)


@dataclass(frozen=True)
class Batch:
    """One client's batch, as `Algorithm.objective` gets it."""

    task: Task
    outputs: Callable[[Tensor], Tensor]  #: the model's outputs for the rows, at a vector of weights
    targets: Tensor
    mask: Tensor  #: which rows are real

    def loss(self, outputs: Tensor) -> Tensor:
        """The mean loss of these outputs over the real rows."""
        return self.mean(row_losses(self.task, outputs, self.targets))

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the real rows of one number per row."""
        weights = self.mask.to(values.dtype)
        return (values * weights).sum() / weights.sum().clamp(min=1)


def metric_names(task: Task) -> tuple[str, ...]:
    """The metrics of a task: the loss and the keys of `row_metrics`."""
    if task == "regression":
        return ("loss", "rmse", "mae")
    return ("loss", "accuracy") if task == "classification" else ("loss", "accuracy", "recall_at_5")


#: Per row and name, a number whose average over rows is the metric (rmse: its square).
Counts = dict[str, Tensor]


def row_metrics(task: Task, outputs: Tensor, targets: Tensor) -> Counts:
    """The values that evaluation averages over rows.

    `accuracy`: whether the class with the highest score is the target; for several labels, one of
    the targets (as in the paper on StackOverflow).
    `recall_at_5`: the share of a row's labels that are among its five highest scores.
    """
    if task == "regression":
        errors = outputs - targets.to(outputs.dtype).reshape(outputs.shape)
        return {"rmse": (errors**2).mean(-1), "mae": errors.abs().mean(-1)}
    best = outputs.argmax(-1)
    if task == "classification":
        return {"accuracy": (best == targets).to(outputs.dtype)}
    hits = targets.to(outputs.dtype)
    top = outputs.topk(min(TOP, outputs.shape[-1]), dim=-1).indices
    found = hits.gather(-1, top).sum(-1) / hits.sum(-1).clamp(min=1)
    return {"accuracy": hits.gather(-1, best.unsqueeze(-1)).squeeze(-1), "recall_at_5": found}


def predictions(task: Task) -> Callable[[Tensor], Tensor]:
    """A function from a model's outputs to predictions: a class, 0/1 per label, or a number."""
    if task == "classification":
        return lambda outputs: outputs.argmax(-1)
    if task == "multilabel":
        return lambda outputs: (outputs > 0).to(torch.uint8)
    return lambda outputs: outputs


def probabilities(task: Task) -> Callable[[Tensor], Tensor]:
    """A function from a model's outputs to the probability of every class or label."""
    if task == "regression":
        raise PmtlError("This model predicts numbers and has no probabilities.")
    if task == "classification":
        return lambda outputs: outputs.softmax(-1)
    return torch.sigmoid


def row_nll(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """−log p(target) of every row, up to a constant: the loss, or half the squared error."""
    losses = row_losses(task, outputs, targets)
    return losses / 2 if task == "regression" else losses


def row_divergences(task: Task, outputs: Tensor, others: Tensor) -> Tensor:
    """½[KL(p‖q) + KL(q‖p)] of every row, where p and q are the distributions of the outputs.

    It is ½·Σ (p − q)(log p − log q), so the logarithm of a rounded probability is never taken. The
    divergences of several labels add up; for two Gaussians it is half their squared distance.
    """
    if task == "classification":
        log_p, log_q = F.log_softmax(outputs, -1), F.log_softmax(others, -1)
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 2
    if task == "multilabel":
        # log p − log q and log(1−q) − log(1−p) add up to the difference of the logits.
        return ((outputs.sigmoid() - others.sigmoid()) * (outputs - others)).sum(-1) / 2
    return ((outputs - others) ** 2).sum(-1) / 2


def uniforms_per_row(task: Task, outputs: int) -> int:
    """How many random numbers it takes to draw a row's target."""
    return 1 if task == "classification" else outputs


def draw_targets(task: Task, outputs: Tensor, uniforms: Tensor) -> Tensor:
    """Targets `[…]` drawn from the model with `uniforms` [… , uniforms_per_row] in [0, 1)."""
    if task == "classification":
        edges = outputs.softmax(-1).cumsum(-1)
        # Rounding may make the last edge less than 1.
        return (edges <= uniforms).sum(-1).clamp(max=outputs.shape[-1] - 1)
    if task == "multilabel":
        return (uniforms < outputs.sigmoid()).to(outputs.dtype)
    tiny = torch.finfo(outputs.dtype).eps
    noise: Tensor = torch.special.ndtri(uniforms.clamp(tiny, 1 - tiny))
    return outputs + noise
