"""What the scenarios of a game proved, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pmtl.audit.estimators import Bits, Floats, threshold_bound
from pmtl.audit.setup import AuditSetup
from pmtl.privacy.plan import PrivacyPlan
from pmtl.streams import subseed


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
        bits: Bits,
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
