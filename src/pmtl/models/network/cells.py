"""The candidates for a client's network, from the shared weights as they are to training alone."""

from __future__ import annotations

import torch
from torch import Tensor

#: Penalties of the paths around the shared weights and around the common start. A path begins with
#: its centre as it is.
PENALTIES = (100.0, 30.0, 10.0, 3.0, 1.0)
#: Candidates of one centre, and of both.
EACH = 1 + len(PENALTIES)
CELLS = 2 * EACH
#: Nats against the candidates of a path before a client has seen any row: with few rows, cross-
#: validation often prefers the weakest or the strongest penalty by luck.
PRIOR = (4.0, 2.0, 1.0, 0.0, 0.0, 2.0)
#: By how many nats a candidate's held-out loss can exceed that of the best one.
WORST = 5.0


def prior(like: Tensor) -> Tensor:
    """[cells] `PRIOR` of both paths."""
    return like.new_tensor(2 * PRIOR)


def smooth_basis(like: Tensor) -> Tensor:
    """[cells, 5] an orthonormal basis of smooth differences between cells: alone or not, and for
    each of the two polynomials of the logarithm of the penalty. The rest of a noisy vote is mostly
    noise."""
    place = torch.arange(EACH, dtype=like.dtype, device=like.device) - (EACH - 1) / 2
    nothing = torch.zeros_like(place)
    shapes = torch.stack(
        [
            torch.cat([nothing, nothing + 1]),
            torch.cat([place, nothing]),
            torch.cat([place.square(), nothing]),
            torch.cat([nothing, place]),
            torch.cat([nothing, place.square()]),
        ],
        1,
    )
    basis: Tensor = torch.linalg.qr(shapes - shapes.mean(0)).Q
    return basis
