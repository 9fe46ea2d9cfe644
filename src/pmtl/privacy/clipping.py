"""Clipping uploads to norm γ: a site clips what it sends, and the gate clips again."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: Clipping aims this far below γ, so that rounding never gives a norm above γ.
_MARGIN = 1e-12


def clip(uploads: Tensor, clip_norm: float, one_by_one: bool = False) -> Tensor:
    """Scale every row to an L2 norm of at most `clip_norm`, in float64; a row with NaN or infinity
    becomes zero.

    On a CPU a clipped row never depends on the other rows, to the last bit; on a GPU only with
    `one_by_one`, which is slower.
    """
    ask = not uploads.is_cuda  # On a GPU, reading a value would wait for all queued work.
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
    # A row that a site has clipped already stays as it is: half the margin is for rounding.
    too_long = norm * largest > clip_norm * (1 - _MARGIN / 2)
    if ask and too_long.all():
        return rows
    return torch.where(too_long, rows, uploads.to(torch.float64))


def _row_sums(rows: Tensor, one_by_one: bool) -> Tensor:
    """The sum of each row, `[K, 1]`.

    In torch the order of summation depends on the number of rows. NumPy sums every row separately
    and in pairs, so rounding errors stay small over millions of entries.
    """
    if rows.is_cuda and one_by_one and len(rows):
        return torch.stack([row.clone().sum() for row in rows]).unsqueeze(1)
    if rows.is_cuda:
        return rows.sum(dim=1, keepdim=True)
    return torch.from_numpy(np.add.reduce(rows.numpy(), axis=1, keepdims=True))
