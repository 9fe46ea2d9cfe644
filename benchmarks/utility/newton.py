"""Every client's penalised regression at once, around given weights or around weights of them all.

    minimise  Σ_k Σ_i loss(A_ki u_k, y_ki)  +  Σ_k ½ (u_k − t)ᵀ D (u_k − t)

over u_1, …, u_m and, if `joint`, over t. A row of A is a 1 and the features, D has one penalty for
the intercept and one for all slopes. Newton's method; the Hessian is an arrow (t meets every u_k,
and no u_k meets another), so that t is found from a sum over clients. Numbers take one step.
Plain NumPy, written without the package it is a rival to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Keeps the weights that all clients share finite where the rows say nothing of them.
RIDGE = 1e-3
#: Newton's steps, and the gradient at which they end.
STEPS, SMALL = 40, 1e-6


@dataclass(frozen=True, eq=False)
class Rows:
    """The training rows of all clients in arrays of one shape; missing rows have weight 0.

    Args:
        a: a 1 and the scaled features, [m, n, p].
        y: numbers, 0/1, or one column of 0/1 for each class, [m, n, outputs].
        weight: 1 for rows that count and 0 for others, [m, n].
        kind: number, yes_no or classes.
    """

    a: Array
    y: Array
    weight: Array
    kind: str

    def but(self, left_out: NDArray[np.bool_]) -> Rows:
        """The same without some rows."""
        return replace(self, weight=self.weight * ~left_out)


@dataclass(frozen=True, eq=False)
class Solution:
    """What was found.

    Args:
        own: the weights of the clients, u_k, [m, p, outputs].
        centre: the weights they are pulled to, t, [p, outputs].
    """

    own: Array
    centre: Array


def row_loss(kind: str, f: Array, y: Array) -> Array:
    """Half the squared error, or the log loss, of each row; the last axis is the outputs."""
    if kind == "number":
        return np.asarray(0.5 * np.square(f - y).sum(-1))
    if kind == "yes_no":
        return np.asarray((np.logaddexp(0, f) - y * f).sum(-1))
    top = f.max(-1)
    return np.asarray(top + np.log(np.exp(f - top[..., None]).sum(-1)) - (f * y).sum(-1))


def _derivatives(kind: str, f: Array, y: Array) -> tuple[Array, Array]:
    """The first and second derivatives of `row_loss` by f: […, outputs], […, outputs, outputs]."""
    if kind == "number":
        return f - y, np.ones((*f.shape, 1))
    if kind == "yes_no":
        p = 1 / (1 + np.exp(-np.clip(f, -500, 500)))
        return p - y, (p * (1 - p))[..., None]
    p = np.exp(f - f.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p - y, p[..., None] * np.eye(f.shape[-1]) - p[..., None] * p[..., None, :]


def _curvature(rows: Rows, second: Array) -> Array:
    """Σ_i A_i A_iᵀ ⊗ W_i of each client, [m, p · outputs, p · outputs]."""
    m, _, p = rows.a.shape
    outputs = second.shape[-1]
    found = np.empty((m, p, outputs, p, outputs))
    for c in range(outputs):
        for d in range(c + 1):
            weighted = rows.a * (rows.weight * second[..., c, d])[..., None]
            found[:, :, c, :, d] = found[:, :, d, :, c] = weighted.swapaxes(1, 2) @ rows.a
    return found.reshape(m, p * outputs, p * outputs)


def solve(
    rows: Rows,
    intercept: float,
    slopes: float,
    joint: bool = False,
    start: Solution | None = None,
    centre: Array | None = None,
) -> Solution:
    """The minimum.

    Args:
        rows: the training rows.
        intercept, slopes: the two penalties in D.
        joint: whether t is found, too; otherwise it stays where it is.
        start: where to start, such as the solution for other penalties.
        centre: t, if it is given; otherwise that of `start`, or zero.
    """
    m, _, p = rows.a.shape
    outputs = rows.y.shape[-1]
    size = p * outputs
    if start is None:
        start = Solution(np.zeros((m, p, outputs)), np.zeros((p, outputs)))
    u = start.own.reshape(m, size).copy()
    t = (start.centre if centre is None else centre).reshape(size).copy()
    penalty = np.repeat(np.r_[intercept, np.full(p - 1, slopes)], outputs)

    def answers(u: Array) -> Array:
        return np.asarray(rows.a @ u.reshape(m, p, outputs))

    def objective(u: Array, t: Array) -> Array:
        losses = (rows.weight * row_loss(rows.kind, answers(u), rows.y)).sum(1)
        return np.asarray(losses + 0.5 * (penalty * np.square(u - t)).sum(1))

    value = objective(u, t)
    for _ in range(STEPS):
        first, second = _derivatives(rows.kind, answers(u), rows.y)
        pull = penalty * (u - t)
        data = rows.a.swapaxes(1, 2) @ (first * rows.weight[..., None])
        gradient = data.reshape(m, size) + pull
        curvature = _curvature(rows, second)
        hessian = curvature + np.diag(penalty)
        dt = np.zeros(size)
        solved = np.linalg.solve(hessian, np.concatenate([gradient[..., None], curvature], axis=2))
        if joint:
            of_t = RIDGE * t - pull.sum(0)
            schur = (penalty[:, None] * solved[..., 1:]).sum(0) + RIDGE * np.eye(size)
            dt = np.linalg.solve(schur, -of_t - (penalty * solved[..., 0]).sum(0))
        # H⁻¹ D = I − H⁻¹ M, so that u moves by H⁻¹ (D dt − gradient).
        du = dt - solved[..., 1:] @ dt - solved[..., 0]
        shorter = np.ones((m, 1))
        for _ in range(30):
            tried = objective(u + shorter * du, t + shorter[0] * dt)
            worse = tried > value + 1e-9 * (1 + np.abs(value))
            if joint:
                ridge = 0.5 * RIDGE * (np.square(t + shorter[0] * dt) - np.square(t)).sum()
                worse = np.full(m, tried.sum() + ridge > value.sum() * (1 + 1e-9) + 1e-9)
            if not worse.any():
                break
            shorter[worse] /= 2
        u, t = u + shorter * du, t + shorter[0] * dt
        value = objective(u, t)
        moved = max(np.abs(shorter * du).max(), np.abs(dt).max(initial=0))
        if moved < SMALL or rows.kind == "number":
            break
    return Solution(u.reshape(m, p, outputs), t.reshape(p, outputs))


def left_out_losses(rows: Rows, intercept: float, slopes: float, found: Solution) -> Array:
    """Numbers only: half the squared error of each row for weights found without it, t kept,
    [m, n]; 0 where there is no row."""
    p = rows.a.shape[-1]
    penalty = np.diag(np.r_[intercept, np.full(p - 1, slopes)])
    inverse = np.linalg.inv(_curvature(rows, np.ones((*rows.y.shape, 1))) + penalty)
    leverage = np.einsum("knp,kpq,knq->kn", rows.a, inverse, rows.a, optimize=True)
    error = (rows.y - rows.a @ found.own)[..., 0] / np.maximum(1 - leverage, 1e-9)
    return np.asarray(0.5 * np.square(error) * rows.weight)


def stack(columns: dict[str, Any], client: NDArray[np.int64], m: int) -> dict[str, Array]:
    """Columns of rows as arrays [m, n, …] with n the most rows of a client, and `weight`."""
    order = np.argsort(client, kind="stable")
    counts = np.bincount(client, minlength=m)
    position = np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts, counts)
    owner = client[order]
    stacked: dict[str, Array] = {}
    for name, column in {**columns, "weight": np.ones(len(client))}.items():
        stacked[name] = np.zeros((m, int(counts.max()), *np.shape(column)[1:]))
        stacked[name][owner, position] = np.asarray(column)[order]
    return stacked
