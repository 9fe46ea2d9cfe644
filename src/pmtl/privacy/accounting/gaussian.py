"""The Gaussian mechanism, exactly.

Publishing a value that one client can move by Δ, plus N(0, s²), is μ-GDP with μ = Δ/s: telling two
neighbouring federations apart is exactly as hard as telling N(0, 1) from N(μ, 1). T rounds give μ√T
(Dong, Roth & Su 2022). Its (ε, δ) curve has a closed form (Balle & Wang, ICML 2018):

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)

The two terms nearly cancel when μ is small and overflow when ε is large, so we use logarithms.

>>> round(epsilon(mu=1.0, delta=1e-5), 4)
4.3772
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.privacy.accounting.libraries import load

Floats = NDArray[np.float64]

# A root is found to one part in 10^13; this factor makes it a bound.
SAFE = 1 + 1e-12
# The most steps of a search for a root. Halving the whole range of float64 takes 2,100.
MOST_STEPS = 5000


def log_delta(epsilon: Any, mu: Any) -> Any:
    """log δ(ε) of a μ-GDP mechanism; both may be arrays."""
    special = load("scipy.special")
    epsilon, mu = np.asarray(epsilon, dtype=np.float64), np.asarray(mu, dtype=np.float64)
    with np.errstate(all="ignore"):
        near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        log_first = special.log_ndtr(-near)
        # far² = near² + 2ε, so e^ε Φ(−far) = exp(−near²/2)·erfcx(far/√2)/2 without e^ε.
        log_second = np.log(special.erfcx(far / math.sqrt(2)) / 2) - near**2 / 2
        # Widened by the rounding errors of both terms, so that δ is never too small.
        gap = log_second - log_first - 5e-16 * (4 + abs(log_first) + near**2)
        result = log_first + np.log(-np.expm1(np.minimum(gap, 0)))
        # If the terms agree to 11 digits: δ = ∫₀^μ φ(ε/s − s/2) ds ≤ μ·φ(max(near, 0)).
        bound = np.log(mu / math.sqrt(2 * math.pi)) - np.maximum(near, 0) ** 2 / 2
        result = np.where(gap <= -1e-11, result, bound)
    result = np.where(mu > 0, result, -np.inf)
    return result if result.ndim else float(result)


def delta(epsilon: float, mu: float) -> float:
    """The δ that goes with ε."""
    if math.isinf(mu):
        return 1.0
    return math.exp(min(log_delta(epsilon, mu), 0.0))


def epsilon(mu: float, delta: float) -> float:
    """The ε that goes with δ: 0 if δ alone covers everything, inf if μ is infinite."""
    target = math.log(delta)
    if mu == 0 or (mu < math.inf and log_delta(0.0, mu) <= target):
        return 0.0
    # At this ε the first term alone is Φ(−√(2 log 1/δ)) ≤ δ.
    high = mu**2 / 2 + mu * math.sqrt(-2 * target) if mu < 1e150 else math.inf
    if math.isinf(high):
        return math.inf
    if log_delta(high, mu) >= target:
        return SAFE * high  # ε is so large that the root equals its bound
    return root(lambda value: log_delta(value, mu) - target, 0.0, high)


def mu_for(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-private: the inverse of `epsilon` in μ."""
    target, tail = math.log(delta), math.sqrt(-2 * math.log(delta))
    # Two values of μ that are private enough: the positive root of μ²/2 + μ·tail = ε (the bound in
    # `epsilon`), and the μ with δ(0) = erf(μ/√8) = δ.
    by_epsilon = 2 * epsilon / (tail + math.sqrt(tail**2 + 2 * epsilon))
    by_delta = math.sqrt(8) * float(load("scipy.special").erfinv(delta))
    low = max(by_epsilon, by_delta) / SAFE
    if not low < 1e150 or not log_delta(epsilon, low) < target:
        return low  # in float64 the curve equals its bound here
    high = 2 * low
    for _ in range(100):  # more than enough: μ is within a small factor of `low`
        if log_delta(epsilon, high) >= target:
            break
        low, high = high, 2 * high
    else:
        return low
    found = root(lambda value: target - log_delta(epsilon, value), low, high) / SAFE**2
    return max(found, low)


def root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function, positive at `low` and not at `high`, crosses zero: never too small,
    and too large by at most two parts in 10^12. `high` if the search does not converge."""
    brentq = load("scipy.optimize").brentq
    precision = {"xtol": 5e-324, "rtol": 1e-13, "maxiter": MOST_STEPS}
    found, how = brentq(falling, low, high, **precision, full_output=True, disp=False)
    return min(SAFE * float(found), SAFE * high) if how.converged else high


def closed_form(mu: float, delta: float) -> float:
    """The paper's Theorem 1, ε = 4γ√(T·log 1/δ)/(σm), where 2γ√T/(σm) is our μ. It is proved only
    for ε ≤ 2·log(1/δ)."""
    return 2 * mu * math.sqrt(-math.log(delta))
