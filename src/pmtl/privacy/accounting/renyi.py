"""Rényi divergences of releases, replace-one, for the theorems that `selection` and `adaptive` use.

The divergences of independent releases add up. `composition` is sharper for everything else.

| cohort | one release's divergence of order λ, with μ = 2/z | |
|---|---|---|
| all clients | λμ²/2 | exact |
| a fixed size | log(1 − p + p·exp((λ−1)λμ²/2)) / (λ−1) | exact |
| secret coins | of (1−p)·N(0, z²) + p·N(±1, z²), by quadrature | a bound |

The second row is for an adversary who knows who took part: the moments E[(P/Q)^(λ−1)] without and
with the client, 1 and exp((λ−1)λμ²/2), are averaged. It also bounds the third row, and replaces it
if the quadrature would need too many points. The pair of mixtures is the same as in `poisson`: it
dominates in every hockey-stick divergence, hence in Rényi's, and both directions cost the same.

dp-accounting's Rényi accountant does not double the sensitivity under `REPLACE_ONE`; the tests
compare with it at half the noise.

>>> from pmtl.privacy.ledger.events import GaussianEvent
>>> full = GaussianEvent("full", clients=10, cohort=10, clip_norm=1.0, noise_std=1.0)
>>> round(epsilon(curve({full: 25}), delta=1e-5), 2)  # exactly, and not through Rényi: 4.38
4.73
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from pmtl.privacy.accounting import composition, gaussian
from pmtl.privacy.accounting.gaussian import Floats
from pmtl.privacy.accounting.libraries import load
from pmtl.privacy.ledger.events import GaussianEvent

ORDERS: Floats = 1 + np.geomspace(1e-3, 1e6, 701)
"""The orders λ. Every order gives a valid ε; the best of the list is within 0.1‰ of the best of
all."""

# If a quadrature needs more points than this, the bound with known coins is used.
_MOST_POINTS = 50_000
# The precision of the quadrature: it may miss e^(−40) of the integral between its points, and what
# is this many deviations beyond its peaks.
_LOG_PRECISION, _REACH = 40.0, 10.0


def curve(events: Mapping[GaussianEvent, int], orders: Floats = ORDERS) -> Floats:
    """A bound on the Rényi divergences of all events together; inf without noise or clipping."""
    total = np.zeros_like(orders)
    for group in composition.grouped(events):
        one = group.scheme.renyi(group.z, group.rate, orders) if group.z > 0 else np.inf
        total += group.rounds * one
    return total


def epsilon(divergences: Floats, delta: float, orders: Floats = ORDERS) -> float:
    """The least ε at δ that divergences at `orders` imply (Canonne, Kamath & Steinke 2020,
    Proposition 12): ε = D + log(1 − 1/λ) − (log δ + log λ)/(λ − 1)."""
    values = divergences + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(float(values.min()), 0.0)


def log_delta(divergences: Floats, epsilons: Floats) -> Floats:
    """The same, solved for log δ at each ε."""
    values = (ORDERS - 1) * (divergences + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    lines = values - np.multiply.outer(epsilons, ORDERS - 1)
    return np.asarray(np.minimum(lines.min(axis=-1), 0.0), dtype=np.float64)


def known(z: float, rate: float, orders: Floats) -> Floats:
    """One release in which a client takes part with probability `rate`, known to the adversary."""
    with np.errstate(over="ignore"):
        certain = orders * (2 / z) * (1 / z)
        if rate == 1:
            return certain
        log_moment = (orders - 1) * certain
        # The first form is precise near a moment of 1; the second cannot overflow.
        small = np.log1p(rate * np.expm1(np.minimum(log_moment, 1.0)))
        large = np.logaddexp(math.log1p(-rate), math.log(rate) + log_moment)
        averaged = np.where(log_moment < 1, small, large) / (orders - 1)
        return np.minimum(gaussian.SAFE * averaged, certain)


def secret(z: float, rate: float, orders: Floats) -> Floats:
    """One release with secret coins; at most the divergence with known coins."""
    if not 1e-3 < z < 1e6:
        return known(z, rate, orders)
    divergences = [_log_moment(order, 1 / z, rate) / (order - 1) for order in orders.tolist()]
    return np.minimum(divergences, known(z, rate, orders))


@lru_cache(maxsize=2**16)  # A comparison prices the same plans several times.
def _log_moment(order: float, shift: float, rate: float) -> float:
    """log ∫ P^λ·Q^(1−λ) for the two mixtures in units of the noise, so that N(0, 1) is shifted by
    ±a = ±1/z. An upper bound; inf if it would need too many points.

    The integrand is φ(u)·A^λ·B^(1−λ) with A, B = 1 − p + p·exp(±au − a²/2). Its logarithm's slope
    is −u plus something between 0 and a(2λ−1), so all its peaks lie between 0 and a(2λ−1), and it
    falls off like φ on both sides. A sum over equally spaced points is exact up to a factor
    1 ± 2M/(exp(2πy/h) − 1) if the integrand's modulus on the lines of imaginary part up to ±y
    integrates to at most M times as much as on the real line (Trefethen & Weideman 2014, Theorem
    5.1). There |φ| grows by exp(y²/2), |A| shrinks, and |B| shrinks at most by cos(ay/2).
    """
    step = _step(order, shift)
    top = shift * (2 * order - 1) + _REACH
    if (top + _REACH) / step > _MOST_POINTS:
        return math.inf
    points = np.arange(-_REACH, top + step, step)
    absent, present = math.log1p(-rate), math.log(rate) - shift**2 / 2
    log_a = np.logaddexp(absent, present + shift * points)
    log_b = np.logaddexp(absent, present - shift * points)
    logs = order * log_a - (order - 1) * log_b - points**2 / 2
    summed = float(load("scipy.special").logsumexp(logs))
    # The rounding error of every term is relative to the parts that it is the sum of.
    largest = np.abs(order * log_a) + np.abs((order - 1) * log_b) + points**2 / 2
    rounding = 1e-15 * (10 + float(largest.max()))
    return max(summed + math.log(step / math.sqrt(2 * math.pi)) + rounding, 0.0)


def _step(order: float, shift: float) -> float:
    """The widest spacing of points with that precision, over heights y."""
    heights = np.geomspace(1e-3, 0.99, 200) * min(math.pi / shift, 100.0)
    growth = heights**2 / 2 - (order - 1) * np.log(np.cos(shift * heights / 2))
    return float((2 * math.pi * heights / (growth + _LOG_PRECISION)).max())
