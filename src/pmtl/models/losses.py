"""What a model is trained on and what is counted of its answers, for the three kinds of task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pmtl.errors import PmtlError

Task = Literal["classification", "multilabel", "regression"]

#: How many guesses `recall_at_5` may make.
TOP = 5


def row_losses(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of every row: cross-entropy, the sum of the labels' binary cross-entropies, or the
    squared error summed over the outputs."""
    if task == "classification":
        # torch's cross-entropy, in the form that is three times as fast for few classes.
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
    """The squared distance of every row's answer from the truth: between probabilities and the
    classes or labels that are (Brier's score), or the squared error."""
    if task == "classification":
        sure = torch.softmax(outputs, dim=-1)
        right = sure.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return sure.square().sum(-1) - 2 * right + 1
    if task == "multilabel":
        errors: Tensor = (torch.sigmoid(outputs) - targets.to(outputs.dtype)) ** 2
        return errors.sum(-1)
    return row_losses(task, outputs, targets)


def batch_loss(task: Task, outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """The mean over the rows that `mask` marks as real; padding counts for nothing."""
    return _mean(row_losses(task, outputs, targets), mask)


@dataclass(frozen=True)
class Batch:
    """One client's batch, as whoever writes an objective sees it."""

    task: Task
    outputs: Callable[[Tensor], Tensor]  #: the model's outputs for the rows, at a vector of weights
    targets: Tensor
    mask: Tensor  #: which rows are real

    def loss(self, outputs: Tensor) -> Tensor:
        """The mean loss of these outputs."""
        return batch_loss(self.task, outputs, self.targets, self.mask)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the real rows of a number for each row."""
        return _mean(values, self.mask)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    weights = mask.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp(min=1)


def metric_names(task: Task) -> tuple[str, ...]:
    """What is measured of a model: its loss and what `row_counts` counts."""
    if task == "regression":
        return ("loss", "rmse", "mae")
    return ("loss", "accuracy") if task == "classification" else ("loss", "accuracy", "recall_at_5")


#: Per row and name, a number whose average over rows is the metric (rmse: its square).
Counts = dict[str, Tensor]


def row_counts(task: Task, outputs: Tensor, targets: Tensor) -> Counts:
    """What evaluation adds up for every row.

    `accuracy`: the highest-scored class is the target; for several labels, it is one of them (the
    paper's accuracy on StackOverflow, which it calls 500-class tag prediction).
    `recall_at_5`: the share of a row's labels among its five highest scores.
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
    """From a model's outputs to what a person asked for: a class, a 0/1 per label, a number."""
    if task == "classification":
        return lambda outputs: outputs.argmax(-1)
    if task == "multilabel":
        return lambda outputs: (outputs > 0).to(torch.uint8)
    return lambda outputs: outputs


def probabilities(task: Task) -> Callable[[Tensor], Tensor]:
    """From a model's outputs to how sure it is of every class or label."""
    if task == "regression":
        raise PmtlError("This model answers with numbers, and has no probabilities to tell.")
    if task == "classification":
        return lambda outputs: outputs.softmax(-1)
    return torch.sigmoid
