"""What several releases cost together, for any noise and any sampling.

All events are about replacing the same client. Three ways to add them up:

| events | how | |
|---|---|---|
| all clients took part | μ² adds up: μ² = Σ 4/z² | exact |
| some cohorts drawn with secret coins | privacy losses on one common grid, convolved | a bound |
| some cohorts known to colluders | random number of participations (`colluders`) | a bound |

Which of these a sampling scheme is, its class says (`SamplingScheme.charged_as`): every event is
charged as one of the library's schemes.

The last one holds for all events, so it also caps the second. In it, N_g ~ Binomial(T_g, p_g)
participations in each group of equal events give μ² = Σ 4·N_g/z_g² and δ(ε) = E[δ_Gauss(ε; μ)].
Values of μ² that are merged count as the largest of them, so δ can only be too large.

The result is valid if all noise and all coins are independent (not two runs with one seed), and if
the settings of all releases were fixed beforehand. `adaptive` covers settings that were chosen by
looking at earlier releases.

>>> from pmtl.privacy.ledger.events import GaussianEvent
>>> full = GaussianEvent("full", clients=10, cohort=10, clip_norm=1.0, noise_std=1.0)
>>> round(epsilon({full: 25}, delta=1e-5), 4)  # z = 10, so μ = 2·√25/10 = 1
4.3772
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import colluders, gaussian, poisson
from pmtl.privacy.accounting.gaussian import Floats
from pmtl.privacy.accounting.libraries import load
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.sampling import SamplingScheme
from pmtl.privacy.schemes import find_scheme

# How many values of μ² are kept in total and for one group. Merging increases μ² by at most
# log(largest / smallest) / 4096 per group, mostly far less than 0.1%.
_MOST_VALUES, _MOST_OF_A_GROUP = 4096, 1024
# The probability that is left out of the sum in `distance`, and added to the result.
DISTANCE_TAIL = 1e-9
# The points of the grid for all releases with full participation.
_MOST_POINTS_FULL = 200_000


class Group(NamedTuple):
    """Releases that cost the same."""

    sampling: str  #: a scheme of the library, as which they are charged (`charged_as`)
    z: float
    rate: float  #: the probability that a client takes part in one of them
    rounds: int

    @property
    def scheme(self) -> SamplingScheme:
        return find_scheme(self.sampling)

    @property
    def squared_mu(self) -> float:
        """μ² of one release with the client in it (** would raise on overflow)."""
        return (2 / self.z) * (2 / self.z) if self.z > 0 else math.inf


def epsilon(events: Mapping[GaussianEvent, int], delta: float, sensitivity: int = 2) -> float:
    """An ε that holds at δ for all events together; 0 without events, inf if any event has no noise
    or no clipping. `sensitivity` is 2 if one client's data are replaced, 1 if they are left out."""
    if not 0 < delta < 1:
        raise PmtlError(
            f"Delta is a probability strictly between 0 and 1, but {delta} was given: "
            "1/(10 · clients) is a good choice."
        )
    return _epsilon(tuple(grouped(events)), delta, sensitivity)


@lru_cache(maxsize=256)
def _epsilon(groups: tuple[Group, ...], delta: float, sensitivity: int) -> float:
    if any(not group.z > 0 for group in groups):
        return math.inf
    drawn = [group for group in groups if group.rate < 1]
    if len(groups) == len(drawn) == 1:
        sampling, z, rate, rounds = groups[0]
        return find_scheme(sampling).epsilon(z, rate, rounds, delta, sensitivity)
    moves = sensitivity / 2  # of the 2/z that μ is made of
    always_in = gaussian.epsilon(moves * math.sqrt(_always_in(groups)), delta)
    if not drawn or always_in in (0.0, math.inf):
        return always_in
    values, weights, missed = _mixture(groups, colluders.TAIL * delta)
    with np.errstate(divide="ignore"):
        mus = moves * np.sqrt(values) * gaussian.SAFE
        mixture = colluders.Mixture(mus, np.log(weights), float(np.log(missed)))
    cap = mixture.epsilon(delta, always_in)
    # The only scheme of `charged_as` with secret coins is Poisson's, which may be amplified.
    if cap == 0 or not all(type(group.scheme).coins_are_secret for group in drawn):
        return cap
    return _losses_epsilon(groups, delta, cap, sensitivity)


def distance(events: Mapping[GaussianEvent, int]) -> float:
    """A bound on the total variation distance between all releases with one data set of a client
    and with another (δ at ε = 0), for an adversary who knows the cohorts."""
    groups = grouped(events)
    if any(not group.z > 0 for group in groups):
        return 1.0
    values, weights, missed = _mixture(groups, tail=DISTANCE_TAIL)
    # 2Φ(μ/2) − 1 for each.
    apart = load("scipy.special").erf(np.sqrt(values / 8))
    return min(1.0, float(weights @ apart) + missed)


