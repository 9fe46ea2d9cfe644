"""A public head with too many weights to share: clients share a map of its answers.

A public head W⁰ on fixed features x answers f = xᵀW⁰, one number for each class (or label). What is
shared is a map of these answers,

    outputs = b + Mᵀ f/s,    which starts as the public head: M = s·I, b = b⁰

so (classes + 1) · classes numbers, for any number of features: the output of every class may depend
on the answers for all classes. As weights on the features it is w̃ = W⁰M/s. For classes, W⁰ is taken
less its mean over the classes, which changes no probability. s is a public number: 2, so that
answers of a trained network have a size near 1, or half the root mean square norm of a class's
weights, if that is more: an overconfident head has large answers. M comes from releases, and
W⁰ from a public file.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pmtl.models.linear.solve import ClientRows
from pmtl.models.losses import Task

#: The least s, and otherwise s in units of the root mean square norm of a class's weights.
LEAST, PART = 2.0, 0.5


def _slopes_and_size(task: Task, head: Tensor) -> tuple[Tensor, Tensor]:
    """W⁰ […, columns − 1, outputs], and s […, 1, 1]."""
    slopes = head[..., 1:, :]
    if task == "classification":
        slopes = slopes - slopes.mean(-1, keepdim=True)
    usual = slopes.square().sum(-2, keepdim=True).mean(-1, keepdim=True).sqrt()
    return slopes, (PART * usual).clamp(min=LEAST)


def directions(task: Task, head: Tensor) -> Tensor:
    """[…, columns − 1, outputs] W⁰/s, from a head […, columns, outputs], intercepts first."""
    slopes, size = _slopes_and_size(task, head)
    return slopes / size


def first_map(task: Task, head: Tensor) -> Tensor:
    """[…, outputs + 1, outputs] b⁰ and below it M = s·I."""
    _, size = _slopes_and_size(task, head)
    same = size * torch.eye(head.shape[-1], dtype=head.dtype, device=head.device)
    return torch.cat([head[..., :1, :], same], -2)


def as_weights(task: Task, head: Tensor, map: Tensor) -> Tensor:
    """[…, columns, outputs] the weights on the features that a map […, outputs + 1, outputs] of the
    head's answers stands for."""
    return torch.cat([map[..., :1, :], directions(task, head) @ map[..., 1:, :]], -2)


def answers_as_features(rows: ClientRows) -> ClientRows:
    """The rows with the public head's answers as their features."""
    assert rows.start is not None
    answers = rows.x[..., 1:] @ directions(rows.task, rows.start)
    return replace(rows, x=torch.cat([rows.x[..., :1], answers], -1), start=None)
