"""The privacy that a user asks for, before the number of clients is known.

`PrivacyRequest.resolve` makes a `PrivacyPlan` of it, which draws cohorts and states ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pmtl.errors import PmtlError
from pmtl.options import check_options, option
from pmtl.privacy.plan import MOST, PrivacyPlan, check_epsilon, count_of, default_delta
from pmtl.privacy.schemes import SCHEMES, default_sampling

DEFAULT_EPSILON = 2.0
DEFAULT_CLIP, DEFAULT_ROUNDS = 0.5, 20
#: The share of the budget for metrics in production.
DEFAULT_SHARE = 0.1


@dataclass(frozen=True)
class PrivacyRequest:
    """What a user asks for; `resolve` makes a plan of it when the number of clients is known.

    In the methods:
        - clients: m, the number of clients of the federation.
        - plan: a privacy plan.
    """

    epsilon: float | None = option(
        None, help=f"ε for the whole run ({DEFAULT_EPSILON:g} unless given); inf for no privacy."
    )
    noise: float | None = option(
        None, help="σ, the noise's standard deviation on the average; instead of epsilon."
    )
    delta: float | None = option(None, help="δ; 1/(10 · clients) unless given.")
    clip: float | None = option(
        None,
        help=f"γ, the largest norm of an upload ({DEFAULT_CLIP:g} unless given; pooling and "
        "anchored have their own).",
    )
    sampling: str | None = option(
        None,
        help=", ".join(f"{{{name}}} ({kind.in_help})" for name, kind in SCHEMES.items())
        + " or a scheme of your own (package.module:Name); full if everybody takes part, else "
        "poisson.",
    )
    cohort: int | None = option(None, help="q, clients a round; everybody unless given.")
    rounds: int | None = option(
        None,
        help=f"T, rounds ({DEFAULT_ROUNDS} unless given; pooling and anchored have their own).",
    )
    hardened: bool | None = option(
        None,
        help="Draw noise exactly, on a grid of whole numbers; by default only in production.",
    )
    metrics: float | None = option(
        None,
        help="The share of the budget for average metrics on validation rows, released through "
        "the gate; 0.1 in production unless given, else 0 and metrics are exact.",
    )
    loss_bound: float | None = option(
        None,
        help="The largest loss of a client in released metrics; unless given, twice the "
        "loss of guessing, for numbers with public bounds, too, and 1 for other numbers.",
        above=0,
        finite=True,
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.epsilon is not None and self.noise is not None:
            raise PmtlError(
                f"Both epsilon ({self.epsilon:g}) and noise ({self.noise:g}) were given, but each "
                "determines the other: give one of them."
            )
        check_epsilon(self.target)
        if self.metrics is not None and not 0 <= self.metrics < 1:
            raise PmtlError(
                "The share of the budget for metrics is at least 0 and less than 1, but "
                f"{self.metrics:g} was given: {DEFAULT_SHARE:g} is the default in production."
            )
        # A plan checks the other ranges. Not the run's own plan: reading the clients may take long,
        # and the code of the sampling scheme may be somebody else's.
        clients, cohort = MOST["clients"], 1 if self.cohort is None else self.cohort
        self._plan(clients, cohort, default_sampling(clients, cohort))

    @classmethod
    def of(cls, plan: PrivacyPlan) -> PrivacyRequest:
        """A request for exactly this plan."""
        return cls(
            noise=plan.noise_std,
            delta=plan.delta,
            clip=plan.clip_norm,
            sampling=plan.sampling,
            cohort=plan.cohort,
            rounds=plan.rounds,
        )

    def resolve(self, clients: int) -> PrivacyPlan:
        """The plan for a federation: an ε becomes the least noise that keeps it."""
        clients = count_of(clients, "clients")
        cohort = clients if self.cohort is None else self.cohort
        sampling = default_sampling(clients, cohort) if self.sampling is None else self.sampling
        # A plan without noise checks everything else before a calibration that may take a second.
        plan = self._plan(clients, cohort, sampling)
        if self.noise is not None or math.isinf(self.target):
            return plan
        from pmtl.privacy.accounting import accountant

        return replace(plan, noise_std=accountant.noise_for(plan, self.target))

    def _plan(self, clients: int, cohort: int, sampling: str) -> PrivacyPlan:
        """The plan with the noise that was given, or none."""
        return PrivacyPlan(
            clients=clients,
            cohort=cohort,
            sampling=sampling,
            clip_norm=DEFAULT_CLIP if self.clip is None else self.clip,
            noise_std=0.0 if self.noise is None else self.noise,
            rounds=DEFAULT_ROUNDS if self.rounds is None else self.rounds,
            delta=default_delta(clients) if self.delta is None else self.delta,
        )

    @property
    def target(self) -> float:
        """The ε to keep if no noise was given."""
        return DEFAULT_EPSILON if self.epsilon is None else self.epsilon
