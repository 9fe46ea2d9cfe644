"""The paper's equation 3 for linear models, solved to the end for many clients at once.

Client k has rows (x, y); the columns of x include a constant 1. For every row g of a table of
penalties κ and centres c, `solve` finds

    argmin_W  Σ_rows loss(xᵀW, y) + ½ Σ_j κ_gj ‖W_j − c_gj‖²

The loss is half the squared error, cross-entropy, or the sum of the labels' binary cross-entropies.
Its curvature in xᵀW is at most `CURVATURE` (Böhning 1992 for cross-entropy). So a step with the
matrix CURVATURE·XᵀX + diag(κ) never increases the objective, whatever the units of the data. For
the squared error one step is exact; the others are accelerated (Nesterov's momentum, restarted when
it points uphill, O'Donoghue & Candès 2015) until nothing moves. Yes-or-no targets with few columns
are solved by Newton's method (`newton.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pmtl.models.linear import newton
from pmtl.models.linear.smaller import Classes, Columns
from pmtl.models.losses import Task

#: The largest second derivative of a row's loss in its outputs.
CURVATURE: dict[Task, float] = {"regression": 1.0, "classification": 0.5, "multilabel": 0.25}
#: Steps at most, and the largest move of a weight at which the iteration ends: to the end, and for
#: losses that only compare penalties.
TO_THE_END, ROUGHLY = (500, 1e-5), (60, 1e-2)
#: Every FOLDS-th row is held out together; all folds are tried for clients with at most so many
#: numbers (rows × columns × outputs), and one for larger ones, whose rows are many.
FOLDS, SMALL = 5, 100_000
#: What is added to the diagonal of a matrix before it is inverted, relative to its largest entry.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class ClientRows:
    """All training rows of K clients, padded to n rows."""

    task: Task
    x: Tensor  #: [K, n, d] features; the first column is 1 (0 in padding)
    y: Tensor  #: [K, n, outputs] targets; classes as 0 and 1
    mask: Tensor  #: [K, n] 1 for real rows, 0 for padding

    @property
    def counts(self) -> Tensor:
        """[K] the number of rows of each client, at least 1."""
        return self.mask.sum(1).clamp(min=1)


def row_losses(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """The loss of every row in nats; for numbers, half the squared error."""
    if task == "regression":
        return (outputs - y).square().sum(-1) / 2
    if task == "classification":
        return torch.logsumexp(outputs, -1) - (outputs * y).sum(-1)
    return (torch.nn.functional.softplus(outputs) - outputs * y).sum(-1)


def solve(
    rows: ClientRows,
    centre: Tensor,
    penalty: Tensor,
    mask: Tensor | None = None,
    start: Tensor | None = None,
    until: tuple[int, float] = TO_THE_END,
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
        return columns.back(found, centre)
    mask = rows.mask if mask is None else mask
    yes_or_no = rows.task == "multilabel" or (
        rows.task == "classification" and rows.y.shape[2] == 2
    )
    if yes_or_no and rows.x.shape[2] <= newton.FEW:
        by_newton = newton.solve_labels if rows.task == "multilabel" else newton.solve_two_classes
        begin = centre if start is None else start
        return by_newton(rows.x, rows.y, mask, centre, penalty, begin, until[1])
    used = rows.x * mask.unsqueeze(-1)
    step = _Step(used, CURVATURE[rows.task], penalty)
    w = centre.expand(len(used), penalty.shape[1], *centre.shape[2:])
    if rows.task == "regression":
        return w - step(_times(used.transpose(1, 2), _times(rows.x, w) - rows.y.unsqueeze(1)))
    w = w if start is None else start
    classes = Classes.of(rows.y) if rows.task == "classification" else None
    if classes is None:
        return _descend(_Problem(rows, used, centre, penalty), step, w, until)
    offset, few = classes.offsets(_times(rows.x, centre)), classes.centre(centre)
    small = replace(rows, y=classes.targets(rows.y))
    problem = _Problem(small, used, few, penalty, classes.scale, offset)
    found = _descend(problem, step, few if start is None else classes.start(w, centre), until)
    return classes.back(found, centre)


@dataclass(frozen=True)
class _Problem:
    """What is minimised, by its gradient. Logits are xᵀW · scale + offset."""

    rows: ClientRows
    used: Tensor  #: the rows that count; 0 in the others
    centre: Tensor
    penalty: Tensor
    scale: Tensor | None = None  #: [K, 1, 1, outputs] at most 1: the curvature's bound holds
    offset: Tensor | None = None  #: [K, G, n, outputs]

    def gradient(self, w: Tensor) -> Tensor:
        outputs = _times(self.rows.x, w)
        if self.scale is not None and self.offset is not None:
            outputs = outputs * self.scale + self.offset
        if self.rows.task == "classification":
            outputs = torch.softmax(outputs, -1)
        elif self.rows.task == "multilabel":
            outputs = torch.sigmoid(outputs)
        missed = outputs - self.rows.y.unsqueeze(1)
        missed = missed if self.scale is None else missed * self.scale
        pull = self.penalty.unsqueeze(-1) * (w - self.centre)
        return _times(self.used.transpose(1, 2), missed) + pull


def _descend(problem: _Problem, step: _Step, w: Tensor, until: tuple[int, float]) -> Tensor:
    """Accelerated steps from `w`, until nothing moves."""
    momentum, ahead = torch.ones(w.shape[:2], dtype=w.dtype, device=w.device), w
    for _ in range(until[0]):
        gradient = problem.gradient(ahead)
        after = ahead - step(gradient)
        uphill = (gradient * (after - w)).sum((2, 3)) > 0
        following = (1 + torch.sqrt(1 + 4 * momentum.square())) / 2
        push = torch.where(uphill, 0.0, (momentum - 1) / following)
        momentum = torch.where(uphill, 1.0, following)
        moved = after - w
        w, ahead = after, after + push[..., None, None] * moved
        if not float(moved.abs().max()) > until[1]:
            break
    return w


def _times(a: Tensor, b: Tensor) -> Tensor:
    """`a` [K, i, j] times every matrix of `b` [K, G, j, c], in one product per client."""
    count, columns = b.shape[1], b.shape[3]
    flat = a @ b.transpose(1, 2).flatten(2)
    return flat.view(*flat.shape[:2], count, columns).transpose(1, 2)


class _Step:
    """Applies (b·XᵀX + diag(κ))⁻¹, by d × d or, with fewer rows than columns, n × n matrices."""

    def __init__(self, used: Tensor, bound: float, penalty: Tensor) -> None:
        self._used = used
        self._penalty = penalty.unsqueeze(-1)
        n, d = used.shape[1:]
        self._dual = n < d
        if self._dual:  # Woodbury: K⁻¹ − K⁻¹Xᵀ(I/b + XK⁻¹Xᵀ)⁻¹XK⁻¹
            inner = torch.einsum(
                "knd,kgd,kmd->kgnm", used, 1 / penalty.expand(len(used), -1, -1), used
            )
            inner.diagonal(dim1=-2, dim2=-1).add_(1 / bound)
        else:
            inner = (bound * used.transpose(1, 2) @ used).unsqueeze(1) + torch.diag_embed(penalty)
        # Rounding must not make it indefinite where columns are large and alike.
        diagonal = inner.diagonal(dim1=-2, dim2=-1)
        diagonal.add_(_ROUNDING * diagonal.amax(-1, keepdim=True))
        self._inverse = torch.cholesky_inverse(torch.linalg.cholesky(inner))

    def __call__(self, g: Tensor) -> Tensor:
        """The product with `g` [K, G, d, outputs]."""
        if not self._dual:
            return self._inverse @ g
        scaled = g / self._penalty
        inside = self._inverse @ _times(self._used, scaled)
        return scaled - _times(self._used.transpose(1, 2), inside) / self._penalty

    def leverages(self) -> Tensor:
        """[K, G, n]: xᵀ(XᵀX + diag(κ))⁻¹x of every row (b = 1)."""
        if self._dual:  # I − (I + XK⁻¹Xᵀ)⁻¹
            return 1 - self._inverse.diagonal(dim1=-2, dim2=-1)
        inside = self._used.unsqueeze(1) @ self._inverse
        return (inside * self._used.unsqueeze(1)).sum(-1)


def held_out_losses(rows: ClientRows, centre: Tensor, penalty: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of `solve` (roughly), and every client's mean loss on rows that were left out
    [K, G].

    For numbers each row is left out in turn, in closed form. For classes every fifth row is left
    out together. A client with one row has the loss of the centre.
    """
    weights = solve(rows, centre, penalty, until=ROUGHLY)
    outputs = _times(rows.x, weights)
    if rows.task == "regression":
        used = rows.x * rows.mask.unsqueeze(-1)
        left = _Step(used, 1.0, penalty).leverages().clamp(max=1 - 1e-6).unsqueeze(-1)
        y = rows.y.unsqueeze(1)
        outputs, counted = y - (y - outputs) / (1 - left), rows.mask
    else:
        place = (torch.cumsum(rows.mask, 1).long() - 1) % FOLDS  # The first row is in fold 0.
        few = rows.x[0].numel() * rows.y.shape[2] <= SMALL
        counted = torch.zeros_like(rows.mask)
        for fold in range(min(FOLDS, rows.mask.shape[1]) if few else 1):
            out = (place == fold) & (rows.mask > 0)
            counted = counted + out
            inside = solve(rows, centre, penalty, rows.mask * ~out, weights, ROUGHLY)
            there = _times(rows.x, inside)
            outputs = torch.where(out[:, None, :, None], there, outputs)
    losses = row_losses(rows.task, outputs, rows.y.unsqueeze(1)) * counted.unsqueeze(1)
    return weights, losses.sum(2) / counted.sum(1).clamp(min=1).unsqueeze(1)
