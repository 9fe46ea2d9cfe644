"""Newton's method for yes-or-no targets with few columns, for many problems at once.

Each label is a separate problem. Two opposite classes are one problem for the difference D of their
weights: with penalty κ on each, ½ κ/2 ‖D − (c₁ − c₀)‖² is added to its loss, and the mean of both
stays the mean of the centre. The objective is convex, so Newton's direction leads downhill. Steps
along it are halved until the objective decreases in proportion (Armijo 1966): it never increases,
whatever the units of the data. Some six steps are enough, where steps with a bound of the curvature
(`solve.py`) take dozens; each costs a matrix of the columns, so columns must be few.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pmtl.models.losses import Task

#: The most columns, and the most steps and halvings of one.
FEW, STEPS, HALVINGS = 40, 50, 40
#: The part of the predicted decrease that a step must reach, and the tolerance for rounding.
DECREASE, ROUNDING = 1e-4, 1e-12


def solve(
    task: Task,
    x: Tensor,
    y: Tensor,
    used: Tensor,
    centre: Tensor,
    penalty: Tensor,
    start: Tensor,
    move: float,
) -> Tensor:
    """The weights [K, G, d, outputs] of labels or of two opposite classes.

    Args:
        task: multilabel or classification.
        x: rows [K, n, d]; 0 in padding.
        y: their labels [K, n, outputs], or their classes as 0 and 1.
        used: [K, n] 1 for the rows that count.
        centre: c, [K or 1, G, d, outputs].
        penalty: κ > 0, [K or 1, G, d].
        start: weights to begin with, as `centre`.
        move: the largest move of a weight at which the iteration ends.
    """
    if task == "classification":
        found = solve(
            "multilabel",
            x,
            y[..., 1:],
            used,
            centre[..., 1:] - centre[..., :1],
            penalty / 2,
            start[..., 1:] - start[..., :1],
            move,
        )
        middle = centre.mean(3, keepdim=True)
        return torch.cat([middle - found / 2, middle + found / 2], 3)
    clients, count, outputs = len(x), penalty.shape[1], y.shape[2]
    wide = (clients, count, x.shape[2], outputs)
    # Problems are the columns of matrices [K, d or n, P].
    flat = [
        part.expand(wide).permute(0, 2, 1, 3).flatten(2)
        for part in (centre, penalty.unsqueeze(3), start)
    ]
    c, k, w = flat[0], flat[1], flat[2]
    y, mask = y.repeat(1, 1, count), used.unsqueeze(2)

    def objective(z: Tensor, w: Tensor) -> Tensor:
        return (mask * (softplus(z) - y * z)).sum(1) + (k * (w - c).square()).sum(1) / 2

    z = x @ w
    value = objective(z, w)
    for _ in range(STEPS):
        chance = torch.sigmoid(z)
        gradient = x.transpose(1, 2) @ (mask * (chance - y)) + k * (w - c)
        direction = _direction(x, mask * chance * (1 - chance), k, gradient)
        ahead, slope = x @ direction, (gradient * direction).sum(1)
        length = torch.ones_like(value)
        for _ in range(HALVINGS):
            tried = objective(z + length.unsqueeze(1) * ahead, w + length.unsqueeze(1) * direction)
            small = ROUNDING * (1 + value.abs())
            worse = ~(tried <= value + DECREASE * length * slope + small)
            if not bool(worse.any()):
                break
            length = torch.where(worse, length / 2, length)
        length, value = torch.where(worse, 0.0, length), torch.where(worse, value, tried)
        moved = length.unsqueeze(1) * direction
        w, z = w + moved, z + length.unsqueeze(1) * ahead
        if not float(moved.abs().max()) > move:
            break
    return w.reshape(clients, -1, count, outputs).permute(0, 2, 1, 3)


def _direction(x: Tensor, curvature: Tensor, k: Tensor, gradient: Tensor) -> Tensor:
    """−H⁻¹ gradient [K, d, P], with H = Xᵀ diag(curvature) X + diag(k) of each problem."""
    directions = []
    for problem in range(k.shape[2]):
        matrix = (x * curvature[:, :, problem : problem + 1]).transpose(1, 2) @ x
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        diagonal.add_(k[:, :, problem])
        # Rounding must not make it indefinite if columns are large and similar.
        diagonal.add_(ROUNDING * diagonal.amax(1, keepdim=True))
        root = torch.linalg.cholesky(matrix)
        directions.append(torch.cholesky_solve(-gradient[:, :, problem : problem + 1], root))
    return torch.cat(directions, 2)