def largest_mu(events: Mapping[GaussianEvent, int]) -> float:
    """μ of a client that is in every release, the worst case."""
    return math.sqrt(_always_in(grouped(events)))


def grouped(events: Mapping[GaussianEvent, int]) -> list[Group]:
    """Equal events together, ordered: the last digit must not depend on the order of charges."""
    groups = [Group(*cost, count) for cost, count in counted(events).items()]
    return sorted(groups, key=lambda g: (g.rate < 1, not g.scheme.coins_are_secret, g))


def counted(events: Mapping[GaussianEvent, int]) -> Counter[tuple[str, float, float]]:
    """How many releases have the same sampling, noise multiplier and rate."""
    counts: Counter[tuple[str, float, float]] = Counter()
    for event, count in events.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise PmtlError(
                f"A privacy event happens a whole number of times, but {count!r} was given."
            )
        if count:
            sampling, rate = event.cost
            counts[sampling, event.noise_multiplier, rate] += count
    return counts


def _always_in(groups: Sequence[Group]) -> float:
    """μ² for a client that is in every round and replaced."""
    return math.fsum(group.rounds * group.squared_mu for group in groups)


# --- known participation ------------------------------------------------------------------------


def _mixture(groups: Sequence[Group], tail: float) -> tuple[Floats, Floats, float]:
    """The values of μ², their probabilities, and that (at most `tail`) of those left out."""
    certain = [group for group in groups if group.rate == 1]
    drawn = [group for group in groups if group.rate < 1]
    values, weights, missed = np.array([_always_in(certain)]), np.array([1.0]), 0.0
    for group in drawn:
        times, log_weights, log_missed = colluders.participations(
            rate=group.rate, rounds=group.rounds, tail=tail / len(drawn)
        )
        tail_mass = math.exp(log_missed)
        more, chances = _merged(times * group.squared_mu, np.exp(log_weights), _MOST_OF_A_GROUP)
        values = np.add.outer(values, more).ravel()
        weights = np.multiply.outer(weights, chances).ravel()
        values, weights = _merged(values, weights, _MOST_VALUES)
        missed += tail_mass
    return values, weights, missed


def _merged(values: Floats, weights: Floats, most: int) -> tuple[Floats, Floats]:
    """At most `most` values: in equal steps of log μ², the largest value replaces the others."""
    values, place = np.unique(values, return_inverse=True)
    weights = np.asarray(np.bincount(place.ravel(), weights), dtype=np.float64)
    if len(values) <= most:
        return values, weights
    # μ² = 0 (never drawn) is not merged, because log 0 is infinite.
    start = int(values[0] == 0)
    logs = np.log(values[start:])
    step = (logs[-1] - logs[0]) / (most - 2)
    cells = np.concatenate([np.zeros(start), start + np.floor((logs - logs[0]) / step)])
    firsts = np.flatnonzero(np.diff(cells, prepend=-1))
    lasts = np.append(firsts[1:], len(values)) - 1
    return values[lasts], np.add.reduceat(weights, firsts)


# --- secret coins -------------------------------------------------------------------------------


def _losses_epsilon(groups: Sequence[Group], delta: float, cap: float, sensitivity: int) -> float:
    """ε from the distribution of the total privacy loss, or `cap` if no grid can hold it."""
    parts = [(group.z, group.rate, group.rounds) for group in groups if group.rate < 1]
    if (squared_mu := _always_in([group for group in groups if group.rate == 1])) > 0:
        # Together they are one Gaussian.
        parts.append((2 / math.sqrt(squared_mu), 1.0, 1))
    # Less noise reveals more, so it is safe to reduce noise that a grid cannot hold.
    parts = [(min(z, poisson.LARGEST_Z), rate, count) for z, rate, count in parts]
    # Minus the rounding errors of the transforms, as in `poisson`.
    usable = delta - sum(poisson.rounding(count) for _, _, count in parts)
    if usable <= 0 or not all(poisson.computable(z, count) for z, _, count in parts):
        return cap
    rounds = sum(count for _, _, count in parts)
    tail = poisson.log_tail(delta, rounds)
    # Rounding adds about h²/4 to the variance of each round, so the grid's width h has to be small
    # compared with the root mean square of the rounds' deviations.
    variance = math.fsum(
        count * poisson.loss_deviation(z, rate, sensitivity) ** 2 for z, rate, count in parts
    )
    interval = 0.0
    for z, rate, _ in parts:
        points = _MOST_POINTS_FULL if rate == 1 else poisson.MOST_POINTS
        furthest = poisson.reach(z, rate, tail, sensitivity)
        width = poisson.grid_interval(math.sqrt(variance / rounds), furthest, rounds, points)
        interval = max(interval, width)
    total: Any = None
    for z, rate, count in parts:
        losses = poisson.one_round(z, rate, interval, tail, sensitivity)
        if count > 1:
            losses = poisson.repeated(losses, count)
        total = losses if total is None else total.compose(losses)
    return poisson.smaller(float(total.get_epsilon_for_delta(usable)), cap)
