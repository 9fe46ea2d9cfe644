"""A numeric target's size and level: how clients vote for them, and rows in their units."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from pmtl.models.linear.solve import ClientRows

#: Histograms for the target: powers of two from 2**FIRST_POWER, and levels (cyclic).
BINS, FIRST_POWER, LEVEL_WIDTH = 64, -24, 2.0
#: The level is cyclic: it is known up to multiples of this period, in units of the size.
PERIOD = LEVEL_WIDTH * BINS


def size_votes(rows: ClientRows) -> Tensor:
    """[K, outputs · BINS]: each client marks the power of two of its targets' deviation. A client
    whose deviation is outside of all bins marks none: a wrong size would be worse."""
    _, spread = moments(rows)
    power = torch.log2(spread).floor() - FIRST_POWER
    return _histogram(power.clamp(0, BINS - 1), (power >= 0) & (power < BINS))


def level_votes(rows: ClientRows, size: Tensor) -> Tensor:
    """[K, outputs · BINS]: each client marks its targets' mean in units of `size` [K, outputs],
    modulo the period."""
    mean, _ = moments(rows)
    size = torch.where(size > 0, size, 1.0)
    bins = torch.remainder((mean / size / LEVEL_WIDTH).floor(), BINS)
    return _histogram(bins, mean.isfinite() & (rows.mask.sum(1, keepdim=True) > 0))


def read_size(votes: Tensor, noise: float) -> Tensor:
    """[vectors, outputs] the size in the average of votes [vectors, outputs, BINS]; 0 if it is lost
    in `noise`."""
    best, clear = _read_histogram(votes, noise)
    return torch.where(clear, 2.0 ** (best + FIRST_POWER + 1), 0.0)


def read_level(votes: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """[vectors, outputs] the level in units of the size, and whether it is more than noise."""
    best, clear = _read_histogram(votes, noise)
    return (torch.where(best < BINS / 2, best, best - BINS) + 0.5) * LEVEL_WIDTH, clear


def spans(target: Tensor) -> list[float]:
    """[low, high] for each output, from sizes and levels [2, outputs]: the range of client means
    for which the published level is unambiguous. Both are infinite if the size was lost in
    noise."""
    size, level = target
    low, high = ((level + sign * PERIOD / 2) * size for sign in (-1, 1))
    lost = torch.where(size > 0, 0.0, torch.inf)
    return torch.stack([low - lost, high + lost], 1).flatten().tolist()


def _read_histogram(bins: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """The bin with the most mass around it, and whether that is more than noise."""
    around = bins + torch.roll(bins, 1, -1) / 2 + torch.roll(bins, -1, -1) / 2
    height, best = around.max(-1)
    return best.double(), height > 3.5 * noise * math.sqrt(1.5)


def scaled_rows(
    rows: ClientRows, size: Tensor, level: Tensor, cyclic: bool
) -> tuple[ClientRows, Tensor, Tensor]:
    """The rows with targets (y − level)/size; and size and level in the target's own units
    [K, outputs].

    Args:
        rows: the clients' rows.
        size: [K, outputs]; 0: each client uses its own deviation and mean.
        level: [K, outputs] in units of the size.
        cyclic: whether the level is known modulo the period only.
    """
    mean, spread = moments(rows)
    if rows.task != "regression":
        return rows, torch.ones_like(mean), torch.zeros_like(mean)
    if cyclic:
        level = level + PERIOD * torch.round((mean / size.clamp(min=1e-300) - level) / PERIOD)
    public = size > 0
    level = torch.where(public, level * size, mean)
    size = torch.where(public, size, torch.where(spread > 0, spread, 1.0))
    y = (rows.y - level.unsqueeze(1)) / size.unsqueeze(1) * rows.mask.unsqueeze(-1)
    return replace(rows, y=y), size, level


def moments(rows: ClientRows) -> tuple[Tensor, Tensor]:
    """[K, outputs] the mean and the deviation of each client's targets; 0 with fewer than 2."""
    mask, counts = rows.mask.unsqueeze(-1), rows.counts.unsqueeze(1)
    mean = (rows.y * mask).sum(1) / counts
    squares = ((rows.y - mean.unsqueeze(1)).square() * mask).sum(1)
    return mean, torch.sqrt(squares / (counts - 1).clamp(min=1))


def _histogram(bins: Tensor, valid: Tensor) -> Tensor:
    """[K, outputs · BINS]: 1/√outputs in the bin of each output, 0 where not `valid`."""
    marks = torch.nn.functional.one_hot(torch.nan_to_num(bins).long(), BINS).to(bins.dtype)
    return (marks * valid.unsqueeze(-1) / math.sqrt(bins.shape[1])).flatten(1)
