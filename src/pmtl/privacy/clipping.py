"""Uploads cut to a norm of at most γ: by the site before it sends, and by the gate in any case."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: Clipping aims this far below γ, so that rounding can never lift a norm above it.
_MARGIN = 1e-12


def clip(uploads: Tensor, clip_norm: float, one_by_one: bool = False) -> Tensor:
    """Scale every row to an L2 norm of at most `clip_norm`, in float64; not finite becomes zero.

    On a CPU a clipped row never depends, in its last bits, on the other rows; on a graphics card
    only if rows are added up `one_by_one`, which is slower.
    """
    ask = not uploads.is_cuda  # On a card, to ask would be to wait.
    largest = uploads.abs().amax(dim=1, keepdim=True).to(torch.float64)
    finite = torch.isfinite(largest)
    if not (ask and finite.all()):
        uploads = torch.where(finite, uploads, 0.0)
    if clip_norm == float("inf"):
        return uploads.to(torch.float64)
    # Dividing by the largest entry first keeps the squares from overflowing.
    largest = torch.where(finite & (largest > 0), largest, 1.0)
    rows = uploads / largest
    norm = _row_sums(rows.square(), one_by_one).sqrt()
    limit = clip_norm * (1 - _MARGIN)
    rows.mul_(limit / norm.clamp(min=1e-300))
    # What was clipped before (by a site) is left as it is: half the margin is for rounding.
    too_long = norm * largest > clip_norm * (1 - _MARGIN / 2)
    if ask and too_long.all():
        return rows
    return torch.where(too_long, rows, uploads.to(torch.float64))


def _row_sums(rows: Tensor, one_by_one: bool) -> Tensor:
    """The sum of each row, `[K, 1]`.

    torch splits a single long row between threads, but not two of them; NumPy adds every row up by
    itself, in pairs, so that rounding does not grow with millions of entries. On a graphics card
    the order of a sum depends on the number of rows.
    """
    if rows.is_cuda and one_by_one and len(rows):
        return torch.stack([row.clone().sum() for row in rows]).unsqueeze(1)
    if rows.is_cuda:
        return rows.sum(dim=1, keepdim=True)
    return torch.from_numpy(np.add.reduce(rows.numpy(), axis=1, keepdims=True))
