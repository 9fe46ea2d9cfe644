"""Noise that sites add in shares: how much of it each adversary does not know.

N sites add one share each. The plan's noise is the sum of n = N − c shares, so that it remains if c
sites collude (`secure_aggregation/shares.py`). An adversary with k of the N shares faces the
others: a noise multiplier of z·√((N − k)/n).

The shares are rounded Gaussians, and their sum has the ε of a Gaussian (docs/secure-aggregation.md
has the proof). For comparison there is the published bound for sums of n discrete Gaussians of
variance s² (Kairouz, Liu & Steinke 2021, Proposition 14). For d numbers, sensitivities Δ₁ and Δ₂
and τ = 10·Σ_{k<n} exp(−2π²s²·k/(k+1)), their Rényi divergence of order λ is at most

    ½λ·min( Δ₂²/(ns²) + 2τd/λ,  Δ₂²/(ns²) + 2τΔ₁/(√n·s) + τ²d,  (Δ₂/(√n·s) + τ√d)² )

>>> round(discrete_gaussian_epsilon(2.0, 100.0, 4, 1000, rounds=1, delta=1e-5), 2)  # exactly: 4.38
4.73
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from pmtl.privacy.accounting import accountant, renyi
from pmtl.privacy.plan import PrivacyPlan

#: The smallest share, in steps of the grid; smaller ones are refused.
LEAST_SHARE = 32.0
#: The most numbers of a release, in the check value.
_NUMBERS = 10**9


def report(plan: PrivacyPlan, sites: int, colluders: int) -> dict[str, Any]:
    """What the noise of a plan in shares is worth.

    - `outsiders`: ε against those who see only what was published;
    - `all_other_sites`: ε against the server with all other sites, who know their shares;
    - `variance`: how much larger the variance of what is published is than the plan's;
    - `discrete_gaussians`: ε of discrete Gaussian shares, by the published bound, where the plan
      has its own.
    """
    z, honest = plan.noise_multiplier, sites - colluders
    bound = discrete_gaussian_epsilon(z, LEAST_SHARE, honest, _NUMBERS, plan.rounds, plan.delta)
    return {
        "sites": sites,
        "colluders": colluders,
        "outsiders": epsilon(plan, sites, colluders, 0),
        "all_other_sites": epsilon(plan, sites, colluders, sites - 1),
        "variance": sites / honest,
        "discrete_gaussians": bound,
    }


def epsilon(plan: PrivacyPlan, sites: int, colluders: int, known: int) -> float:
    """ε against those who know the shares of `known` of the sites."""
    left = math.sqrt((sites - known) / (sites - colluders))
    return accountant.epsilon(replace(plan, noise_std=plan.noise_std * left))


def discrete_gaussian_epsilon(
    z: float, share: float, honest: int, numbers: int, rounds: int, delta: float
) -> float:
    """The published bound for `rounds` sums of `numbers` (d) discrete Gaussians each, one client
    replaced: `honest` (n) shares of the standard deviation `share` (s, in steps), which together
    have the noise multiplier z."""
    terms = [math.exp(-2 * (math.pi * share) ** 2 * k / (k + 1)) for k in range(1, honest)]
    tau = 10 * math.fsum(terms)
    long = 2 / z  # Δ₂/(√n·s)
    wide = long * math.sqrt(numbers)  # Δ₁/(√n·s), at most
    orders = renyi.ORDERS
    divergences = np.minimum(
        orders / 2 * long**2 + tau * numbers,
        orders / 2 * min(long**2 + 2 * tau * wide + tau**2 * numbers,
                         (long + tau * math.sqrt(numbers)) ** 2),
    )  # fmt: skip
    return renyi.epsilon(rounds * divergences, delta)
