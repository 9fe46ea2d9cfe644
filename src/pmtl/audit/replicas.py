"""Federations side by side: many runs in one, for games that need many.

The billboard may have several blocks (clusters that share a model), and a federation of R blocks is
R federations with separate models and noise, through the same loop and the same gate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pmtl.algorithms import PMTL
from pmtl.privacy.plan import PrivacyPlan


@dataclass(frozen=True)
class Replicas(PMTL):
    """PMTL in federations of `size` clients side by side, each with its own block."""

    size: int = 1

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        return np.arange(len(clients), dtype=np.int64) // self.size


def side_by_side(plan: PrivacyPlan, count: int) -> PrivacyPlan:
    """The plan of `count` federations, each of which has the plan that is given.

    A block's divisor is its own expected cohort, and its noise is scaled by it: σ/count in the
    large plan is σ in each block.
    """
    return replace(
        plan,
        clients=count * plan.clients,
        cohort=count * plan.cohort,
        noise_std=plan.noise_std / count,
    )
