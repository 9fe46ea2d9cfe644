"""The baselines for many columns and classes (images, words), where Newton's method is too large.

One softmax regression for everybody is found by L-BFGS. Around it (or around zero: `alone`) client
k finds f = offset + Z u, where only the classes of its own rows get weights u of its own. With
fewer rows than columns the rows' inner products are enough: with K = Z Zᵀ/slopes + 1/intercept,

    K = L Lᵀ

    minimise over b  Σ_i loss(offset_i + L_i b, y_i) + ½ ‖b‖².

Penalties are chosen on a quarter of the training rows that is left out once: by each client for
itself (`alone`), or for all (`alone_tuned`, `ceiling`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from federation import Federation, draw_rows
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize

Array = NDArray[np.float64]

#: Penalties on weights, for rows whose length is about 1; those on intercepts are a tenth.
ALONE, NEAR = (1.0, 0.1), (30.0, 3.0, 0.3)
OF_ONE = (1.0, 0.1)  #: of the model for everybody
STEPS, STEPS_OF_ONE = 40, 60


def scaled(federation: Federation, train: NDArray[np.bool_]) -> Any:
    """Columns standardised by everybody's training rows, and rows brought to a length of about 1;
    words only the latter, which keeps them sparse."""
    x = federation.x
    if sparse.issparse(x):
        length = np.sqrt(x[train].multiply(x[train]).sum(1).mean())
        return sparse.csr_matrix(x / length)
    means, widths = x[train].mean(0), x[train].std(0)
    widths = np.where(widths > 1e-3 * widths.max(), widths, widths.max())
    return (x - means) / (widths * np.sqrt(x.shape[1]))


def _softmax(f: Array) -> tuple[Array, Array]:
    """log Σ exp of each row, and the probabilities."""
    top = f.max(1, keepdims=True)
    p = np.exp(f - top)
    total = p.sum(1, keepdims=True)
    return (top + np.log(total))[:, 0], p / total


def fit_one(z: Any, y: NDArray[np.int64], outputs: int, penalty: float) -> tuple[Array, Array]:
    """The weights [columns, outputs] and intercepts of one model for all rows."""
    p, rows = z.shape[1], np.arange(len(y))

    def objective(v: Array) -> tuple[float, Array]:
        w, b = v[: p * outputs].reshape(p, outputs), v[p * outputs :]
        f = z @ w + b
        total, chance = _softmax(f)
        value = float((total - f[rows, y]).sum() + 0.5 * penalty * np.square(w).sum())
        chance[rows, y] -= 1
        return value, np.concatenate([(z.T @ chance + penalty * w).ravel(), chance.sum(0)])

    options = {"maxiter": STEPS_OF_ONE, "maxcor": 8}
    start = np.zeros((p + 1) * outputs)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
    return found[: p * outputs].reshape(p, outputs), found[p * outputs :]


def fit_own(gram: Array, offset: Array, y: NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:
    """The coefficients of a client's rows, [rows, own classes], and its classes. The answers to
    new rows are their offsets plus their inner products times these coefficients."""
    seen, code = np.unique(y, return_inverse=True)
    rest = np.delete(offset, seen, axis=1)
    other = _softmax(rest)[0] if rest.shape[1] else np.full(len(y), -np.inf)
    values, vectors = np.linalg.eigh(gram)
    roots = np.sqrt(np.maximum(values, 1e-12))
    factor, rows = vectors * roots, np.arange(len(y))
    f0 = offset[:, seen]

    def objective(v: Array) -> tuple[float, Array]:
        b = v.reshape(len(roots), len(seen))
        f = f0 + factor @ b
        total, chance = _softmax(np.column_stack([f, other]))
        value = float((total - f[rows, code]).sum() + 0.5 * np.square(b).sum())
        chance = chance[:, :-1].copy()
        chance[rows, code] -= 1
        return value, (factor.T @ chance + b).ravel()

    start, options = np.zeros(len(roots) * len(seen)), {"maxiter": STEPS}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
    return vectors @ (found.reshape(len(roots), len(seen)) / roots[:, None]), seen


@dataclass(frozen=True, eq=False)
class Clients:
    """Own models of all clients, from some rows to others."""

    z: Any
    y: NDArray[np.int64]
    client: NDArray[np.int64]
    m: int
    outputs: int

    def answers(
        self, fit: NDArray[np.int64], ask: NDArray[np.int64], penalty: float, model: Any
    ) -> Array:
        """The answers to the rows `ask` after training on the rows `fit` around a model, or around
        zero if it is None, [ask, outputs]."""
        offsets = np.zeros((len(ask), self.outputs)) if model is None else self.of(model, ask)
        for k in range(self.m):
            mine, asked = fit[self.client[fit] == k], np.flatnonzero(self.client[ask] == k)
            if not len(mine) or not len(asked):
                continue
            offset = np.zeros((len(mine), self.outputs)) if model is None else self.of(model, mine)
            inner = self._inner(mine, mine, penalty)
            coefficients, seen = fit_own(inner, offset, self.y[mine])
            new = self._inner(ask[asked], mine, penalty)
            offsets[np.ix_(asked, seen)] += new @ coefficients
        return offsets

    def of(self, model: Any, rows: NDArray[np.int64]) -> Array:
        return np.asarray(self.z[rows] @ model[0] + model[1])

    def _inner(self, a: NDArray[np.int64], b: NDArray[np.int64], penalty: float) -> Array:
        inner = self.z[a] @ self.z[b].T
        inner = inner.toarray() if sparse.issparse(inner) else inner
        return np.asarray(inner / penalty + 10 / penalty)


def _log_loss(f: Array, y: NDArray[np.int64]) -> Array:
    return np.asarray(_softmax(f)[0] - f[np.arange(len(y)), y])


def many_class_baselines(
    federation: Federation, test: NDArray[np.bool_], seed: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The answers of every baseline to the test rows, and the penalties that were chosen."""
    m, outputs = federation.m, federation.outputs
    z, y, client = scaled(federation, ~test), federation.y, federation.client
    train, asked = np.flatnonzero(~test), np.flatnonzero(test)
    out = draw_rows(client[train], m, seed + 2000, 0.25, 2)
    fit, held = train[~out], train[out]
    clients = Clients(z, y, client, m, outputs)

    models = [fit_one(z[fit], y[fit], outputs, penalty) for penalty in OF_ONE]
    losses_of_one = [_log_loss(clients.of(model, held), y[held]).sum() for model in models]
    of_one = int(np.argmin(losses_of_one))
    alone = [clients.answers(fit, held, penalty, None) for penalty in ALONE]
    losses = np.stack([np.bincount(client[held], _log_loss(f, y[held]), m) for f in alone])
    near = [clients.answers(fit, held, penalty, models[of_one]) for penalty in NEAR]
    best = int(np.argmin([_log_loss(f, y[held]).sum() for f in near]))
    own, tuned = losses.argmin(0), int(losses.sum(1).argmin())

    model = fit_one(z[train], y[train], outputs, OF_ONE[of_one])
    all_alone = np.stack([clients.answers(train, asked, penalty, None) for penalty in ALONE])
    found = {
        "alone": all_alone[own[client[asked]], np.arange(len(asked))],
        "alone_tuned": all_alone[tuned],
        "global": clients.of(model, asked),
        "ceiling": clients.answers(train, asked, NEAR[best], model),
    }
    chosen = {"alone_tuned": ALONE[tuned], "global": OF_ONE[of_one], "ceiling": NEAR[best]}
    return found, chosen
