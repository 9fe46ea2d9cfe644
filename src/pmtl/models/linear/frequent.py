"""Which weights are shared if a model has far too many of them: those that are used most.

A weight belongs to a column and an output. With bags of words and many classes most weights are
used by few clients, and their noisy mean over all clients is mostly noise. One release publishes
how much clients use each column and have each class; the weights with the largest products of both
are shared. Clients differ most in their intercepts, so intercepts get a fixed part of the upload's
norm: otherwise they would take nearly all of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pmtl.errors import PmtlError
from pmtl.models.linear.solve import ClientRows

#: The part of an upload's norm that intercepts may take.
INTERCEPTS = 0.5


def use_votes(rows: ClientRows) -> Tensor:
    """[K, columns + outputs] of norm 1: the mean square of each column but the constant one, and
    how frequent each class is; all outputs of a numeric target count the same."""
    counts = rows.counts.unsqueeze(1)
    columns = rows.x[:, :, 1:].square().sum(1) / counts
    outputs = rows.y.sum(1) / counts
    if rows.task == "regression":
        outputs = torch.zeros_like(outputs)
    parts = [part / part.norm(dim=1, keepdim=True).clamp(min=1e-12) for part in (columns, outputs)]
    return torch.cat(parts, 1) / math.sqrt(2)


def most_used(use: Tensor, outputs: int, count: int, alike: bool = False) -> Tensor:
    """The places of the `count` most used slopes, in weights [1 + columns, outputs].

    Args:
        use: [K, columns + outputs] what was published, for K clients that all read the same.
        outputs: number of model outputs.
        count: how many places.
        alike: whether all outputs count alike, and only columns are compared.
    """
    if not torch.equal(use, use[:1].expand_as(use)):
        raise PmtlError("pooling:share=frequent needs one billboard for all clients.")
    use = use[0]
    columns, classes = use[:-outputs].clamp(min=0), use[-outputs:].clamp(min=0)
    if alike:
        classes = torch.ones_like(classes)
    products = (columns[:, None] * classes).flatten()
    # Stable, so that a server and its sites choose the same columns if several are equal.
    best = torch.argsort(products, descending=True, stable=True)[:count]
    return outputs + torch.sort(best).values


def share_norm(moves: Tensor, outputs: int) -> Tensor:
    """Moves [K, outputs + slopes] whose intercepts and slopes are clipped each to its part of the
    norm 1."""
    limits = INTERCEPTS, math.sqrt(1 - INTERCEPTS**2)
    parts = moves[:, :outputs], moves[:, outputs:]
    lengths = [part.norm(dim=1, keepdim=True).clamp(min=1e-12) for part in parts]
    clipped = [
        part * (limit / length).clamp(max=1)
        for part, limit, length in zip(parts, limits, lengths, strict=True)
    ]
    return torch.cat(clipped, 1)
