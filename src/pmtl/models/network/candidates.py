"""The candidates for a client's network, from the shared weights as they are to training alone."""

from __future__ import annotations

import torch
from torch import Tensor

from pmtl.models.linear.candidates import james_stein
from pmtl.models.losses import Task

#: Penalties of the paths around the shared weights and around the common start. A path begins with
#: its centre as it is.
PENALTIES = (100.0, 30.0, 10.0, 3.0, 1.0)
#: Candidates of one centre, and of both.
EACH = 1 + len(PENALTIES)
CELLS = 2 * EACH
#: How many rows the vote counts for.
VOTE_ROWS = 100.0
#: Prior penalties in nats on the candidates of a path: with few rows, cross-validation often
#: prefers the weakest or the strongest penalty by chance.
PRIOR = (4.0, 2.0, 1.0, 0.0, 0.0, 2.0)
#: By how many nats a candidate's held-out loss can exceed the best candidate's loss.
WORST = 5.0
#: By how many nats the shared weights must be better than training alone if the vote is only noise.
HANDICAP = 2.0


def choose(losses: Tensor, counts: Tensor, vote: Tensor, noise: float, scale: Tensor) -> Tensor:
    """[K, 2] the cell that each client takes, and the one that it takes without other clients.

    Args:
        losses: [K, cells] the client's own held-out losses in nats.
        counts: [K, 1] its number of rows that were held out.
        vote: [K, cells] the published losses.
        noise: the standard deviation of their noise.
        scale: [K, 1] what a client multiplies the published losses by.
    """
    smooth = smooth_basis(vote)
    vote = vote @ smooth @ smooth.T
    trust = james_stein(vote, smooth.shape[1], noise)
    own = counts * losses + vote.new_tensor(2 * PRIOR)  # of both paths
    score = own + VOTE_ROWS * trust * scale * vote
    score[:, :EACH] += HANDICAP * (1 - trust)
    return torch.stack([score.argmin(1), own[:, EACH:].argmin(1) + EACH], 1)


def pick(table: Tensor, cells: Tensor) -> Tensor:
    """From [K, cells, …], the `cells` [K, 2] of each client."""
    every = torch.arange(len(cells), device=cells.device).unsqueeze(1)
    return table[every, cells]


def in_nats(task: Task, losses: Tensor, outputs: int) -> Tensor:
    """Held-out losses [K, G] in nats: half the squared error in units of the client's median."""
    if task != "regression":
        return losses
    median = losses.median(1, keepdim=True).values + 0.01 * outputs
    return outputs * losses / median / 2


def smooth_basis(like: Tensor) -> Tensor:
    """[cells, 5] an orthonormal basis of smooth differences between cells: alone or not, and for
    each polynomials of the penalty's logarithm. The rest of a noisy vote is mostly noise."""
    place = torch.arange(EACH, dtype=like.dtype, device=like.device) - (EACH - 1) / 2
    nothing = torch.zeros_like(place)
    pairs = [(nothing, nothing + 1), (place, nothing), (place.square(), nothing)]
    pairs += [(nothing, place), (nothing, place.square())]
    shapes = torch.stack([torch.cat(pair) for pair in pairs], 1)
    basis: Tensor = torch.linalg.qr(shapes - shapes.mean(0)).Q
    return basis
