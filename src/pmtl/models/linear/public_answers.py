"""A public head with too many weights to share: clients share a map of its answers.

A public head W⁰ on fixed features x answers f = xᵀW⁰, one number for each class (or label). What is
shared is what to make of these answers,

    outputs = b + Mᵀ f/2,    which begins as the public head itself: M = 2·I, b = b⁰

so (classes + 1) · classes numbers, however many features there are: every class may be weighed by
the answer for every other one. As weights on the features it is w̃ = W⁰M/2. For classes, W⁰ is taken
less its mean over the classes, which changes no probability; divided by 2, answers of a trained
network have a size near 1. M comes from a public file and from releases, and W⁰ from the file.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pmtl.models.linear.solve import ClientRows
from pmtl.models.losses import Task

#: What answers are divided by.
SIZE = 2.0


def directions(task: Task, head: Tensor) -> Tensor:
    """[…, columns − 1, outputs] W⁰/2, from a head […, columns, outputs], intercepts first."""
    slopes = head[..., 1:, :]
    if task == "classification":
        slopes = slopes - slopes.mean(-1, keepdim=True)
    return slopes / SIZE


def first_map(head: Tensor) -> Tensor:
    """[…, outputs + 1, outputs] b⁰ and below it M = 2·I."""
    outputs = head.shape[-1]
    same = SIZE * torch.eye(outputs, dtype=head.dtype, device=head.device)
    return torch.cat([head[..., :1, :], same.expand(*head.shape[:-2], -1, -1)], -2)


def as_weights(task: Task, head: Tensor, map: Tensor) -> Tensor:
    """[…, columns, outputs] the weights on the features that a map […, outputs + 1, outputs] of the
    head's answers stands for."""
    return torch.cat([map[..., :1, :], directions(task, head) @ map[..., 1:, :]], -2)


def answers_as_features(rows: ClientRows) -> ClientRows:
    """The rows with the public head's answers as their features."""
    assert rows.start is not None
    answers = rows.x[..., 1:] @ directions(rows.task, rows.start)
    return replace(rows, x=torch.cat([rows.x[..., :1], answers], -1), start=None)
