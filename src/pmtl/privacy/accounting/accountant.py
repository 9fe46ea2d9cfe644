"""The ε of a plan, and the noise or the number of rounds for a given ε.

All numbers are for replacing one client's whole data set by any other, and hold against all other
clients together. The sampling scheme decides how ε is computed (`privacy/schemes.py`):

| sampling | ε is | where |
|---|---|---|
| full | exact | `gaussian` |
| poisson | an upper bound, mostly within 0.02% | `poisson` |
| fixed | exact, without amplification: other clients know who was drawn | `colluders` |

Without noise or without clipping ε is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import composition, gaussian, poisson
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan, check_epsilon, default_delta
from pmtl.privacy.schemes import find_scheme

MOST_ROUNDS = 1_000_000
"""The most rounds that `rounds_for` returns."""
# After computing ε for this many plans, the search for the least noise returns the best so far.
_MOST_PLANS = 100


def epsilon(plan: PrivacyPlan, sensitivity: int = 2) -> float:
    """An ε that holds at the plan's δ; inf without noise or without clipping. `sensitivity` is 2 if
    a client's data are replaced, 1 if they are left out."""
    z = plan.noise_multiplier
    if not z > 0:
        return math.inf
    return plan.scheme.epsilon(z, plan.rate, plan.rounds, plan.delta, sensitivity)


def delta(plan: PrivacyPlan, epsilon: float) -> float:
    """A δ that holds at `epsilon` for the plan's mechanism; the plan's own δ is ignored."""
    if math.isnan(epsilon) or epsilon < 0:
        raise PmtlError(f"Epsilon must be at least 0 to compute delta, but {epsilon} was given.")
    if math.isinf(epsilon):
        return 0.0
    z = plan.noise_multiplier
    if not z > 0:
        return 1.0
    return plan.scheme.delta(z, plan.rate, plan.rounds, epsilon)


def report(plan: PrivacyPlan) -> dict[str, Any]:
    """The ε of a plan and, under `also`, other numbers for comparison:

    - `zero_out`: one client's data left out instead of replaced, same adversary;
    - `authors`: as in the authors' code (Rényi, Poisson coins, one client added or removed);
    - `full_participation`: all clients in every round, with the same noise on the average;
    - `paper_theorem_1`: the paper's closed form for that case, or None and the reason;
    - what the sampling scheme compares with (`SamplingScheme.comparisons`).
    """
    return {
        "epsilon": epsilon(plan),
        "delta": plan.delta,
        "adjacency": plan.adjacency,
        "sampling": plan.sampling,
        "accountant": accountant_of(plan),
        "noise_multiplier": plan.noise_multiplier,
        "rate": plan.rate,
        "holds_against": plan.scheme.holds_against if plan.private else "nobody",
        "also": _comparisons(plan),
    }


def accountant_of(plan: PrivacyPlan) -> str:
    """How the plan's ε is computed, in words."""
    if not plan.private:
        return "none: without noise or without a clip nothing is hidden"
    return find_scheme(plan.scheme.charged_as(plan.rate)[0]).accountant


def _comparisons(plan: PrivacyPlan) -> dict[str, Any]:
    z, rate, rounds = plan.noise_multiplier, plan.rate, plan.rounds
    also: dict[str, Any] = {"zero_out": epsilon(plan, sensitivity=1)}
    if plan.private:
        also["authors"] = poisson.authors_epsilon(z, rate, rounds, plan.delta)
        mu = 2 * math.sqrt(rounds) * rate / z  # all clients, same σ: z·m/q instead of z
    else:
        also["authors"], mu = math.inf, math.inf
    also["full_participation"] = gaussian.epsilon(mu, plan.delta)
    theorem, limit = gaussian.closed_form(mu, plan.delta), -2 * math.log(plan.delta)
    also["paper_theorem_1"] = theorem if theorem <= limit else None
    if theorem > limit:
        also["paper_theorem_1_reason"] = (
            f"its ε would be {theorem:.3g}, but the theorem holds up to 2·log(1/δ) = {limit:.3g}"
            if plan.private
            else "it needs noise and clipping"
        )
    return also | plan.scheme.comparisons(plan)


