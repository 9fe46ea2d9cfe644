"""Models as distributions over targets: drawing targets, and the distance between two models.

The outputs of a classifier are the logits of a softmax; for several labels they are the logits of
independent coins, and for regression the means of Gaussians of variance one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pmtl.models.losses import Task, row_losses


def row_surprises(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """−log p(target) of every row, up to a constant: the loss, or half the squared error."""
    losses = row_losses(task, outputs, targets)
    return losses / 2 if task == "regression" else losses


def row_divergences(task: Task, outputs: Tensor, others: Tensor) -> Tensor:
    """½[KL(p‖q) + KL(q‖p)] of every row, where p and q are the distributions of the outputs.

    It is ½·Σ (p − q)(log p − log q), so the logarithm of a rounded probability is never taken. The
    divergences of several labels add up; that of two Gaussians is half their squared distance.
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
