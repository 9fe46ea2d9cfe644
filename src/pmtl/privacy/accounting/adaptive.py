"""A meter for releases whose settings may have been chosen by looking at earlier releases.

`composition` adds up releases whose settings were all fixed beforehand. If a person looks at one
release and then decides what to publish next, every possible sequence may be within ε at δ while
the whole is not (`tests/privacy/accounting/test_adaptive.py` has an example with 1.87 times δ). A
cap has to hold in this case, too. So a *filter* says before each release whether it may be made:
one client's account may take another release if at least one of these rules admits all of its
releases, the new one included:

- **settled**: all are releases of one run, within the plan that the ledger holds of it, and the
  ordinary composition of the *whole plan* is at most ε at δ. The plan was fixed before the run's
  first release, and leaving out a part of it, even by looking, tells less than all of it. A part
  that costs at most ε is not enough, because which part it is may be chosen by looking; unless all
  releases of the plan are equal, when a number of them leaves no choice and is enough.
- **full**: all runs have plans in which everybody takes part in every release, and Σμ² is at most
  what ε at δ allows. Gaussian DP has this filter (Smith & Thakurta 2022; Koskela, Tobaben & Honkela
  2023).
- **order α**, for one α of a fixed list: Σ D_α ≤ B(α), whatever the releases are. This is the Rényi
  filter (Feldman & Zrnic 2021).

B(α) is the Rényi divergence that gives ε at δ' = 0.01·δ/(number of orders).

**The promise of a cap at (ε, δ) is (ε, 1.01·δ).** The proof is in docs/privacy.md. It needs that a
rule that admits some releases also admits every part of them, and that only one of the first two
rules is ever used for a client, known before its first release: if the plan of its first run has
full participation only, "settled" is a part of "full"; otherwise "full" never holds, because it
asks that all *plans* in the account are full.

A cap of (ε, δ) admits a whole run that was calibrated to ε at δ. The price of choosing freely is
paid from the second run on, unless everybody takes part in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from pmtl.privacy.accounting import composition, gaussian, renyi
from pmtl.privacy.ledger.charges import Events, total
from pmtl.privacy.ledger.events import GaussianEvent

ORDERS: renyi.Floats = 1 + np.geomspace(0.5, 512, 12)
"""The orders α of the Rényi filter. They must be fixed beforehand: another list is another filter.
The best of them costs at most 5% more than the best order between 1.5 and 513."""

EXTRA = 0.01
"""The part of δ that is left to the Rényi filter: a cap's promise is about (1 + EXTRA)·δ."""


def smallest_cap(
    account: Mapping[str, Events], plans: Mapping[str, Events], delta: float, limit: float = 0.0
) -> float:
    """The smallest cap at δ that admits an account.

    Args:
        account: what was charged, by run.
        plans: the releases that each run fixed beforehand.
        delta: δ.
        limit: a bound of at most this is returned at once; the smallest may take seconds.
    """
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
    # In a fixed order, so that the order of charges never shows in the last digit.
    ordered = sorted(events.items(), key=str)
    divergences = sum(count * _divergence(event) for event, count in ordered if count)
    share = EXTRA * delta / len(ORDERS)
    return gaussian.SAFE * renyi.epsilon(np.asarray(divergences), share, ORDERS)


def all_full(events: Mapping[GaussianEvent, int]) -> bool:
    """Whether everybody takes part in all of them."""
    return all(event.cohort == event.clients for event, count in events.items() if count)


@lru_cache(maxsize=4096)
def _divergence(event: GaussianEvent) -> renyi.Floats:
    return renyi.curve({event: 1}, ORDERS)
