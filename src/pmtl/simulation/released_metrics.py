"""Average metrics of a run, through the gate.

Exact metrics are private. Their average over clients may be shown with noise: every client puts its
own bounded values on validation rows into one vector, and the vectors pass a gate of their own with
their own plan (`privacy/accounting/validation.py`). A client without validation rows, or whose
values are NaN, counts as the middle of every range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from pmtl.errors import PmtlError
from pmtl.models import Task
from pmtl.privacy.noise import Source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release, noise_of
from pmtl.simulation.evaluation import Metrics

#: By view (personal, shared): every client's values by metric, and which clients have values.
Values = Mapping[str, tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]]


def metric_bounds(
    task: Task,
    outputs: int,
    loss_bound: float | None,
    target: tuple[float, float] | None = None,
) -> dict[str, float]:
    """The metrics that are released and the largest value of each, which is public.

    A loss is bounded by twice the loss of a guess. For numbers between the public bounds `target`,
    the guess is their middle, and the numbers are taken as spread evenly: a variance of a twelfth
    of the squared range. Without bounds the squared error is bounded by 1 per output. `loss_bound`
    replaces these bounds.
    """
    if loss_bound is not None and not 0 < loss_bound < math.inf:
        raise PmtlError(f"The loss bound must be positive and finite, but {loss_bound:g} is not.")
    if task == "regression":
        guess = 0.5 if target is None else (target[1] - target[0]) ** 2 / 12
        return {"loss": loss_bound or 2 * guess * outputs}
    chance = math.log(outputs) if task == "classification" else outputs * math.log(2)
    return {"accuracy": 1.0, "loss": loss_bound or 2 * chance}


class ReleasedMetrics:
    """Releases the clients' average metrics, round by round."""

    def __init__(
        self,
        plan: PrivacyPlan,
        views: tuple[str, ...],
        bounds: dict[str, float],
        source: Source,
        hardened: bool,
        charge: Callable[[int], None] | None,
    ) -> None:
        self._places = [(view, name) for view in views for name in bounds]
        if len(self._places) > 4 * plan.clip_norm**2 * (1 + 1e-9):
            raise PmtlError("The plan for metrics is for fewer values than are measured.")
        self._bounds = bounds
        self.gate = Release(
            plan, np.zeros(plan.clients, dtype=np.int64), noise_of(plan, source, hardened), charge
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that every client computes."""
        return tuple(self._bounds)

    @property
    def deviations(self) -> Metrics:
        """The noise's standard deviation on each released average."""
        return {f"{n}_mean": b * self.gate.plan.noise_std for n, b in self._bounds.items()}

    def release(self, round: int, values: Values) -> dict[str, Metrics]:
        """The noisy averages over clients after `round` rounds; charged first."""
        clients = np.arange(self.gate.plan.clients)
        rows = torch.zeros(len(clients), len(self._places), dtype=torch.float64)
        for place, (view, name) in enumerate(self._places):
            own, present = values[view]
            share = np.clip(own[name] / self._bounds[name], 0, 1) - 0.5
            rows[:, place] = torch.from_numpy(np.where(present, share, 0.0))
        zeros = torch.zeros(1, len(self._places), dtype=torch.float64)
        tally = self.gate.open(round, zeros)
        self.gate.add(tally, clients, rows)
        averages = self.gate.publish(tally, zeros)[0].clamp(-0.5, 0.5)
        released: dict[str, Metrics] = {}
        for (view, name), average in zip(self._places, averages.tolist(), strict=True):
            released.setdefault(view, {})[f"{name}_mean"] = self._bounds[name] * (average + 0.5)
        return released
