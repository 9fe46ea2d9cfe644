"""What (ε, δ) means for an attacker.

The attacker knows two data sets of a client, sees everything that was published, and says which of
the two was used. If the mechanism is (ε, δ)-private, then for every decision rule

    hits ≤ e^ε · false alarms + δ     and     1 − false alarms ≤ e^ε · (1 − hits) + δ

(Wasserman & Zhou 2010; Kairouz, Oh & Viswanath 2015). Everything here follows from these two lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pmtl.privacy.accounting import composition
from pmtl.privacy.ledger.events import GaussianEvent

#: The rate of false alarms for which hits are reported.
FALSE_ALARMS = 0.01


def stated_deltas(delta: float) -> tuple[float, ...]:
    """At which δ a guarantee is stated: the plan's own, and these where they are smaller."""
    return (delta, *(other for other in (1e-5, 1e-6) if other < delta))


def success(epsilon: float, delta: float) -> float:
    """The largest probability that the attacker is right, if both data sets are equally likely.
    Adding the two lines: hits + (1 − false alarms) ≤ 2·(e^ε + δ)/(e^ε + 1)."""
    odds_against = math.exp(-epsilon)
    return min(1.0, (1 + delta * odds_against) / (1 + odds_against))


def hits(epsilon: float, delta: float, false_alarms: float = FALSE_ALARMS) -> float:
    """The largest rate of hits at this rate of false alarms."""
    by_first = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    by_second = 1 - math.exp(-epsilon) * (1 - false_alarms - delta)
    return min(1.0, by_first, by_second)


@dataclass(frozen=True)
class Guarantee:
    """One point of a mechanism's ε(δ), and its bounds on an attacker."""

    delta: float
    epsilon: float  #: one client's data replaced by any other
    zero_out: float  #: one client's data left out
    attacker_right: float  #: the bound of `success` for the replaced client
    attacker_hits: float  #: the bound of `hits` for the replaced client

    @classmethod
    def of(cls, events: Mapping[GaussianEvent, int], delta: float) -> Guarantee:
        """The point at δ for all these releases together."""
        epsilon = composition.epsilon(events, delta)
        zero_out = composition.epsilon(events, delta, sensitivity=1)
        return cls.at(epsilon, delta, zero_out)

    @classmethod
    def at(cls, epsilon: float, delta: float, zero_out: float | None = None) -> Guarantee:
        """The point (ε, δ). Leaving a client out costs at most what replacing it costs."""
        left_out = epsilon if zero_out is None else zero_out
        return cls(delta, epsilon, left_out, success(epsilon, delta), hits(epsilon, delta))
