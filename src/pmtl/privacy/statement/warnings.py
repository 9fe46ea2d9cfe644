"""Warnings about a plan, to be shown before anything is spent: each is a sentence, or None."""

from __future__ import annotations

import math

from pmtl.errors import how_many
from pmtl.privacy.plan import PrivacyPlan, default_delta

#: The share of empty rounds and the noise on an average accuracy from which there is a warning.
_MANY_EMPTY, _NOISY_METRICS = 0.05, 0.1


def warn_of_delta(plan: PrivacyPlan) -> str | None:
    """If δ is so large that publishing one client's data would be allowed."""
    if plan.delta < 1 / plan.clients or not plan.private:
        return None
    return (
        f"Delta is {plan.delta:.3g}. With {how_many(plan.clients, 'client')}, "
        f"{1 / plan.clients:.3g} or more would allow publishing the data of one random client: "
        "the default is "
        f"{default_delta(plan.clients):.3g}."
    )


def warn_of_empty_cohorts(plan: PrivacyPlan) -> str | None:
    """If many rounds draw no client."""
    empty = plan.scheme.empty(plan)
    if empty < _MANY_EMPTY:
        return None
    return (
        f"About {empty:.0%} of the rounds draw no client at all: they publish only noise, but are "
        f"charged like the others. Use a larger cohort than {plan.cohort}."
    )


def warn_of_noisy_metrics(metrics: PrivacyPlan | None) -> str | None:
    """If released metrics are mostly noise."""
    if metrics is None or metrics.noise_std < _NOISY_METRICS:
        return None
    return (
        f"The released metrics will say little: the noise on an average accuracy has a standard "
        f"deviation of {metrics.noise_std:.2g}. Evaluate less often (--evaluate-every), give "
        "metrics a larger share (--metrics), or have more clients."
    )


def warn_if_noise_exceeds_signal(
    plan: PrivacyPlan, parameters: int, smallest_block: float = 1.0
) -> str | None:
    """A warning if there is more noise than signal.

    If all uploads had the same direction, the sum over T rounds would have norm Tγ; its noise has
    norm about σ√(dT). A block of the billboard to which only the share `smallest_block` of the
    clients writes has 1/`smallest_block` times the noise.
    """
    if not plan.private:
        return None
    ratio = plan.noise_std * math.sqrt(parameters / plan.rounds) / plan.clip_norm / smallest_block
    if ratio < 2:
        return None
    return (
        "The noise is likely to drown the shared model: with "
        f"{how_many(parameters, 'shared parameter')} it has {ratio:.3g} times the norm of anything "
        f"that {how_many(plan.clients, 'client')} can upload in {how_many(plan.rounds, 'round')} "
        "at this ε. Use a smaller model, fixed features with a linear head, "
        "more clients, or a larger ε; otherwise only the clients' own training is useful."
    )
