"""The private methods: ours as a user calls it, and the rivals with every advantage.

The rivals (Algorithm 1, Ditto, private FedAvg) get columns that are standardised by each client
(`scale=client`) or by everybody's training rows, a target that is standardised by everybody's
training rows, and settings that are chosen on validation rows: all of them at one ε, the clip again
at the others. None of this is charged to them, and all of it would cost privacy or has to be known.
In the end they train on all training rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from federation import MANY, Federation
from numpy.typing import NDArray

import pmtl

#: What is tried for a rival, one setting after the other; the first value is where it starts.
GRID: dict[str, tuple[float, ...]] = {
    "pooled": (0, 1),  # whose rows standardise the columns: a client's own, or everybody's
    "clip": (0.5, 0.1, 2.0),
    "lr": (0.1, 0.03, 0.5),
    "lam": (0.3, 0.03, 3.0),
    "rounds": (8, 30),
}
#: The same for images and words, where a run takes long; chosen once.
GRID_MANY: dict[str, tuple[float, ...]] = {
    "clip": (0.5, 2.0),
    "lr": (0.1, 0.5),
    "lam": (0.03, 0.3),
    "rounds": (8,),
}
AGAIN = ("clip",)  #: what is chosen again at every ε
STEPS = 5  #: of each client in a round, on all its rows
VALIDATION = 0.25  #: the part of the training rows on which settings are chosen
RIVALS = {"global": "fedavg", "algorithm_1": "pmtl", "ditto": "ditto"}

Settings = dict[str, float]


def ours(federation: Federation, epsilon: float, seed: int) -> NDArray[np.float64]:
    """The answers of the default method to the test rows: raw rows, ε, and nothing else."""
    data = federation.to_pmtl(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = pmtl.train(data, privacy=epsilon, seed=seed)
    return answers(run, federation, seed)


def answers(run: Any, federation: Federation, seed: int) -> NDArray[np.float64]:
    """The answers of the clients' models to the test rows, [test rows, outputs]: numbers or
    logits."""
    index = np.flatnonzero(federation.test_rows(seed))
    order = index[np.argsort(federation.client[index], kind="stable")]
    owner = federation.client[order]
    found = np.zeros((len(federation.client), federation.outputs))
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    for rows in np.split(order, starts[1:]):
        model = run.personal(federation.clients[federation.client[rows[0]]]).cpu()
        x = federation.x[rows]
        x = x.toarray() if hasattr(x, "toarray") else x
        with torch.no_grad():
            found[rows] = model(torch.as_tensor(x, dtype=torch.float32)).reshape(len(rows), -1)
    return found[index]


@dataclass
class Rival:
    """One rival on one federation."""

    name: str
    federation: Federation

    def choose(self, epsilon: float, start: Settings | None = None) -> Settings:
        """Settings chosen on the validation rows of seed 0: one after the other, each at its best
        value with the others as they are, and in the end the other way to standardise columns once
        more. With a `start` only the clip is chosen."""
        if start and self.federation.outputs > MANY:
            return start
        best = {name: values[0] for name, values in self._grid().items()} | (start or {})
        loss = self._validation_loss(epsilon, best)
        for name, values in self._grid().items():
            for value in () if start and name not in AGAIN else values:
                tried = {**best, name: value}
                if tried == best:
                    continue
                reached = self._validation_loss(epsilon, tried)
                if reached < loss:
                    best, loss = tried, reached
        return best if start else self.other_columns(epsilon, best, loss)

    def other_columns(self, epsilon: float, best: Settings, loss: float) -> Settings:
        """The settings, or better ones with columns standardised in the other way: this was tried
        first, with a step that may have been too large for it."""
        if "pooled" not in best:
            return best
        found = best
        for value in self._grid()["lr"]:
            tried = {**best, "pooled": 1 - best["pooled"], "lr": value}
            reached = self._validation_loss(epsilon, tried)
            if reached < loss:
                found, loss = tried, reached
        return found

    def answer(self, epsilon: float, seed: int, settings: Settings) -> NDArray[np.float64]:
        """The answers to the test rows after training on all training rows."""
        federation, shift, width = standardised(self.federation, seed)
        data = self._data(federation, seed, settings, 0.0)
        run = self._train(data, epsilon, seed, settings)
        if settings.get("pooled"):
            federation = with_pooled_columns(federation, seed)
        return shift + width * answers(run, federation, seed)

    def _grid(self) -> dict[str, tuple[float, ...]]:
        grid = GRID_MANY if self.federation.outputs > MANY else GRID
        return {name: values for name, values in grid.items() if name != "lam" or self._pulls}

    def _data(
        self, federation: Federation, seed: int, settings: Settings, validation: float
    ) -> Any:
        """The standardised federation; words stay as they are."""
        if settings.get("pooled"):
            return with_pooled_columns(federation, seed).to_pmtl(seed, validation)
        scale = None if hasattr(federation.x, "toarray") else "client"
        return federation.to_pmtl(seed, validation, scale=scale)

    @property
    def _pulls(self) -> bool:
        return self.name != "global"

    def _validation_loss(self, epsilon: float, settings: Settings) -> float:
        data = self._data(standardised(self.federation, 0)[0], 0, settings, VALIDATION)
        run = self._train(data, epsilon, 0, settings)
        measured = run.evaluate()["validation"]
        loss = measured["personal"]["loss"] if measured else np.inf
        return float(loss) if np.isfinite(loss) else np.inf

    def _train(self, data: Any, epsilon: float, seed: int, settings: Settings) -> Any:
        algorithm = RIVALS[self.name] + (f":lam={settings['lam']:g}" if self._pulls else "")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pmtl.train(
                data,
                algorithm=algorithm,
                privacy={
                    "epsilon": epsilon,
                    "clip": settings["clip"],
                    "rounds": int(settings["rounds"]),
                },
                local={"steps": STEPS, "batch": 0, "lr": settings["lr"]},
                evaluate_every=0,
                seed=seed,
            )


def standardised(federation: Federation, seed: int) -> tuple[Federation, float, float]:
    """A federation whose number to predict is standardised by everybody's training rows; other
    tasks stay as they are."""
    if federation.task != "regression":
        return federation, 0.0, 1.0
    train = ~federation.test_rows(seed)
    shift, width = float(federation.y[train].mean()), float(federation.y[train].std())
    return replace(federation, y=(federation.y - shift) / width), shift, width


def with_pooled_columns(federation: Federation, seed: int) -> Federation:
    """A federation whose columns are standardised by everybody's training rows."""
    rows = federation.x[~federation.test_rows(seed)]
    means, widths = rows.mean(0), rows.std(0)
    widths = np.where(widths > 1e-9 * (1 + np.abs(means)), widths, 1)
    return replace(federation, x=(federation.x - means) / widths)


#: What is called for `ours`; another method of the package can be tried by replacing it.
OURS: Callable[[Federation, float, int], NDArray[np.float64]] = ours
