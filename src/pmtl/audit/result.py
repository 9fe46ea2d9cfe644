"""What is audited, and what comes of it.

An audit is about the *implementation*: it plays small federations whose noise the accountant
calibrates to the ε that is asked for, and looks whether an attack can prove more than that ε to be
lost. So every scenario has a plan of its own, with the same ε and the same way of drawing cohorts,
for as many clients and rounds as its attack needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from pmtl.audit.estimators import Bound
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

CONFIDENCE = 0.999


@dataclass(frozen=True)
class AuditSetup:
    """The plan that is claimed, and how long to attack it."""

    epsilon: float = 2.0
    clients: int = 20
    cohort: int | None = None  #: everybody unless given
    sampling: str | None = None  #: as `PrivacyRequest` has it
    rounds: int = 3  #: of the games that train
    trials: int = 4000
    delta: float | None = None
    clip: float = DEFAULT_CLIP
    seed: int = 0
    confidence: float = CONFIDENCE  #: of every game by itself
    mode: str = "experiment"  #: or "production": the operating system's coins and noise
    hardened: bool | None = None  #: the gate on a grid; by default in production, as in training

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
                f"{self.trials} trials prove next to nothing: play at least 400 (the default is "
                "4000)."
            )
        if self.mode not in MODES:
            raise unknown("mode", self.mode, MODES)
        if self.clients < 2:
            raise PmtlError("An audit needs at least 2 clients: one to attack and one to look.")
        # A cohort that cannot be drawn is refused before anything is played.
        self.request(noise=0.0, rounds=self.rounds).resolve(self.clients)

    @property
    def claimed_delta(self) -> float:
        """δ of the claim."""
        return default_delta(self.clients) if self.delta is None else self.delta

    @property
    def noise_seed(self) -> int | None:
        """What coins and noise are made from; None in production."""
        return self.seed if self.mode == "experiment" else None

    @property
    def on_grid(self) -> bool:
        """Whether the gate that is attacked is the hardened one."""
        return self.mode == "production" if self.hardened is None else self.hardened

    def request(self, **values: Any) -> PrivacyRequest:
        """The claim in the words of a plan."""
        return PrivacyRequest(
            delta=self.delta, clip=self.clip, sampling=self.sampling, cohort=self.cohort, **values
        )

    def plan(
        self,
        rounds: int,
        clients: int | None = None,
        delta: float | None = None,
        everybody: bool = False,
    ) -> PrivacyPlan:
        """The plan that keeps ε for so many rounds; for another number of clients, the cohort is
        the same share of them, and `everybody` plays without sampling."""
        m = self.clients if clients is None else clients
        cohort, sampling = self.cohort, self.sampling
        if everybody:
            cohort, sampling = None, None
        elif cohort is not None and m != self.clients:
            cohort = min(max(1, round(m * cohort / self.clients)), m)
        delta = self.claimed_delta if delta is None else delta
        return calibrated(self.epsilon, m, cohort, sampling, self.clip, rounds, delta)


@lru_cache(maxsize=64)
def calibrated(
    epsilon: float,
    clients: int,
    cohort: int | None,
    sampling: str | None,
    clip: float,
    rounds: int,
    delta: float,
) -> PrivacyPlan:
    """The plan with the least noise that keeps ε; searched for once, as that may take a second."""
    return PrivacyRequest(
        epsilon=epsilon, delta=delta, clip=clip, sampling=sampling, cohort=cohort, rounds=rounds
    ).resolve(clients)


def gaussian_curve(plan: PrivacyPlan) -> bool:
    """Whether the accountant claims the whole curve of a Gaussian mechanism for this plan."""
    return plan.rate == 1


def has_blocks(plan: PrivacyPlan) -> bool:
    """Whether several federations can be one run, side by side: drawing from all of them must be
    drawing from each, which a draw of a fixed number is not."""
    return plan.scheme.coins_are_secret or plan.rate == 1


@dataclass(frozen=True)
class Finding:
    """What one scenario of a game proved."""

    scenario: str
    lower_bound: float
    trials: int
    numbers: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario: str, trials: int, bound: Bound, plan: PrivacyPlan) -> Finding:
        """A finding from a threshold test."""
        rates = {
            "false_positives": f"{bound.false_positives}/{bound.of_negatives}",
            "false_negatives": f"{bound.false_negatives}/{bound.of_positives}",
            "estimator": "Gaussian curve" if gaussian_curve(plan) else "threshold",
            "noise_multiplier": plan.noise_multiplier,
        }
        return cls(scenario, bound.epsilon, trials, rates)


@dataclass(frozen=True)
class AuditResult:
    """The verdict of a game."""

    game: str
    claim_epsilon: float
    lower_bound: float
    confidence: float
    trials: int
    delta: float
    passed: bool
    detail: dict[str, Any]

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
        """The worst of the findings, each of which holds with its share of the doubt.

        `trials` is needed where the findings read the same trials in several ways, `claim` where it
        is not the setup's ε.
        """
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
    """The confidence that each of several scenarios needs for all to hold (Bonferroni)."""
    return 1 - (1 - confidence) / scenarios
