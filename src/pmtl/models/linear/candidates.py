"""The candidates for a client's penalties, from shared weights as they are to training alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pmtl.models.linear.solve import ClientRows, held_out_losses

#: Penalties (intercept, slopes) around the shared weights, and of training alone around zero, for
#: numbers and for classes.
AROUND = [(a, b) for a in (0.1, 1.0, 10.0) for b in (1.0, 10.0, 100.0)]
AROUND += [(10.0, 1000.0), (1000.0, 1000.0)]
ALONE_NUMBERS = [(0.1, b) for b in (1.0, 3.0, 10.0, 30.0, 100.0)]
ALONE_CLASSES = [(a, b) for a in (0.1, 1.0) for b in (1.0, 5.0, 30.0)]
#: With this many classes or more, frequencies differ widely: also try three weaker penalties.
MANY_CLASSES = 20
ALONE_MANY = [(0.01, b) for b in (1.0, 5.0, 30.0)] + ALONE_CLASSES
#: What is voted on: each cell around the shared weights, and training alone.
CELLS = len(AROUND) + 1
#: How many rows the vote counts for; fewer if its noise would count more than one nat.
VOTE_ROWS = 200.0
#: Protection against noise: a factor on the shrinkage of James and Stein, and by how many nats the
#: shared weights must be better than training alone if the vote is only noise.
CAUTION, HANDICAP = 2.0, 1.0
#: The factor of penalties on words: a word that few rows have needs a larger weight than a column
#: that all rows have.
WORDS = 0.03
#: A cell with a smaller part than this is left out.
SMALL = 1e-3


def alone_penalties(task: str, outputs: int) -> list[tuple[float, float]]:
    """The penalties of training alone."""
    if task == "regression":
        return ALONE_NUMBERS
    return ALONE_MANY if task == "classification" and outputs >= MANY_CLASSES else ALONE_CLASSES


def held_out(rows: ClientRows, centre: Tensor, penalty: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rough solutions around the shared weights [K, len(AROUND), …], the mean held-out losses of
    all candidates, and how many rows were held out [K, 1]. Losses of training alone are computed
    separately, so that they do not depend on published values."""
    split = len(AROUND)
    found, around, held = held_out_losses(rows, centre[:, :split], penalty[:, :split])
    _, alone, _ = held_out_losses(rows, centre[:, split:], penalty[:, split:])
    return found, torch.cat([around, alone], 1), held.unsqueeze(1)


def own_losses(losses: Tensor, held: Tensor, rows: ClientRows) -> tuple[Tensor, Tensor]:
    """A client's losses in nats [K, CELLS], training alone as the last, and how much each penalty
    of training alone counts [K, penalties].

    Training alone is a mixture of its penalties, and its loss is the loss of the mixture. The loss
    of numbers, whose variance is unknown, is half the logarithm of their squared error, to which a
    hundredth of the median is added.

    Args:
        losses: [K, len(AROUND) + penalties] mean held-out losses.
        held: [K, 1] how many rows were held out.
        rows: the clients' rows.
    """
    if rows.task == "regression":
        median = losses[:, len(AROUND) :].median(1, keepdim=True).values
        losses = rows.y.shape[2] * torch.log(losses + 0.01 * median + 1e-12) / 2
    held = held.clamp(min=1)
    alone = -held * losses[:, len(AROUND) :]
    mixed = alone.logsumexp(1, keepdim=True) - math.log(alone.shape[1])
    return torch.cat([losses[:, : len(AROUND)], -mixed / held], 1), torch.softmax(alone, 1)


def choose(losses: Tensor, held: Tensor, vote: Tensor, noise: float) -> Tensor:
    """[K, CELLS] how much of each cell, training alone as the last, a client takes.

    Args:
        losses: [K, CELLS] the client's own losses in nats.
        held: [K, 1] how many rows were held out.
        vote: [K, CELLS] the published losses.
        noise: the standard deviation of their noise.
    """
    trusted, trust = shrink_vote(vote, noise)
    score = held * losses + vote_rows(noise) * trusted
    score[:, :-1] += math.log(len(AROUND)) + HANDICAP * (1 - trust)
    return torch.softmax(-score, 1)


