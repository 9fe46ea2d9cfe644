"""What those can learn who know in which rounds a client took part.

When a cohort has a fixed size, the other m − 1 clients together count who of them was drawn; if it
was q − 1, the last one was in. So they know in which rounds a client took part. What nobody chose
is how often: N ~ Binomial(T, p) rounds, each a Gaussian with μ = 2/z, hence

    δ(ε) = E[ δ_Gauss(ε; 2√N/z) ].

It also bounds schemes whose coins are *secret* (Poisson), because an adversary who is told the
coins can ignore them. It needs no grid and no Fourier transform and stays exact where they run out
of digits.

`sensitivity` is what one client can do to the sum, in units of γ: 2 if its data are replaced, 1 if
they are left out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pmtl.privacy.accounting import gaussian
from pmtl.privacy.accounting.libraries import load

Floats = NDArray[np.float64]

# The binomial's far tails hold this fraction of δ and are charged in full instead of summed.
TAIL = 1e-7
# Different numbers of participations. If there are more, neighbours count as the largest
# of them, and their chances, differences of the distribution function, are enlarged by a millionth.
_MOST_VALUES = 8192


class Mixture(NamedTuple):
    """A Gaussian whose μ is not known yet: each possible μ with the logarithm of its chance, and
    that of the chance of a μ that is not listed, which counts as a certain loss."""

    mus: Floats
    log_weights: Floats
    log_missed: float

    def log_delta(self, epsilon: float) -> float:
        """log δ(ε), never less than the truth."""
        logsumexp = load("scipy.special").logsumexp
        summed = logsumexp(self.log_weights + gaussian.log_delta(epsilon, self.mus))
        return min(float(np.logaddexp(summed, self.log_missed)), 0.0)

    def epsilon(self, delta: float, always_in: float) -> float:
        """ε at δ, and not more than `always_in`, the ε of a client that is in every round."""
        target = math.log(delta)
        if self.log_delta(0.0) <= target:
            return 0.0
        if self.log_delta(always_in) >= target:
            return always_in  # the charged tails weigh more than the little that sampling saves
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
    """How often a client is drawn in `rounds` rounds at `rate`: numbers of participations, the
    logarithms of their chances, and that of the chance (at most `tail`) of more than the last.

    Fewer participations reveal less, so those below the first count as the first; more than the
    last must count as a certain loss. At most `_MOST_VALUES` numbers are listed.
    """
    binomial = load("scipy.stats").binom(rounds, rate)
    fewest, most = max(int(binomial.ppf(tail)), 0), min(int(binomial.isf(tail)) + 1, rounds)
    if most - fewest < _MOST_VALUES:
        times = np.arange(fewest, most + 1, dtype=np.float64)
        log_weights = np.asarray(binomial.logpmf(times), dtype=np.float64)
    else:
        times = np.unique(np.linspace(fewest, most, _MOST_VALUES).round())
        # Differences from the nearer end, where they keep their digits.
        from_below, from_above = np.diff(binomial.cdf(times)), -np.diff(binomial.sf(times))
        steps = np.where(times[1:] <= rounds * rate, from_below, from_above)
        with np.errstate(divide="ignore"):
            log_weights = np.log(np.maximum(np.append(0.0, steps), 0.0)) + 1e-6
    log_weights[0] = binomial.logcdf(fewest)
    log_missed = float(binomial.logsf(most)) if most < rounds else -math.inf
    return times, log_weights, log_missed
