"""Cohorts of a fixed size, against outsiders who see only the published models.

Outsiders do not know whether a client took part. For them one round has the amplified profile of
sampling without replacement, replace-one (Balle, Barthe & Gaboardi 2018),

    δ(ε) = p · δ_Gauss(log(1 + (e^ε − 1)/p); μ = 2/z),        p = q/m.

T of these are composed, discretised so that δ can only be too large ("connect the dots",
Doroshenko et al. 2022). This is for comparison only: the guarantee is that of `colluders`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pmtl.privacy.accounting import colluders, gaussian, poisson
from pmtl.privacy.accounting.libraries import load


def outsiders_epsilon(z: float, rate: float, rounds: int, delta: float) -> float:
    """The ε, replace-one, against outsiders."""
    cap = colluders.epsilon(z, rate, rounds, delta, sensitivity=2)
    usable = delta - poisson.rounding(rounds)
    if rate == 1 or cap in (0.0, math.inf) or usable <= 0 or not poisson.computable(z, rounds):
        return cap
    losses = poisson.summed(_one_round(z, rate, rounds, delta), rounds)
    return poisson.smaller(float(losses.get_epsilon_for_delta(usable)), cap)


def _one_round(z: float, rate: float, rounds: int, delta: float) -> Any:
    """The distribution of one round's privacy loss."""
    mu = 2 / z
    # A loss beyond `reach` counts as infinite, which costs δ/10⁴ over all rounds.
    unamplified = gaussian.epsilon(mu, min(1e-4 * delta / (rounds * rate), 0.5))
    reach = float(np.logaddexp(math.log1p(-rate), math.log(rate) + unamplified))
    deviation = poisson.loss_deviation(z, rate, sensitivity=2)
    interval = max(deviation / poisson.points_per_deviation(rounds), 2 * reach / 60_000)
    top = max(math.ceil(reach / interval), 1)
    epsilons = np.arange(top + 1) * interval
    with np.errstate(divide="ignore"):
        log_growth = epsilons + np.log(-np.expm1(-epsilons))  # log(e^ε − 1), which may be large
    stretched = np.logaddexp(0.0, log_growth - math.log(rate))
    deltas = rate * np.exp(gaussian.log_delta(stretched, mu))
    # Replacing is symmetric, so δ(−ε) = 1 − e^(−ε) + e^(−ε)·δ(ε).
    mirrored = -np.expm1(-epsilons) + np.exp(-epsilons) * deltas
    profile = np.clip(np.concatenate([mirrored[:0:-1], deltas]), 0.0, 1.0)
    pld_pmf = load("dp_accounting.pld.pld_pmf")
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -top, top, profile)
