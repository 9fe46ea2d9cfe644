"""Privacy filters: caps for releases whose settings may depend on earlier releases.

`composition` is valid for releases whose settings were all fixed beforehand. If a person looks at
one release to choose the next, it can be too small (the tests have an example with 1.87
times δ). A cap has to hold in this case, too. So a client's account may take a release if at least
one rule admits all of its releases, including the new one:

- **settled**: all are releases of one run, within its plan in the ledger, and the composition of
  the *whole plan* is at most ε at δ: a part of a plan reveals less than the whole, however the part
  was chosen. If all releases of the plan are equal, there is no choice between parts, and it is
  enough that the composition of the part is at most ε.
- **full**: in the plans of all runs all clients take part in every release, and Σμ² is at most what
  ε at δ allows (Gaussian filter: Smith & Thakurta 2022; Koskela, Tobaben & Honkela 2023).
- **order α**, for one α of a fixed list: Σ D_α ≤ B(α), the Rényi divergence that gives ε at
  δ' = 0.01·δ/(number of orders) (Rényi filter: Feldman & Zrnic 2021).

**A cap at (ε, δ) guarantees (ε, 1.01·δ).** The proof (docs/privacy.md) needs that a rule that
admits some releases admits every part of them, and that only one of the first two rules is ever
used for a client, known before its first release: if the plan of its first run is full, "settled"
implies "full"; otherwise "full" never holds, because it needs all *plans* of the account to be
full. So a cap admits one whole run that was calibrated to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from pmtl.privacy.accounting import composition, gaussian, renyi
from pmtl.privacy.accounting.gaussian import Floats
from pmtl.privacy.ledger.events import Events, GaussianEvent, total

ORDERS: Floats = 1 + np.geomspace(0.5, 512, 12)
"""The orders α of the Rényi filter; they must never change. The best of them costs at most 5% more
than the best order between 1.5 and 513."""

EXTRA = 0.01
"""The part of δ for the Rényi filter: a cap holds at (1 + EXTRA)·δ."""


def smallest_cap(
    account: Mapping[str, Events], plans: Mapping[str, Events], delta: float, limit: float = 0.0
) -> float:
    """The smallest cap at δ that admits an account: what was charged, by run. `plans` are all
    releases that each run may make, fixed before its first. Any bound of at most `limit` is good
    enough; computing the smallest may take seconds."""
    charged = total(account.values())
    bound = by_orders(charged, delta)
    if bound <= limit:
        return bound
    planned = [plans.get(run, Counter()) for run in account]
    if all_full(total([charged, *planned])):
        return min(bound, composition.epsilon(charged, delta))
    settled = len(account) == 1 and charged <= planned[0]
    if not settled:
        return bound
    whole = composition.epsilon(planned[0], delta)
    one_kind = len(+planned[0]) == 1
    if one_kind and whole > limit:
        return min(bound, composition.epsilon(charged, delta))
    return min(bound, whole)


def by_orders(events: Mapping[GaussianEvent, int], delta: float) -> float:
    """The smallest cap at δ that the Rényi filter alone admits."""
    if not any(events.values()):
        return 0.0
    # In a fixed order, so that the last digit does not depend on the order of charges.
    ordered = sorted(events.items(), key=str)
    divergences = sum(count * _divergence(event) for event, count in ordered if count)
    share = EXTRA * delta / len(ORDERS)
    return gaussian.SAFE * renyi.epsilon(np.asarray(divergences), share, ORDERS)


def all_full(events: Mapping[GaussianEvent, int]) -> bool:
    """Whether all clients take part in all of them."""
    return all(event.cohort == event.clients for event, count in events.items() if count)


@lru_cache(maxsize=4096)
def _divergence(event: GaussianEvent) -> Floats:
    return renyi.curve({event: 1}, ORDERS)
