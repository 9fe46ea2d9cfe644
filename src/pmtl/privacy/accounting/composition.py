"""What several releases cost together, whatever their noise and however their cohorts were drawn.

Every event is about replacing the same one client, so the worst pairs of distributions of the
single releases multiply. Three ways to add them up, from the sharpest to the most general:

| which events | how | |
|---|---|---|
| everybody took part in all of them | μ² adds up: μ² = Σ 4/z² | exact |
| some cohorts drawn with secret coins | privacy losses on one common grid, convolved | a bound |
| some cohorts of a fixed size | who was in is known, how often is not (`colluders`) | a bound |

The last one holds for all events, so it also caps the second. For it, N_g ~ Binomial(T_g, p_g)
participations in each group of equal events give μ² = Σ 4·N_g/z_g² and δ(ε) = E[δ_Gauss(ε; μ)]. The
values of μ² are kept on a list of limited length; where values are merged, they count as the
largest of them, so that δ can only come out too large.

A single group is what `accounting` calls a plan, and its number is the same.

Two things are taken for granted and are the caller's to keep: all noise and all coins are drawn
afresh (two runs with the same seed share both, and this sum says nothing about them), and the
settings of all releases were fixed beforehand. Where they were chosen by looking at earlier
releases, this sum can be too small; `adaptive` has the number that is valid then, and caps are held
by it.

>>> from pmtl.privacy.ledger.events import GaussianEvent
>>> full = GaussianEvent("full", clients=10, cohort=10, clip_norm=1.0, noise_std=1.0)
>>> round(epsilon({full: 25}, delta=1e-5), 4)  # z = 10, so μ = 2·√25/10 = 1
4.3772
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import colluders, gaussian, poisson
from pmtl.privacy.accounting.libraries import load
from pmtl.privacy.ledger.events import GaussianEvent

Floats = NDArray[np.float64]

# How many values of μ² are kept in all and of one group. Merging costs at most log(largest /
# smallest) / 4096 of μ² per group, mostly far less than 0.1%.
_MOST_VALUES, _MOST_OF_A_GROUP = 4096, 1024
# What is left out of the sum in `distance`, and charged in full.
_DISTANCE_TAIL = 1e-9
# The points of a grid for one sampled round (as in `poisson`) and for all full ones together.
_MOST_POINTS, _MOST_POINTS_FULL = 12_000, 200_000


class Group(NamedTuple):
    """Rounds that cost the same: everything about them that matters."""

    z: float
    rate: float
    rounds: int


def epsilon(events: Mapping[GaussianEvent, int], delta: float, sensitivity: int = 2) -> float:
    """An ε that holds at δ for all events together (each as often as its count): replace-one
    (sensitivity 2), or one client's data struck out (1).

    0 where nothing was published, inf where anything was published without noise or clip.
    """
    if not 0 < delta < 1:
        raise PmtlError(
            f"Delta is a probability strictly between 0 and 1, but {delta} was given: "
            "1/(10 · clients) is a good choice."
        )
    certain, coins, known = grouped(events)
    return _epsilon(tuple(certain), tuple(coins), tuple(known), delta, sensitivity)


@lru_cache(maxsize=256)
def _epsilon(
    always: tuple[Group, ...],
    by_coins: tuple[Group, ...],
    by_size: tuple[Group, ...],
    delta: float,
    sensitivity: int,
) -> float:
    certain, coins, known = [*always], [*by_coins], [*by_size]
    if any(not group.z > 0 for group in (*certain, *coins, *known)):
        return math.inf
    drawn = [*coins, *known]
    if not drawn:
        return gaussian.epsilon(sensitivity / 2 * math.sqrt(_always_in(certain)), delta)
    if not certain and len(drawn) == 1:
        scheme = poisson.epsilon if coins else colluders.epsilon
        return scheme(*drawn[0], delta, sensitivity)
    cap = _colluders_epsilon(certain, drawn, delta, sensitivity)
    if known or cap in (0.0, math.inf):
        return cap
    return _losses_epsilon(certain, coins, delta, cap, sensitivity)


def distance(events: Mapping[GaussianEvent, int]) -> float:
    """A bound on the total variation distance between all that is published with one data set of
    a client and with another: what δ would be at ε = 0.

    Where cohorts were drawn, it is that of adversaries who know who was in.
    """
    certain, coins, known = grouped(events)
    if any(not group.z > 0 for group in (*certain, *coins, *known)):
        return 1.0
    values, weights, missed = _mixture(certain, [*coins, *known], tail=_DISTANCE_TAIL)
    # 2Φ(μ/2) − 1 for each.
    apart = load("scipy.special").erf(np.sqrt(values / 8))
    return min(1.0, float(weights @ apart) + missed)


def largest_mu(events: Mapping[GaussianEvent, int]) -> float:
    """μ of a client that is in every release: the most that all events together can reveal."""
    groups = [group for kind in grouped(events) for group in kind]
    if any(not group.z > 0 for group in groups):
        return math.inf
    return math.sqrt(_always_in(groups))


def grouped(
    events: Mapping[GaussianEvent, int],
) -> tuple[list[Group], list[Group], list[Group]]:
    """Equal events together: with everybody, with secret coins, with a cohort of a fixed size."""
    # In a fixed order, so that the order of charges never shows in the last digit.
    ordered = sorted(counted(events).items())

    def of(sampling: str) -> list[Group]:
        return [Group(z, p, count) for (kind, z, p), count in ordered if kind == sampling]

    return of("full"), of("poisson"), of("fixed")


def counted(events: Mapping[GaussianEvent, int]) -> Counter[tuple[str, float, float]]:
    """How often there is a release of a kind: all that its cost depends on, which is how the cohort
    was drawn, the noise multiplier and the rate."""
    counts: Counter[tuple[str, float, float]] = Counter()
    for event, count in events.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise PmtlError(
                f"A privacy event happens a whole number of times, but {count!r} was given."
            )
        if count:
            # A cohort of everybody is full participation, however it is said to be drawn.
            sampling = "full" if event.cohort == event.clients else event.sampling
            counts[sampling, event.noise_multiplier, event.rate] += count
    return counts


def _always_in(groups: list[Group]) -> float:
    """μ² for a client that is in every round and replaced."""
    return math.fsum(group.rounds * _squared_mu(group) for group in groups)


def _squared_mu(group: Group) -> float:
    """μ² of one round with the client in it; as a product, because ** raises where it overflows."""
    return (2 / group.z) * (2 / group.z)


# --- known participation ------------------------------------------------------------------------


def _colluders_epsilon(
    certain: list[Group], drawn: list[Group], delta: float, sensitivity: int
) -> float:
    """ε where all coins are known but have not been tossed yet; as `colluders.epsilon`."""
    moves = sensitivity / 2  # of the 2/z that μ is made of
    always_in = gaussian.epsilon(moves * math.sqrt(_always_in([*certain, *drawn])), delta)
    if always_in in (0.0, math.inf):
        return always_in
    values, weights, missed = _mixture(certain, drawn, colluders._TAIL * delta)
    mus = moves * np.sqrt(values) * gaussian.SAFE
    with np.errstate(divide="ignore"):
        log_weights, log_missed, target = np.log(weights), np.log(missed), math.log(delta)
    logsumexp = load("scipy.special").logsumexp

    def excess(epsilon: float) -> float:
        summed = logsumexp(log_weights + gaussian.log_delta(epsilon, mus))
        return float(np.logaddexp(summed, log_missed)) - target

    if excess(0.0) <= 0:
        return 0.0
    if excess(always_in) >= 0:
        return always_in  # the charged tails weigh more than the little that sampling saves
    return min(gaussian.root(excess, 0.0, always_in), always_in)


def _mixture(certain: list[Group], drawn: list[Group], tail: float) -> tuple[Floats, Floats, float]:
    """The values of μ² over all ways of being drawn with their probabilities, and the probability
    (at most `tail`) of those left out."""
    values, weights, missed = np.array([_always_in(certain)]), np.array([1.0]), 0.0
    for group in drawn:
        more, chances, tail_mass = _participations(group, tail / len(drawn))
        values = np.add.outer(values, more).ravel()
        weights = np.multiply.outer(weights, chances).ravel()
        values, weights = _merged(values, weights, _MOST_VALUES)
        missed += tail_mass
    return values, weights, missed


def _participations(group: Group, tail: float) -> tuple[Floats, Floats, float]:
    """The values of 4N/z² with their probabilities, and the probability of larger ones, which
    count as a certain loss; smaller ones count as the smallest that is listed."""
    times, log_weights, log_missed = colluders.participations(group.rate, group.rounds, tail)
    values = np.asarray(times * _squared_mu(group), dtype=np.float64)
    values, weights = _merged(values, np.exp(log_weights), _MOST_OF_A_GROUP)
    return values, weights, math.exp(log_missed)


def _merged(values: Floats, weights: Floats, most: int) -> tuple[Floats, Floats]:
    """At most `most` values: equal steps in log μ², each standing for the largest value in it."""
    values, place = np.unique(values, return_inverse=True)
    weights = np.asarray(np.bincount(place.ravel(), weights), dtype=np.float64)
    if len(values) <= most:
        return values, weights
    # μ² = 0 (never in) keeps a place of its own: nothing larger may stand for it cheaply.
    start = int(values[0] == 0)
    logs = np.log(values[start:])
    step = (logs[-1] - logs[0]) / (most - 2)
    cells = np.concatenate([np.zeros(start), start + np.floor((logs - logs[0]) / step)])
    firsts = np.flatnonzero(np.diff(cells, prepend=-1))
    lasts = np.append(firsts[1:], len(values)) - 1
    return values[lasts], np.add.reduceat(weights, firsts)


# --- secret coins -------------------------------------------------------------------------------


def _losses_epsilon(
    certain: list[Group], coins: list[Group], delta: float, cap: float, sensitivity: int
) -> float:
    """ε from the distribution of the total privacy loss; the cap where a grid cannot hold it."""
    groups = list(coins)
    if (squared_mu := _always_in(certain)) > 0:
        # Exactly one Gaussian, of the μ of all of them: it is put on the grid only once.
        groups.append(Group(2 / math.sqrt(squared_mu), 1.0, 1))
    # A release with more noise than a grid can hold counts as one with less, which tells more.
    groups = [group._replace(z=min(group.z, poisson.FAINTEST)) for group in groups]
    # The rounding of the transforms, as in `poisson`, for every group's own and for joining them.
    usable = delta - sum(poisson.rounding(group.rounds) for group in groups)
    if usable <= 0 or not all(poisson.computable(group.z, group.rounds) for group in groups):
        return cap
    rounds = sum(group.rounds for group in groups)
    # Noise further out than this counts as an infinite loss, at a price of δ/10⁴ in all.
    log_tail = max(math.log(1e-4 * delta / rounds), -600.0)
    interval = _common_interval(groups, rounds, log_tail, sensitivity)
    total: Any = None
    for group in groups:
        losses = _one_round(group, interval, log_tail, sensitivity)
        if group.rounds > 1:
            losses = losses.self_compose(group.rounds)
        total = losses if total is None else total.compose(losses)
    return poisson.smaller(float(total.get_epsilon_for_delta(usable)), cap)


def _common_interval(groups: list[Group], rounds: int, log_tail: float, sensitivity: int) -> float:
    """The width of a grid for all groups. Rounding adds about h²/4 to the variance of each round,
    so what h has to be small against is the root mean square of the rounds' deviations."""
    variance = math.fsum(
        group.rounds * poisson._loss_deviation(group.z, group.rate, sensitivity) ** 2
        for group in groups
    )
    points = poisson._POINTS_PER_DEVIATION * min(1.0, math.sqrt(20_000 / rounds))
    interval = math.sqrt(variance / rounds) / points
    for z, rate, _ in groups:
        furthest = np.array([1 + z * math.sqrt(-2 * log_tail)])
        reach = float(np.abs(poisson._loss(furthest, z, rate, sensitivity))[0])
        most_points = _MOST_POINTS_FULL if rate == 1 else _MOST_POINTS
        interval = max(interval, 2 * reach / most_points)
    return interval


def _one_round(group: Group, interval: float, log_tail: float, sensitivity: int) -> Any:
    relation = load("dp_accounting").NeighboringRelation
    library = load("dp_accounting.pld.privacy_loss_distribution")
    return library.from_gaussian_mechanism(
        group.z,
        value_discretization_interval=interval,
        log_mass_truncation_bound=log_tail,
        sampling_prob=group.rate,
        neighboring_relation=(
            relation.REPLACE_ONE if sensitivity == 2 else relation.ADD_OR_REMOVE_ONE
        ),
    )
