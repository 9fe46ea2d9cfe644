"""Many runs in one, for games that need many: a federation whose billboard has R blocks is R
federations with separate models and noise, in the same loop and through the same gate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pmtl.algorithms import PMTL
from pmtl.algorithms.base import Algorithm
from pmtl.data import FederatedData
from pmtl.models import FlatModel, build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, Simulation, simulate


@dataclass(frozen=True)
class Replicas(PMTL):
    """PMTL in federations of `size` clients side by side, each with its own block."""

    size: int = 1

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        return np.arange(len(clients), dtype=np.int64) // self.size


def side_by_side(
    data: FederatedData,
    algorithm: Algorithm,
    plan: PrivacyPlan,
    lr: float,
    seed: int | None,
    hardened: bool,
) -> Simulation:
    """As many federations with this `plan` as the data has clients for. Clients take one step on
    all of their rows. Without a seed it is a production run that charges no ledger."""
    return simulate(
        data,
        _model(data.input_shape, data.outputs),
        algorithm,
        in_blocks(plan, data.m // plan.clients),
        LocalTraining(steps=1, batch=0, lr=lr),
        seed,
        charge=lambda round: None,
        hardened=hardened,
    )


@lru_cache(maxsize=16)  # Thousands of runs train the same one, and none changes its module.
def _model(input_shape: tuple[int, ...], outputs: int) -> FlatModel:
    return build_model("linear", input_shape, outputs, "regression", 0)


def in_blocks(plan: PrivacyPlan, count: int) -> PrivacyPlan:
    """The plan of a run that is `count` federations with this `plan`. A block's noise is scaled by
    its expected cohort: σ/count in the large plan is σ in each block."""
    return replace(
        plan,
        clients=count * plan.clients,
        cohort=count * plan.cohort,
        noise_std=plan.noise_std / count,
    )


def rows_of_clients(
    x: NDArray[np.float32], y: NDArray[np.float32], names: NDArray[np.str_]
) -> FederatedData:
    """A federation with these training rows for regression."""
    split = np.full(len(y), "train")
    return FederatedData.from_arrays(x, y, names, split, task="regression", validation=0.0)
