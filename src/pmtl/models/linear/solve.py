"""The paper's equation 3 for linear models, solved exactly for many clients at once.

Client k has rows (x, y); the columns of x include a constant 1. For every row g of a table of
penalties κ and centres c, `solve` finds

    argmin_W  Σ_rows loss(xᵀW, y) + ½ Σ_j κ_gj ‖W_j − c_gj‖²

The loss is half the squared error, cross-entropy, or the sum of the labels' binary cross-entropies.
Yes-or-no targets with few columns are solved by Newton's method (`newton.py`), all others by steps
with a bound of the curvature (`descent.py`), of which one is exact for the squared error.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pmtl.models.linear import newton
from pmtl.models.linear.descent import Problem, multiply
from pmtl.models.linear.reduction import Classes, Columns
from pmtl.models.losses import Task

#: The most steps, and the largest move of a weight at which the iteration ends: for a solution, and
#: for losses that only compare penalties.
EXACT, ROUGH = (500, 1e-5), (120, 1e-2)
#: FOLDS-fold cross-validation: fold i holds out rows i, i + FOLDS, …. Clients with more than
#: FEW_ROWS rows use one fold.
FOLDS, FEW_ROWS = 5, 1000


@dataclass(frozen=True)
class ClientRows:
    """All training rows of K clients, padded to n rows."""

    task: Task
    x: Tensor  #: [K, n, d] features; the first column is 1 (0 in padding)
    y: Tensor  #: [K, n, outputs] targets; classes as 0 and 1
    mask: Tensor  #: [K, n] 1 for real rows, 0 for padding
    #: [d, outputs] public weights with which training begins; None: zeros
    start: Tensor | None = field(default=None, kw_only=True)
    #: whether the rows are sparse, as rows of words are
    words: bool = field(default=False, kw_only=True)

    @property
    def counts(self) -> Tensor:
        """[K] the number of rows of each client, at least 1."""
        return self.mask.sum(1).clamp(min=1)


def padded_targets(task: Task, outputs: int, targets: Tensor, real: Tensor) -> Tensor:
    """`y` of `ClientRows` from targets [K, n] or [K, n, outputs]; 0 where a row is not `real`."""
    if task == "classification":
        y = F.one_hot(targets.long(), outputs)
    else:
        y = targets.reshape(*real.shape, outputs)
    return torch.where(real.unsqueeze(-1), y.double(), 0.0)


def row_losses(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """The loss of every row in nats; for numbers, half the squared error."""
    if task == "regression":
        return (outputs - y).square().sum(-1) / 2
    if task == "classification":
        return torch.logsumexp(outputs, -1) - (outputs * y).sum(-1)
    return (F.softplus(outputs) - outputs * y).sum(-1)


def solve(
    rows: ClientRows,
    centre: Tensor,
    penalty: Tensor,
    mask: Tensor | None = None,
    start: Tensor | None = None,
    until: tuple[int, float] = EXACT,
) -> Tensor:
    """The weights `[K, G, d, outputs]` of every client for every row of the table.

    Args:
        rows: the clients' rows.
        centre: c, [K or 1, G, d, outputs].
        penalty: κ > 0, [K or 1, G, d].
        mask: [K, n] the rows to use; all unless given.
        start: weights to begin with; the centre unless given.
        until: steps at most, and the largest move at which the iteration ends.
    """
    columns = Columns.used(rows.x)
    if columns is not None:
        small = replace(rows, x=columns.rows(rows.x))
        begin = None if start is None else columns.weights(start)
        found = solve(
            small, columns.weights(centre), columns.penalties(penalty), mask, begin, until
        )
        return columns.restore(found, centre)
    mask = rows.mask if mask is None else mask
    yes_or_no = rows.task == "multilabel" or (
        rows.task == "classification" and rows.y.shape[2] == 2
    )
    if yes_or_no and rows.x.shape[2] <= newton.FEW:
        begin = centre if start is None else start
        return newton.solve(rows.task, rows.x, rows.y, mask, centre, penalty, begin, until[1])
    problem = Problem(rows.task, rows.x * mask.unsqueeze(-1), rows.y, centre, penalty)
    if rows.task == "regression":  # one step is exact
        return problem.solve(None, (1, 0.0))
    classes = Classes.of(rows.y) if rows.task == "classification" else None
    if classes is None:
        return problem.solve(start, until)
    few, offset = classes.centre(centre), classes.offsets(multiply(rows.x, centre))
    begin = None if start is None else classes.start(start, centre)
    y = classes.targets(rows.y)
    problem = replace(problem, y=y, centre=few, scale=classes.scale, offset=offset)
    return classes.restore(problem.solve(begin, until), centre)


def held_out_losses(
    rows: ClientRows, centre: Tensor, penalty: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of `solve` (roughly), every client's mean loss on rows that were left out [K, G],
    and how many rows these are [K].

    For numbers every row is left out alone, in closed form. For classes the rows of a fold are left
    out together. A client with one row has the loss of the centre.
    """
    columns = Columns.used(rows.x)
    if columns is not None:
        small = replace(rows, x=columns.rows(rows.x))
        found, losses, held = held_out_losses(
            small, columns.weights(centre), columns.penalties(penalty)
        )
        return columns.restore(found, centre), losses, held
    weights = solve(rows, centre, penalty, until=ROUGH)
    outputs = multiply(rows.x, weights)
    if rows.task == "regression":
        used = rows.x * rows.mask.unsqueeze(-1)
        problem = Problem(rows.task, used, rows.y, centre, penalty)
        left = problem.leverages().clamp(max=1 - 1e-6).unsqueeze(-1)
        y = rows.y.unsqueeze(1)
        outputs, counted = y - (y - outputs) / (1 - left), rows.mask
    else:
        place = (torch.cumsum(rows.mask, 1).long() - 1) % FOLDS  # The first row is in fold 0.
        few = rows.counts <= FEW_ROWS
        counted = torch.zeros_like(rows.mask)
        for fold in range(min(FOLDS, rows.mask.shape[1]) if bool(few.any()) else 1):
            out = (place == fold) & (rows.mask > 0) & (few.unsqueeze(1) | (fold == 0))
            counted = counted + out
            inside = solve(rows, centre, penalty, rows.mask * ~out, weights, ROUGH)
            held_out = multiply(rows.x, inside)
            outputs = torch.where(out[:, None, :, None], held_out, outputs)
    losses = row_losses(rows.task, outputs, rows.y.unsqueeze(1)) * counted.unsqueeze(1)
    held = counted.sum(1)
    return weights, losses.sum(2) / held.clamp(min=1).unsqueeze(1), held
