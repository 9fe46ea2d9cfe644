"""Iterations that solve the paper's equation 3 for linear models, for many problems at once.

A row's loss has a curvature in its outputs of at most b (Böhning 1992 for cross-entropy). With
K = diag(κ), a step with the matrix b·XᵀX + K never increases the objective, whatever the units of
the data. Steps are accelerated (Nesterov's momentum, restarted when it points uphill, O'Donoghue &
Candès 2015) until nothing moves.

If a client has more columns than rows, every step stays in the space of the rows,

    W = c + K⁻¹Xᵀa,   a ← a − M(a + residuals),   M = (I + bG)⁻¹,   G = XK⁻¹Xᵀ

(Woodbury), and so do the logits: XW ← XW − (I − M)(a + residuals)/b. `ByRows` takes the same steps
as `ByColumns`, with one product with an n × n matrix. At the end a = −residuals.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pmtl.models.losses import Task

#: b, the largest second derivative of a row's loss in its outputs.
CURVATURE: dict[Task, float] = {"regression": 1.0, "classification": 0.5, "multilabel": 0.25}
#: What is added to the diagonal of a matrix before it is inverted, relative to its largest entry.
_ROUNDING = 1e-12
#: Up to this many classes, a softmax is computed without torch's function.
_FEW = 12


@dataclass(frozen=True)
class Problem:
    """What is minimised: Σ_rows loss(xᵀW · scale + offset, y) + ½ Σ_j κ_j ‖W_j − c_j‖²."""

    task: Task
    x: Tensor  #: [K, n, d] the rows that are used; 0 in the others
    y: Tensor  #: [K, n, outputs]
    centre: Tensor  #: c, [K or 1, G, d, outputs]
    penalty: Tensor  #: κ, [K or 1, G, d]
    scale: Tensor | None = None  #: [K, 1, 1, outputs] at most 1: the curvature's bound holds
    offset: Tensor | None = None  #: [K, G, n, outputs]

    def residuals(self, logits: Tensor) -> Tensor:
        """The loss's gradient in xᵀW, from xᵀW, [K, G, n, outputs]."""
        if self.scale is not None and self.offset is not None:
            logits = logits * self.scale + self.offset
        if self.task == "classification":
            logits = softmax(logits)
        elif self.task == "multilabel":
            logits = torch.sigmoid(logits)
        residuals = logits - self.y.unsqueeze(1)
        return residuals if self.scale is None else residuals * self.scale

    def solve(self, start: Tensor | None, until: tuple[int, float]) -> Tensor:
        """The weights [K, G, d, outputs], from `start` or the centre.

        Args:
            start: weights to begin with.
            until: steps at most, and the largest move at which the iteration ends.
        """
        steps: ByColumns | ByRows = ByRows(self) if self._more_columns else ByColumns(self)
        return steps.weights(_descend(steps, steps.begin(start), until))

    def leverages(self) -> Tensor:
        """[K, G, n] xᵀ(XᵀX + K)⁻¹x of every row (b = 1)."""
        if self._more_columns:
            return 1 - ByRows(self).inverse.diagonal(dim1=-2, dim2=-1)
        x = self.x.unsqueeze(1)
        return ((x @ ByColumns(self).inverse) * x).sum(-1)

    @property
    def _more_columns(self) -> bool:
        """Whether a step by rows is cheaper: n² instead of d² + 2nd; but n³ once, not d³."""
        return 2 * self.x.shape[1] < 3 * self.x.shape[2]


class ByColumns:
    """Steps whose state is the weights."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._transposed = problem.x.transpose(1, 2)
        matrix = (CURVATURE[problem.task] * self._transposed @ problem.x).unsqueeze(1)
        self.inverse = invert(matrix + torch.diag_embed(problem.penalty))

    def begin(self, start: Tensor | None) -> Tensor:
        """The state to begin with, [K, G, …, outputs]."""
        centre, (clients, cells) = self._problem.centre, self.inverse.shape[:2]
        return centre.expand(clients, cells, -1, -1) if start is None else start

    def advance(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The state after one step, and the gradient before it."""
        problem = self._problem
        pull = problem.penalty.unsqueeze(-1) * (state - problem.centre)
        gradient = multiply(self._transposed, problem.residuals(multiply(problem.x, state))) + pull
        return state - self.inverse @ gradient, gradient

    def weights(self, state: Tensor) -> Tensor:
        """The weights of a state."""
        return state


class ByRows:
    """The same steps; the state is a, and below it the logits XW."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        x, scale = problem.x, 1 / problem.penalty.expand(len(problem.x), -1, -1)
        self._gram = torch.einsum("knd,kgd,kmd->kgnm", x, scale, x)  # XK⁻¹Xᵀ
        matrix = CURVATURE[problem.task] * self._gram
        matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
        self.inverse = invert(matrix)

    def begin(self, start: Tensor | None) -> Tensor:
        problem, (clients, cells) = self._problem, self.inverse.shape[:2]
        logits = multiply(problem.x, problem.centre.expand(clients, cells, -1, -1))
        a = torch.zeros_like(logits)
        if start is not None:  # a for which these weights are the solution
            a = -problem.residuals(multiply(problem.x, start))
            logits = logits + self._gram @ a
        return torch.cat([a, logits], 2)

    def advance(self, state: Tensor) -> tuple[Tensor, Tensor]:
        a, logits = state.chunk(2, dim=2)
        off = a + self._problem.residuals(logits)  # the gradient is Xᵀ off
        step = self.inverse @ off
        after = torch.cat([a - step, logits - (off - step) / CURVATURE[self._problem.task]], 2)
        return after, torch.cat([torch.zeros_like(off), off], 2)

    def weights(self, state: Tensor) -> Tensor:
        a, _ = state.chunk(2, dim=2)
        moved = multiply(self._problem.x.transpose(1, 2), a)
        return self._problem.centre + moved / self._problem.penalty.unsqueeze(-1)


def _descend(steps: ByColumns | ByRows, state: Tensor, until: tuple[int, float]) -> Tensor:
    """Accelerated steps, until nothing moves."""
    momentum, ahead = torch.ones_like(state[:, :, 0, 0]), state
    for _ in range(until[0]):
        after, gradient = steps.advance(ahead)
        moved = after - state
        uphill = (gradient * moved).sum((2, 3)) > 0
        following = (1 + torch.sqrt(1 + 4 * momentum.square())) / 2
        push = torch.where(uphill, 0.0, (momentum - 1) / following)
        momentum = torch.where(uphill, 1.0, following)
        state, ahead = after, after + push[..., None, None] * moved
        if not float(moved.abs().max()) > until[1]:
            break
    return state


def softmax(logits: Tensor) -> Tensor:
    """Over the last axis. With few classes, this takes a third of the time of torch's own."""
    if logits.shape[-1] > _FEW:
        return torch.softmax(logits, -1)
    powers = torch.exp(logits - logits.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def invert(matrix: Tensor) -> Tensor:
    """The inverse of positive definite matrices. Rounding must not make them indefinite where
    columns are large and alike."""
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    diagonal.add_(_ROUNDING * diagonal.amax(-1, keepdim=True))
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix))


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """`a` [K, i, j] times every matrix of `b` [K, G, j, c], in one product per client."""
    count, columns = b.shape[1], b.shape[3]
    flat = a @ b.transpose(1, 2).flatten(2)
    return flat.view(*flat.shape[:2], count, columns).transpose(1, 2)
