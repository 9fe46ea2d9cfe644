"""What is audited: the claim, and how many trials attack it.

An audit tests the *implementation*. It attacks small federations, whose noise the accountant
calibrates to the claimed ε, and tries to prove a larger ε. Every scenario has its own plan: the
same ε and sampling, and the number of clients and rounds that its attack needs.

This module does not import torch, so that `pmtl audit --help` is fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from pmtl.errors import PmtlError
from pmtl.options import check_options, option, same_option
from pmtl.privacy.plan import PrivacyPlan, check_epsilon, default_delta
from pmtl.privacy.request import DEFAULT_CLIP, DEFAULT_EPSILON, PrivacyRequest

CONFIDENCE = 0.999

#: The plan with the least noise for ε; cached, because the search may take a second.
_resolve = lru_cache(maxsize=64)(PrivacyRequest.resolve)


@dataclass(frozen=True)
class AuditSetup:
    """The plan that is claimed, and how many trials attack it."""

    epsilon: float = option(DEFAULT_EPSILON, help="ε of the claim; the noise is calibrated to it.")
    clients: int = option(20, help="m: how many clients the federation has.")
    cohort: int | None = same_option(PrivacyRequest, "cohort")
    sampling: str | None = same_option(PrivacyRequest, "sampling")
    rounds: int = option(3, help="T: rounds of the games that train.")
    trials: int = option(4000, help="Trials of the one-round game; other games in proportion.")
    delta: float | None = same_option(PrivacyRequest, "delta")
    clip: float = option(DEFAULT_CLIP, help="γ, the largest norm of an upload.")
    seed: int = option(0, help="Another seed plays other trials.", at_least=0)
    confidence: float = option(CONFIDENCE, help="The confidence of every single game.")
    mode: str = option(
        "experiment",
        help="{experiment} (seeded) or {production} (the operating system's noise).",
        only_names=True,
    )
    hardened: bool | None = option(
        None, help="Attack the gate with exact noise; by default only in production."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if math.isinf(check_epsilon(self.epsilon)) or not 0 < self.clip < math.inf:
            raise PmtlError(
                "An audit compares an attack with a claim: give a finite epsilon and a finite clip."
            )
        if not 0.5 <= self.confidence < 1:
            raise PmtlError(
                f"The confidence must be at least 0.5 and below 1, but {self.confidence:g} was "
                f"given: {CONFIDENCE} is the default."
            )
        if self.trials < 400:
            raise PmtlError(
                f"{self.trials} trials prove almost nothing: use at least 400 (default: "
                f"{AuditSetup.trials})."
            )
        if self.clients < 2:
            raise PmtlError("An audit needs at least 2 clients: one to attack and one to observe.")
        # A cohort that cannot be drawn is refused before the first game.
        replace(self._request, epsilon=None, noise=0.0).resolve(self.clients)

    @property
    def _request(self) -> PrivacyRequest:
        return PrivacyRequest(
            epsilon=self.epsilon,
            delta=self.claimed_delta,
            clip=self.clip,
            sampling=self.sampling,
            cohort=self.cohort,
            rounds=self.rounds,
        )

    @property
    def claimed_delta(self) -> float:
        """δ of the claim."""
        return default_delta(self.clients) if self.delta is None else self.delta

    @property
    def noise_seed(self) -> int | None:
        """The seed of coins and noise; None in production."""
        return self.seed if self.mode == "experiment" else None

    @property
    def on_grid(self) -> bool:
        """Whether the attacked gate is hardened."""
        return self.mode == "production" if self.hardened is None else self.hardened

    def plan(
        self,
        rounds: int,
        clients: int | None = None,
        delta: float | None = None,
        full_participation: bool = False,
    ) -> PrivacyPlan:
        """The plan with the claimed ε.

        Args:
            rounds: the number of rounds.
            clients: another number of clients; the cohort is scaled in proportion.
            delta: replaces the claimed δ.
            full_participation: replaces the sampling.
        """
        m = self.clients if clients is None else clients
        cohort, sampling = self.cohort, self.sampling
        if full_participation:
            cohort, sampling = None, None
        elif cohort is not None and m != self.clients:
            cohort = min(max(1, round(m * cohort / self.clients)), m)
        delta = self.claimed_delta if delta is None else delta
        request = replace(
            self._request, delta=delta, sampling=sampling, cohort=cohort, rounds=rounds
        )
        return _resolve(request, m)
