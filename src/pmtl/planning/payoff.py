"""Noise against signal: when sharing pays, from public numbers alone.

A run publishes T noisy averages of uploads clipped to γ, with noise of standard deviation σ on each
of d coordinates. Updates that are common to all clients add up over rounds to the norm Tργ; the
noise adds up in squares, to the norm σ√(dT). So noise and signal are equal at

    d* = ρ²·R²,    R = γ√T/σ,    ρ = (norm of the mean of the clipped uploads) / γ ≤ 1.

With all clients in every round and a budget of μ (μ-GDP), σ = 2γ√T/(mμ) and R = mμ/2, whatever T
is: more rounds spread the same budget. For other sampling schemes σ comes from the accountant. The
clip cancels. ρ is private and is not known beforehand, so a plan computes several values of it.

A vote of the clients on K cells (how strongly to share) is one more release with all clients: with
the share s of μ² its noise has the norm 2√K/(m·μ·√s) against votes of norm 1.

>>> from pmtl.privacy.request import PrivacyRequest
>>> round(reach(PrivacyRequest(epsilon=2, delta=1 / 205).resolve(205)), 1)  # 205 · 0.817 / 2
83.7
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace

from pmtl.privacy.accounting import accountant, gaussian
from pmtl.privacy.plan import MOST, PrivacyPlan, default_delta

#: A vote chooses between this many cells with this share of the budget (of μ²).
CELLS, VOTE_SHARE = 12, 0.3
#: Noise up to this share of the clip: sharing pays where clients agree moderately (ρ above it).
MODERATE = 1 / 3
#: Noise up to this share of a client's vote: the vote finds how strongly to share.
READABLE_VOTE_NOISE = 1 / 2
#: The advice of a plan; `DEPENDS`: on how much is common to all clients.
SHARE, DEPENDS, ALONE = "share", "depends", "alone"
#: Sharing needs at least two clients.
MIN_CLIENTS = 2


def reach(plan: PrivacyPlan) -> float:
    """R = γ√T/σ, the root of the most numbers that can pay (at ρ = 1); inf without noise."""
    if not plan.noise_std > 0:
        return math.inf
    return plan.clip_norm / plan.noise_std * math.sqrt(plan.rounds)


def noise_ratio(plan: PrivacyPlan, numbers: int) -> float:
    """The norm of the noise of the whole run on `numbers` coordinates, over the norm of the signal
    if all uploads were the same vector of norm γ: √d/R. Sharing pays where ρ is above it."""
    return math.sqrt(numbers) / reach(plan)


def max_shared_numbers(plan: PrivacyPlan, agreement: float) -> float:
    """d*, the most shared numbers that pay if ρ is `agreement`; inf without noise."""
    return (agreement * reach(plan)) ** 2


def strength(plan: PrivacyPlan, epsilon: float) -> float:
    """mμ, for a method of which all clients take part in every release; inf without noise."""
    return math.inf if math.isinf(epsilon) else plan.clients * gaussian.mu_for(epsilon, plan.delta)


def vote_ratio(plan: PrivacyPlan, epsilon: float) -> float:
    """The norm of the noise on a vote over that of a client's vote, at the ε of a run (inf: 0)."""
    return 2 * math.sqrt(CELLS / VOTE_SHARE) / strength(plan, epsilon)


def vote_epsilon(plan: PrivacyPlan, ratio: float) -> float:
    """The ε of a whole run at which a vote has this noise: the inverse of `vote_ratio`."""
    return gaussian.epsilon(2 * math.sqrt(CELLS / VOTE_SHARE) / (plan.clients * ratio), plan.delta)


def epsilon_for(plan: PrivacyPlan, numbers: int, ratio: float) -> float:
    """The ε of this plan with as much noise as gives the `noise_ratio` asked for."""
    if math.isinf(plan.clip_norm):
        return math.inf
    noise = plan.clip_norm * math.sqrt(plan.rounds / numbers) * ratio
    return accountant.epsilon(replace(plan, noise_std=noise))


def advice(noise: float, vote: float) -> str:
    """What to do with a `noise_ratio` and a `vote_ratio` (0 where no vote is needed)."""
    if noise > 1 or vote > READABLE_VOTE_NOISE:
        return ALONE
    return SHARE if noise <= MODERATE else DEPENDS


def clients_for(plan: PrivacyPlan, epsilon: float, excess: float, fixed: bool) -> int | None:
    """The fewest clients that make `excess` 1, at the same ε and rate q/m; None if no number does.

    All noise of a plan falls like 1/(m·μ). This is exact with all clients in every round. For other
    sampling schemes the effect of another δ is approximate (within 5% where we tried).

    Args:
        plan: the plan with the present number of clients.
        epsilon: its ε.
        excess: its noise over the most that is good.
        fixed: whether δ stays as it is; the default, 1/(10m), changes with the number of clients.
    """
    if excess == 0:
        return MIN_CLIENTS

    def strength(clients: int) -> float:
        delta = plan.delta if fixed else default_delta(clients)
        return clients * gaussian.mu_for(epsilon, delta)

    needed = excess * plan.clients * gaussian.mu_for(epsilon, plan.delta)
    numbers = range(MIN_CLIENTS, MOST["clients"] + 1)
    place = bisect_left(numbers, needed, key=strength)
    return numbers[place] if place < len(numbers) else None
