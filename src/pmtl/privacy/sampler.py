"""The sampler draws the cohorts of a plan, by the plan's sampling scheme (`sampling.py`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pmtl import streams
from pmtl.errors import PmtlError

if TYPE_CHECKING:
    from pmtl.privacy.plan import PrivacyPlan

STREAM = "sampling"


class Sampler:
    """Draws the cohorts of a plan.

    In an experiment a cohort is a pure function of (seed, client keys, round): a resumed run draws
    the same cohorts. The coins are secret only as long as the seed is, and the generator is not
    cryptographic. In production the operating system draws every coin, and no coin is stored.
    """

    def __init__(
        self, plan: PrivacyPlan, seed: int | None, client_keys: NDArray[np.uint64]
    ) -> None:
        """`seed` is None in production; `client_keys` are made from the clients' names."""
        keys = np.array(client_keys, dtype=np.uint64)
        if keys.shape != (plan.clients,):
            raise PmtlError(
                f"The privacy plan is for {plan.clients} clients, but keys of shape {keys.shape} "
                "were given to its sampler: make a plan for the federation that is trained."
            )
        if len(np.unique(keys)) != len(keys):
            # Clients with the same key would have the same coin; the accountant assumes two.
            raise PmtlError(
                "Two clients have the same sampling key, so their coins would not be "
                "independent: give every client a different name."
            )
        self.plan = plan
        self.client_keys = keys
        self._words = None if seed is None else streams.words(seed, STREAM, keys)

    def draw(self, round: int) -> NDArray[np.int64]:
        """The sorted indices of the clients of `round` (counted from 0)."""
        plan = self.plan
        if not 0 <= round < plan.rounds:
            raise PmtlError(
                f"Round {round} is outside the privacy plan, which pays for {plan.rounds} rounds "
                f"numbered 0 to {plan.rounds - 1}: make a plan with more rounds."
            )
        drawn = np.asarray(plan.scheme.draw(self, round))
        whole = drawn.dtype.kind in "iu" or not drawn.size
        cohort = drawn.astype(np.int64) if whole else drawn
        sorted_once = whole and cohort.ndim == 1 and bool((np.diff(cohort) > 0).all())
        if not sorted_once or (len(cohort) and not 0 <= cohort[0] <= cohort[-1] < plan.clients):
            raise PmtlError(
                f"The sampling scheme {plan.sampling!r} drew a cohort that is not a sorted list of "
                f"different clients, numbered 0 to {plan.clients - 1}."
            )
        if not plan.scheme.size_varies and len(cohort) != plan.cohort:
            raise PmtlError(
                f"The sampling scheme {plan.sampling!r} drew {len(cohort)} clients where the plan "
                f"says {plan.cohort}: set size_varies in its class if that is intended."
            )
        return cohort

    def tickets(self, round: int) -> NDArray[np.uint64]:
        """64 random bits for every client, independent in every round."""
        if self._words is None:
            return np.frombuffer(os.urandom(8 * self.plan.clients), dtype=np.uint64)
        return streams.extend(self._words, round)