def noise_for(
    plan: PrivacyPlan, target: float, besides: Mapping[GaussianEvent, int] | None = None
) -> float:
    """The smallest noise_std (within 0.1%, rounded up) with which a plan keeps the ε `target` at
    its δ, together with the releases `besides`. The plan's own noise is ignored."""
    target = check_epsilon(target)
    if math.isinf(target):
        return 0.0
    if math.isinf(plan.clip_norm):
        raise PmtlError(
            f"Without clipping no noise is enough for epsilon {target:g}, because one client's "
            "upload may be arbitrarily large: choose a finite clip norm, or epsilon inf."
        )
    chance = plan.scheme.checked_chance(plan.rate)
    ever_in = -math.expm1(plan.rounds * math.log1p(-chance)) if chance < 1 else 1.0
    if ever_in <= plan.delta:
        raise PmtlError(
            f"A client is ever drawn with a probability of only {ever_in:.3g}, which a delta of "
            f"{plan.delta:.3g} covers even without noise: such a guarantee says nothing. Choose a "
            f"smaller delta (the default is {default_delta(plan.clients):.3g})."
        )
    # A client in every round is the worst case of every sampling scheme, so the noise that is
    # enough for it is an upper bound for the search.
    besides = besides or {}
    spent = math.fsum(count * (2 / event.noise_multiplier) ** 2 for event, count in besides.items())
    mu = gaussian.mu_for(target, plan.delta)
    left = mu * mu - spent
    if not left > 0:
        raise PmtlError(
            f"The other releases alone cost more than epsilon {target:g}: give them more noise."
        )
    enough = 2 * math.sqrt(plan.rounds / left) * (plan.clip_norm / plan.cohort)

    def cost(noise_std: float) -> float:
        noisy = replace(plan, noise_std=noise_std)
        if not besides:
            return epsilon(noisy)
        return composition.epsilon({GaussianEvent.of(noisy): plan.rounds, **besides}, plan.delta)

    more = 1e-12  # only ever the last bits of a rounding
    while cost(enough) > target:
        enough, more = enough * (1 + more), 2 * more
        if more > 1 or not 0 < enough < math.inf:
            raise PmtlError(
                f"No noise could be found that keeps epsilon {target:g} with a clip norm of "
                f"{plan.clip_norm:g}: choose a clip norm nearer to 1, or a larger epsilon."
            )
    if chance == 1:
        return enough
    # A rate of p saves at most a factor p.
    return _least_noise(cost, enough, 0.95 * plan.rate * enough, target)


def _least_noise(
    cost: Callable[[float], float], enough: float, little: float, target: float
) -> float:
    """The noise at which the cost meets the target, within 0.05% and rounded up."""

    def excess(noise_std: float) -> float:
        return _log_ratio(cost(noise_std), target)

    at_enough = excess(enough)
    at_little = excess(little)
    for _ in range(_MOST_PLANS):
        if at_little > 0:
            break
        enough, at_enough = little, at_little
        little, at_little = little / 2, excess(little / 2)
    for _ in range(_MOST_PLANS):
        if not enough > 1.0005 * little > 0:
            break
        middle = _between(enough, at_enough, little, at_little)
        at_middle = excess(middle)
        if at_middle <= 0:
            enough, at_enough = middle, at_middle
        else:
            little, at_little = middle, at_middle
    return enough


def _log_ratio(value: float, target: float) -> float:
    """log(ε/target), bounded so that it is always finite."""
    return math.log(min(max(value / target, 1e-3), 1e9))


def _between(good: float, at_good: float, bad: float, at_bad: float) -> float:
    """Where the line through two log-log points crosses zero, at least 5% away from both ends."""
    share = at_good / (at_good - at_bad)
    return good * math.pow(bad / good, min(max(share, 0.05), 0.95))


def rounds_for(plan: PrivacyPlan, target: float) -> int:
    """The most rounds, up to `MOST_ROUNDS`, with which a plan keeps the ε `target`."""
    target = check_epsilon(target)
    if math.isinf(target):
        return MOST_ROUNDS

    def excess(rounds: int) -> float:
        return _log_ratio(epsilon(replace(plan, rounds=rounds)), target)

    if not plan.private or excess(1) > 0:
        return 0
    # A client in every round is the worst case, so at least this many rounds are possible.
    root = gaussian.mu_for(target, plan.delta) * plan.noise_multiplier / 2
    always_in = root * root
    kept = int(min(max(always_in, 1.0), MOST_ROUNDS))
    at_kept = excess(kept)
    if at_kept > 0:  # the square was rounded up to the next whole number
        kept, at_kept = kept - 1, excess(kept - 1)
    return _last_kept(excess, kept, at_kept)


def _last_kept(excess: Callable[[int], float], kept: int, at_kept: float) -> int:
    """The largest number of rounds without excess, given one that has none."""
    past = kept + 1
    while (at_past := excess(past)) <= 0:
        if past == MOST_ROUNDS:
            return MOST_ROUNDS
        kept, at_kept = past, at_past
        # ε grows about like √T; take a little more than that.
        past = min(int(kept * min(1.1 * math.exp(-2 * at_kept), 1000.0)) + 1, MOST_ROUNDS)
    while past - kept > 1:
        middle = int(_between(kept, at_kept, past, at_past))
        middle = min(max(middle, kept + 1), past - 1)
        at_middle = excess(middle)
        if at_middle <= 0:
            kept, at_kept = middle, at_middle
        else:
            past, at_past = middle, at_middle
    return kept