def vote_rows(noise: float) -> float:
    """A, how many rows a vote with this noise counts for."""
    return VOTE_ROWS / max(1.0, VOTE_ROWS * noise)


def without_small(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Set parts [K, CELLS] below SMALL to 0, and rescale the others to a sum of 1. Also returns the
    indices [K, g] of the remaining cells around the shared weights, the largest first, padded to
    the longest client with cells whose part is 0."""
    parts = torch.where(parts >= SMALL, parts, 0.0)
    parts = parts / parts.sum(1, keepdim=True)
    around = parts[:, :-1]
    left = max(1, int((around > 0).sum(1).max()))
    return parts, torch.argsort(around, dim=1, descending=True, stable=True)[:, :left]


def take(table: Tensor, order: Tensor) -> Tensor:
    """Some cells [K, g] of a table [K or 1, cells, …]."""
    wide = table.expand(len(order), *table.shape[1:])
    index = order.view(*order.shape, *[1] * (table.dim() - 2))
    return torch.gather(wide, 1, index.expand(-1, -1, *table.shape[2:]))


def shrink_vote(vote: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Shrink the vote [K, CELLS] by its known noise: its smooth part and the rest separately. Also
    returns the factor [K, 1] of the smooth part."""
    smooth = smooth_basis(vote)
    part = vote @ smooth @ smooth.T
    rest = vote - vote.mean(1, keepdim=True) - part
    trust = james_stein(part, smooth.shape[1], noise)
    return trust * part + james_stein(rest, CELLS - 1 - smooth.shape[1], noise) * rest, trust


def james_stein(part: Tensor, free: int, noise: float) -> Tensor:
    """[K, 1] the shrinkage factor for vectors with `free` free numbers."""
    length = part.square().sum(1, keepdim=True).clamp(min=1e-300)
    return (1 - CAUTION * free * noise**2 / length).clamp(min=0)


def smooth_basis(like: Tensor) -> Tensor:
    """[CELLS, 5] an orthonormal basis of smooth differences between cells: alone or not, and
    polynomials of the logarithms of the penalties."""
    table = torch.tensor([*AROUND, (1.0, 1.0)], dtype=like.dtype, device=like.device).log10()
    alone = torch.zeros_like(table[:, :1])
    alone[-1] = 1
    shapes = torch.cat([alone, table, table * table], 1)
    basis: Tensor = torch.linalg.qr(shapes - shapes.mean(0)).Q
    return basis


def variances(rows: ClientRows) -> Tensor:
    """[K, d] the variance of each client's features, larger with few rows (as in data/scaling.py);
    1 for the intercept and for features that are constant in the client's rows."""
    mask, counts = rows.mask.unsqueeze(-1), rows.counts.unsqueeze(1)
    mean = (rows.x * mask).sum(1) / counts
    squares = ((rows.x - mean.unsqueeze(1)).square() * mask).sum(1)
    variances = squares / counts * (1 + 3 / counts).square()
    return torch.where(variances > 1e-6, variances, 1.0)


def units_of_words(rows: ClientRows) -> Tensor:
    """[K, d] for sparse rows, as of words: a small part of the mean square of the features that are
    not 0. Columns that are always 0 do not count. 1 for the intercept, for dense rows, and for a
    client with at most half of its entries 0."""
    if not rows.words:
        return torch.ones_like(rows.x[:, 0])
    features = rows.x[:, :, 1:]
    nonzero = features != 0
    entries, filled = nonzero.any(1).sum(1) * rows.mask.sum(1), nonzero.sum((1, 2))
    squares = features.square().sum((1, 2)) / filled.clamp(min=1)
    sparse = (filled > 0) & (filled < entries / 2)
    units = torch.ones_like(rows.x[:, 0])
    units[:, 1:] = torch.where(sparse, (WORDS * squares).clamp(min=1e-12), 1.0).unsqueeze(1)
    return units


def mixture(candidates: Tensor, parts: Tensor) -> Tensor:
    """[K, d, outputs] the mean of candidates [K, cells, d, outputs] with weights [K, cells]."""
    return (parts[:, :, None, None] * candidates).sum(1)
