"""The cost against an adversary who knows in which rounds a client took part.

With cohorts of a fixed size, the other m − 1 clients together count how many of them were drawn,
so they know in which rounds the last client took part: N ~ Binomial(T, p) rounds, each a Gaussian
with μ = 2/z, hence

    δ(ε) = E[ δ_Gauss(ε; 2√N/z) ].

This also bounds schemes with *secret* coins (Poisson), because an adversary can ignore coins that
it knows. It needs no grid and no Fourier transform, so it is exact for every δ. `sensitivity` is 2
if a client's data are replaced, 1 if they are left out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pmtl.privacy.accounting import gaussian
from pmtl.privacy.accounting.gaussian import Floats
from pmtl.privacy.accounting.libraries import load

# The far tails of the binomial have this fraction of δ; they are added to δ instead of summed.
TAIL = 1e-7
# At most this many numbers of participations. If there are more, neighbours count as the largest of
# them, and their probabilities are increased by a millionth for rounding.
_MOST_VALUES = 8192


class Mixture(NamedTuple):
    """A Gaussian with a random μ."""

    mus: Floats  #: the possible values
    log_weights: Floats  #: the logarithms of their probabilities
    log_missed: float  #: log probability of all other values, which count as δ

    def log_delta(self, epsilon: float) -> float:
        """An upper bound of log δ(ε)."""
        logsumexp = load("scipy.special").logsumexp
        summed = logsumexp(self.log_weights + gaussian.log_delta(epsilon, self.mus))
        return min(float(np.logaddexp(summed, self.log_missed)), 0.0)

    def epsilon(self, delta: float, always_in: float) -> float:
        """ε at δ, at most `always_in`, the ε of a client that is in every round."""
        target = math.log(delta)
        if self.log_delta(0.0) <= target:
            return 0.0
        if self.log_delta(always_in) >= target:
            return always_in  # the tails cost more than sampling saves
        found = gaussian.root(lambda value: self.log_delta(value) - target, 0.0, always_in)
        return min(found, always_in)


def epsilon(z: float, rate: float, rounds: int, delta: float, sensitivity: int) -> float:
    """The ε at δ for noise multiplier z."""
    always_in = gaussian.epsilon(sensitivity * math.sqrt(rounds) / z, delta)
    if rate == 1 or always_in in (0.0, math.inf):
        return always_in
    return _mixture(z, rate, rounds, sensitivity, TAIL * delta).epsilon(delta, always_in)


def delta(z: float, rate: float, rounds: int, epsilon: float, sensitivity: int) -> float:
    """The δ at ε for noise multiplier z."""
    always_in = gaussian.delta(epsilon, sensitivity * math.sqrt(rounds) / z)
    if rate == 1 or always_in == 0:
        return always_in
    mixture = _mixture(z, rate, rounds, sensitivity, tail=1e-18)
    return min(math.exp(mixture.log_delta(epsilon)), always_in)


def _mixture(z: float, rate: float, rounds: int, sensitivity: int, tail: float) -> Mixture:
    times, log_weights, log_missed = participations(rate, rounds, tail)
    return Mixture(sensitivity * np.sqrt(times) / z, log_weights, log_missed)


def participations(rate: float, rounds: int, tail: float) -> tuple[Floats, Floats, float]:
    """How often a client is drawn in `rounds` rounds: numbers of participations, their log
    probabilities, and the log probability (at most `tail`) of more than the last number.

    Fewer than the first count as the first, because they reveal less.
    """
    binomial = load("scipy.stats").binom(rounds, rate)
    fewest, most = max(int(binomial.ppf(tail)), 0), min(int(binomial.isf(tail)) + 1, rounds)
    if most - fewest < _MOST_VALUES:
        times = np.arange(fewest, most + 1, dtype=np.float64)
        log_weights = np.asarray(binomial.logpmf(times), dtype=np.float64)
    else:
        times = np.unique(np.linspace(fewest, most, _MOST_VALUES).round())
        # Differences from the nearer end, which are more precise.
        from_below, from_above = np.diff(binomial.cdf(times)), -np.diff(binomial.sf(times))
        steps = np.where(times[1:] <= rounds * rate, from_below, from_above)
        with np.errstate(divide="ignore"):
            log_weights = np.log(np.maximum(np.append(0.0, steps), 0.0)) + 1e-6
    log_weights[0] = binomial.logcdf(fewest)
    log_missed = float(binomial.logsf(most)) if most < rounds else -math.inf
    return times, log_weights, log_missed
