"""Warnings about a plan, to be given before anything is spent: each is a sentence, or None."""

from __future__ import annotations

import math

from pmtl.privacy.plan import PrivacyPlan, default_delta

#: The share of empty rounds, and the noise on an average accuracy, from which a warning is given.
_MANY_EMPTY, _NOISY_METRICS = 0.05, 0.1


def warn_of_delta(plan: PrivacyPlan) -> str | None:
    """Of a δ at which the guarantee allows publishing somebody's data."""
    if plan.delta < 1 / plan.clients or not plan.private:
        return None
    return (
        f"Delta is {plan.delta:.3g}, and with {plan.clients} clients anything from "
        f"{1 / plan.clients:.3g} on would allow publishing one random client's data outright: the "
        f"default is {default_delta(plan.clients):.3g}."
    )


def warn_of_empty_cohorts(plan: PrivacyPlan) -> str | None:
    """Of coins that often choose nobody."""
    empty = plan.scheme.empty(plan)
    if empty < _MANY_EMPTY:
        return None
    return (
        f"About {empty:.0%} of the rounds draw no client at all: they publish noise alone and are "
        f"charged all the same. Use a larger cohort than {plan.cohort}."
    )


def warn_of_noisy_metrics(metrics: PrivacyPlan | None) -> str | None:
    """Of released metrics that are mostly noise."""
    if metrics is None or metrics.noise_std < _NOISY_METRICS:
        return None
    return (
        f"The released metrics will say little: the noise on an average accuracy has a standard "
        f"deviation of {metrics.noise_std:.2g}. Evaluate less often (--evaluate-every), give "
        "metrics a larger share (--metrics), or have more clients."
    )


def warn_if_drowned(plan: PrivacyPlan, parameters: int, smallest_block: float = 1.0) -> str | None:
    """Of more noise than signal.

    If every client pushed in the same direction in every round, the sum over T rounds would have
    norm Tγ; the noise in it has norm about σ√(dT). A block of the billboard that only a part of
    the clients writes to (`smallest_block`, as a share) has 1/`smallest_block` times the noise.
    """
    if not plan.private:
        return None
    ratio = plan.noise_std * math.sqrt(parameters / plan.rounds) / plan.clip_norm / smallest_block
    if ratio < 2:
        return None
    return (
        f"The noise is likely to drown the shared model: with {parameters:,} shared parameters it "
        f"has {ratio:.3g} times the norm of anything {plan.clients} clients can say in "
        f"{plan.rounds} rounds at this ε. Use a smaller model, fixed features with a linear head, "
        "more clients, or a larger ε; what remains useful otherwise is the clients' own training."
    )
