"""What those can learn who know in which rounds a client took part.

When a cohort has a fixed size, the other m − 1 clients together count who of them was drawn; if it
was q − 1, the last one was in. So they know in which rounds a client took part. What nobody chose
is how often: N ~ Binomial(T, p) rounds, each a Gaussian with μ = 2/z, hence

    δ(ε) = E[ δ_Gauss(ε; 2√N/z) ].

The same number is of use wherever a client is in a round with probability p, independently of
the other rounds, and its coins are *secret* (Poisson): whoever is told the coins can forget them
again, so it bounds those schemes, too. It needs no grid and no Fourier transform and stays exact
where they run out of digits.

`sensitivity` is what one client can do to the sum, in units of γ: 2 if its data are replaced, 1 if
they are struck out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pmtl.privacy import gaussian
from pmtl.privacy.libraries import load

# The binomial's far tails hold this fraction of δ and are charged in full instead of summed.
_TAIL = 1e-7


def epsilon(z: float, rate: float, rounds: int, delta: float, sensitivity: int) -> float:
    """The ε at δ for noise multiplier z."""
    always_in = gaussian.epsilon(sensitivity * math.sqrt(rounds) / z, delta)
    if rate == 1 or always_in in (0.0, math.inf):
        return always_in
    log_delta = _log_delta(z, rate, rounds, sensitivity, tail=_TAIL * delta)
    target = math.log(delta)
    if log_delta(0.0) <= target:
        return 0.0
    if log_delta(always_in) >= target:
        return always_in  # the charged tails weigh more than the little that sampling saves
    brentq = load("scipy.optimize").brentq
    root = brentq(lambda value: log_delta(value) - target, 0.0, always_in, xtol=1e-300, rtol=1e-13)
    return min(gaussian.SAFE * float(root), always_in)


def delta(z: float, rate: float, rounds: int, epsilon: float, sensitivity: int) -> float:
    """The δ at ε for noise multiplier z."""
    always_in = gaussian.delta(epsilon, sensitivity * math.sqrt(rounds) / z)
    if rate == 1 or always_in == 0:
        return always_in
    log_delta = _log_delta(z, rate, rounds, sensitivity, tail=1e-18)
    return min(math.exp(log_delta(epsilon)), always_in)


def _log_delta(
    z: float, rate: float, rounds: int, sensitivity: int, tail: float
) -> Callable[[float], float]:
    """ε ↦ log δ(ε), never less than the truth."""
    binomial = load("scipy.stats").binom(rounds, rate)
    logsumexp = load("scipy.special").logsumexp
    fewest, most = max(int(binomial.ppf(tail)), 0), min(int(binomial.isf(tail)) + 1, rounds)
    times = np.arange(fewest, most + 1)
    log_weights = binomial.logpmf(times)
    # Fewer participations reveal less, so they may count as the fewest that are summed; more of
    # them count as a certain loss.
    log_weights[0] = binomial.logcdf(fewest)
    log_missed = float(binomial.logsf(most)) if most < rounds else -math.inf
    mus = sensitivity * np.sqrt(times) / z

    def log_delta(epsilon: float) -> float:
        summed = logsumexp(log_weights + gaussian.log_delta(epsilon, mus))
        return min(float(np.logaddexp(summed, log_missed)), 0.0)

    return log_delta
