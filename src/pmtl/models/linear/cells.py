"""The candidates for a client's penalties, from shared weights as they are to training alone."""

from __future__ import annotations

import torch
from torch import Tensor

from pmtl.models.linear.solve import ClientRows

#: Penalties (intercept, slopes) around the shared weights, and of training alone around zero.
AROUND = [(a, b) for a in (0.1, 1.0, 10.0) for b in (1.0, 10.0, 100.0)]
AROUND += [(10.0, 1000.0), (1000.0, 1000.0)]
ALONE = [(0.1, 1.0), (0.1, 10.0), (0.1, 100.0)]
CELLS = len(AROUND) + len(ALONE)
#: How many rows the vote counts for.
VOTE_ROWS = 100.0
#: Insurance: how much more the vote is shrunk than James and Stein would, and by how many nats the
#: shared weights have to beat training alone in a client that the vote tells nothing.
CAUTION, HANDICAP = 2.0, 2.0


def choose(
    losses: Tensor,
    counts: Tensor,
    vote: Tensor,
    noise: float,
    around: int = len(AROUND),
    smooth: Tensor | None = None,
    prior: Tensor | float = 0.0,
    scale: Tensor | float = 1.0,
) -> Tensor:
    """[K, 2] the cell that each client takes, and the one that it takes without the others.

    Args:
        losses: [K, cells] the client's own held-out losses in nats.
        counts: [K, 1] its number of rows.
        vote: [K, cells] the published losses.
        noise: the standard deviation of their noise.
        around: how many cells, the first ones, depend on shared weights.
        smooth: [cells, …] an orthonormal basis of differences; `smooth_basis` unless given.
        prior: [cells] nats against each cell before any row is seen.
        scale: [K, 1] what a client multiplies the published losses by.
    """
    smooth = smooth_basis(vote) if smooth is None else smooth
    vote = vote @ smooth @ smooth.T
    length = vote.square().sum(1, keepdim=True).clamp(min=1e-300)
    trust = (1 - CAUTION * smooth.shape[1] * noise**2 / length).clamp(min=0)
    own = counts * losses + prior
    score = own + VOTE_ROWS * trust * scale * vote
    score[:, :around] += HANDICAP * (1 - trust)
    alone = own[:, around:].argmin(1) + around
    return torch.stack([score.argmin(1), alone], 1)


def smooth_basis(like: Tensor) -> Tensor:
    """[cells, 6] an orthonormal basis of smooth differences between cells: alone or not, and
    polynomials of the logarithms of the penalties. The rest of a noisy vote is mostly noise."""
    table = torch.tensor(AROUND + ALONE, dtype=like.dtype, device=like.device).log10()
    alone = torch.zeros_like(table[:, :1])
    alone[len(AROUND) :] = 1
    a, b = table[:, :1] * (1 - alone), table[:, 1:] * (1 - alone)
    shapes = torch.cat([alone, a, b, a * a, b * b, table[:, 1:] * alone], 1)
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


def pick(table: Tensor, cells: Tensor) -> Tensor:
    """From [K or 1, cells, …], the `cells` [K, 2] of each client."""
    every = torch.arange(len(cells), device=cells.device).unsqueeze(1)
    return table.expand(len(cells), *table.shape[1:])[every, cells]
