"""What is audited, and the verdict.

An audit tests the *implementation*. It attacks small federations, whose noise the accountant
calibrates to the claimed ε, and tries to prove a larger ε. Every scenario has its own plan: the
same ε and sampling, and the number of clients and rounds that its attack needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.audit.estimators import Floats, threshold_bound
from pmtl.errors import PmtlError
from pmtl.privacy.noise import MODES
from pmtl.privacy.plan import (
    DEFAULT_CLIP,
    PrivacyPlan,
    PrivacyRequest,
    check_epsilon,
    default_delta,
)
from pmtl.spec import unknown
from pmtl.streams import subseed

CONFIDENCE = 0.999


@dataclass(frozen=True)
class AuditSetup:
    """The plan that is claimed, and how many trials attack it."""

    epsilon: float = 2.0  #: ε of the claim; the noise is calibrated to it
    clients: int = 20  #: m
    cohort: int | None = None  #: q, the clients of a round; all unless given
    sampling: str | None = None  #: full, poisson or fixed; as in `PrivacyRequest` unless given
    rounds: int = 3  #: T of the games that train
    trials: int = 4000  #: of the one-round game; those of other games are in proportion
    delta: float | None = None  #: δ; 1/(10m) unless given
    clip: float = DEFAULT_CLIP  #: γ, the norm to which uploads are clipped
    seed: int = 0  #: another seed plays other trials
    confidence: float = CONFIDENCE  #: of every single game
    mode: str = "experiment"  #: or "production": coins and noise from the operating system
    hardened: bool | None = None  #: whether the gate is hardened; in production unless given

    def __post_init__(self) -> None:
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
                f"{self.trials} trials prove almost nothing: use at least 400 (default: 4000)."
            )
        if self.mode not in MODES:
            raise unknown("mode", self.mode, MODES)
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
        """The plan with the claimed ε for so many rounds. For another number of clients, the cohort
        is the same share of them; `full_participation` replaces the sampling."""
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


@lru_cache(maxsize=64)
def _resolve(request: PrivacyRequest, clients: int) -> PrivacyPlan:
    """The plan with the least noise for ε; cached, because the search may take a second."""
    return request.resolve(clients)


def gaussian_curve(plan: PrivacyPlan) -> bool:
    """Whether the accountant claims the whole curve of a Gaussian mechanism for this plan."""
    return plan.rate == 1


def has_blocks(plan: PrivacyPlan) -> bool:
    """Whether several federations can be blocks of one run: drawing from all of them has to be the
    same as drawing from each, which is not true of a draw of a fixed number."""
    return plan.scheme.coins_are_secret or plan.rate == 1


def seed_of(seed: int | None, name: str, *counters: int) -> int | None:
    """A seed for a part of a game; None (production) stays None."""
    return None if seed is None else subseed(seed, name, *counters)


@dataclass(frozen=True)
class Finding:
    """What one scenario of a game proved."""

    scenario: str
    lower_bound: float
    trials: int
    numbers: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        scenario: str,
        setup: AuditSetup,
        plan: PrivacyPlan,
        scores: Floats,
        bits: NDArray[np.bool_],
        scenarios: int,
    ) -> Finding:
        """What the scores of one scenario prove; `bits` says which trials played D."""
        curve, confidence = gaussian_curve(plan), share(setup.confidence, scenarios)
        bound = threshold_bound(scores, bits, plan.delta, confidence, curve=curve)
        numbers = {
            "false_positives": f"{bound.false_positives}/{bound.of_negatives}",
            "false_negatives": f"{bound.false_negatives}/{bound.of_positives}",
            "estimator": "Gaussian curve" if curve else "threshold",
            "noise_multiplier": plan.noise_multiplier,
        }
        return cls(scenario, bound.epsilon, len(bits), numbers)


@dataclass(frozen=True)
class AuditResult:
    """The verdict of a game."""

    game: str
    claim_epsilon: float  #: the ε that is claimed
    lower_bound: float  #: the lower bound on ε that the worst scenario proved
    confidence: float  #: with which the bounds of all scenarios hold together
    trials: int  #: how many were played
    delta: float  #: δ of both ε
    passed: bool  #: whether the bound is at most the claim
    detail: dict[str, Any]  #: all scenarios, the name of the worst, and further numbers

    @classmethod
    def of(
        cls,
        game: str,
        setup: AuditSetup,
        findings: Sequence[Finding],
        delta: float,
        trials: int | None = None,
        claim: float | None = None,
        **detail: Any,
    ) -> AuditResult:
        """The worst of the findings. `trials` is given if several findings use the same trials,
        `claim` if it is not the setup's ε."""
        claim = setup.epsilon if claim is None else claim
        worst = max(findings, key=lambda finding: finding.lower_bound)
        return cls(
            game=game,
            claim_epsilon=claim,
            lower_bound=worst.lower_bound,
            confidence=setup.confidence,
            trials=sum(finding.trials for finding in findings) if trials is None else trials,
            delta=delta,
            passed=worst.lower_bound <= claim,
            detail={
                "mode": setup.mode,
                "hardened": setup.on_grid,
                "scenario": worst.scenario,
                "scenarios": [asdict(finding) for finding in findings],
                **detail,
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the sentence included."""
        return asdict(self) | {"sentence": str(self)}

    def __str__(self) -> str:
        verdict = "consistent" if self.passed else "REFUTED"
        return (
            f"{self.game}: the attack proves ε ≥ {self.lower_bound:.3g}; "
            f"the claim is {self.claim_epsilon:.3g}: {verdict}."
        )


def share(confidence: float, scenarios: int) -> float:
    """The confidence that each of several scenarios needs (Bonferroni)."""
    return 1 - (1 - confidence) / scenarios
