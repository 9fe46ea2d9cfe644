"""Cohorts drawn with independent coins: the privacy loss of the subsampled Gaussian.

The worst pair of outputs of one round, replace-one, is (1−p)·N(0, z²) + p·N(±1, z²), and T rounds
add up T independent privacy losses. dp-accounting puts the loss on a grid, rounded so that δ can
only be too large ("connect the dots"), and convolves it with a Fourier transform. Its `REPLACE_ONE`
doubles the sensitivity *for this distribution*; its Rényi accountant does not
(google/differential-privacy #378) and is used here only for the authors' number. We add:

- **a grid width from the scale.** A width h adds about h²/4 to the variance s² of one round's loss:
  h = s/30 increases ε by about 0.01%. If one client in thousands is drawn, the loss has a long tail
  and needs a wider grid, which may cost 3% after ten thousand rounds;
- **a reserve for rounding.** The transform's errors add up to about ±10⁻¹⁷·T of probability, which
  at δ = 10⁻¹² and T = 10⁴ makes ε too *small*. δ is reduced by 50 times that;
- **a cap**, the exact formula of `colluders` for an adversary who knows the coins. The answer is
  the smaller of the two.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from pmtl.privacy.accounting import colluders, gaussian
from pmtl.privacy.accounting.libraries import load

# The points of a grid for one round's losses.
MOST_POINTS = 12_000
# The range of z for a grid. Below it, exponentials of the grid's width overflow (and ε is above ten
# thousand); above it, differences are smaller than rounding errors (and ε is almost 0).
SMALLEST_Z, LARGEST_Z = 0.01, 1e6
# More rounds than this are not put on a grid: it would take hours.
_MOST_ROUNDS = 1_000_000
# From this many rounds on, the library holds a sum of losses of two or more points in an array.
_DENSE = 1000


@lru_cache(maxsize=1024)  # Searches and comparisons compute the same values again.
def epsilon(z: float, rate: float, rounds: int, delta: float, sensitivity: int) -> float:
    """ε at δ for noise multiplier z: replace-one (sensitivity 2) or zero-out (1)."""
    losses = partial(_composed, z, rate, rounds, delta, sensitivity)
    return _capped(losses, z, rate, rounds, delta, sensitivity)


def _capped(
    losses: Callable[[], Any], z: float, rate: float, rounds: int, delta: float, sensitivity: int
) -> float:
    """ε from the distribution of all rounds' losses, at most the ε of known coins."""
    cap = colluders.epsilon(z, rate, rounds, delta, sensitivity)
    usable = delta - rounding(rounds)
    if rate == 1 or cap in (0.0, math.inf) or usable <= 0 or not computable(z, rounds):
        return cap
    return smaller(float(losses().get_epsilon_for_delta(usable)), cap)


def delta(z: float, rate: float, rounds: int, epsilon: float, sensitivity: int) -> float:
    """δ at ε for noise multiplier z."""
    cap = colluders.delta(z, rate, rounds, epsilon, sensitivity)
    if rate == 1 or cap <= rounding(rounds) or not computable(z, rounds):
        return cap
    # The grid depends on how small δ is, so δ is computed twice.
    answer = rounding(rounds)
    for _ in range(2):
        losses = _composed(z, rate, rounds, answer, sensitivity)
        answer = float(losses.get_delta_for_epsilon(epsilon)) + rounding(rounds)
    return smaller(answer, cap)


@lru_cache(maxsize=256)  # A run and its readers compute the same plan.
def authors_epsilon(z: float, rate: float, rounds: int, delta: float) -> float:
    """The ε that the authors' code reports: Rényi accounting, Poisson coins, one client added or
    removed. For comparison only: the paper's definition replaces a client."""
    dp, rdp = load("dp_accounting"), load("dp_accounting.rdp")
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    z = min(max(z, 1e-6), 1e6)  # outside these the library overflows
    logger = logging.getLogger("absl")  # It warns about every Rényi order that it skips.
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), rounds)
        return float(accountant.get_epsilon(delta))
    finally:
        logger.setLevel(level)


def rounding(rounds: int) -> float:
    """A bound on the rounding errors of the transform in δ (measured: a fiftieth of this)."""
    return 1e-13 + 1e-15 * rounds


def computable(z: float, rounds: int) -> bool:
    """Whether a grid can hold the losses; otherwise the cap is used."""
    return SMALLEST_Z <= z <= LARGEST_Z and rounds <= _MOST_ROUNDS


def smaller(value: float, cap: float) -> float:
    """The smaller of two bounds; the cap if `value` is NaN."""
    return value if value < cap else cap


def grid_interval(deviation: float, furthest: float, rounds: int, points: int) -> float:
    """The width of a grid for losses up to ±`furthest`: 30 points for one `deviation` of a round's
    loss, fewer for very many rounds, to save time, and at most `points` in all. A wider grid only
    makes ε larger."""
    per_deviation = 30 * min(1.0, math.sqrt(20_000 / rounds))
    return max(deviation / per_deviation, 2 * furthest / points)


def log_tail(delta: float, rounds: int) -> float:
    """Noise with a log-probability below this counts as an infinite loss, which costs δ/10⁴."""
    return max(math.log(1e-4 * delta / rounds), -600.0)


def reach(z: float, rate: float, log_tail: float, sensitivity: int) -> float:
    """The largest loss of a round that does not count as infinite."""
    furthest = np.array([1 + z * math.sqrt(-2 * log_tail)])
    return float(np.abs(_loss(furthest, z, rate, sensitivity))[0])


def one_round(z: float, rate: float, interval: float, log_tail: float, sensitivity: int) -> Any:
    """The distribution of one round's privacy loss, on a grid of width `interval`."""
    relation = load("dp_accounting").NeighboringRelation
    library = load("dp_accounting.pld.privacy_loss_distribution")
    return library.from_gaussian_mechanism(
        z,
        value_discretization_interval=interval,
        log_mass_truncation_bound=log_tail,
        sampling_prob=rate,
        neighboring_relation=(
            relation.REPLACE_ONE if sensitivity == 2 else relation.ADD_OR_REMOVE_ONE
        ),
    )


def repeated(losses: Any, rounds: int) -> Any:
    """The distribution of the sum of `rounds` independent losses."""
    both = [losses._pmf_remove] if losses._symmetric else [losses._pmf_remove, losses._pmf_add]
    return type(losses)(*(summed(part, rounds) for part in both))


def summed(part: Any, rounds: int) -> Any:
    """The same for one of the two directions.

    To choose between a dictionary and an array, the library computes points^rounds. For very many
    rounds this number has millions of digits and takes seconds, and the choice is an array."""
    if rounds >= _DENSE and part.size > 1:
        part = part.to_dense_pmf()
    return part.self_compose(rounds)


def _composed(z: float, rate: float, rounds: int, delta: float, sensitivity: int) -> Any:
    """The distribution of the total privacy loss after all rounds."""
    tail = log_tail(delta, rounds)
    deviation, furthest = loss_deviation(z, rate, sensitivity), reach(z, rate, tail, sensitivity)
    interval = grid_interval(deviation, furthest, rounds, MOST_POINTS)
    return repeated(one_round(z, rate, interval, tail, sensitivity), rounds)


def _loss(x: Any, z: float, rate: float, sensitivity: int) -> Any:
    """log P(x)/Q(x) for P = (1−p)·N(0, z²) + p·N(1, z²) and its counterpart Q."""
    absent = math.log1p(-rate) if rate < 1 else -math.inf
    present = math.log(rate) + (x - 0.5) / z**2
    if sensitivity == 1:
        return np.logaddexp(absent, present)
    return np.logaddexp(absent, present) - np.logaddexp(absent, math.log(rate) - (x + 0.5) / z**2)


def loss_deviation(z: float, rate: float, sensitivity: int) -> float:
    """The standard deviation of one round's loss under P, by quadrature."""
    steps = np.linspace(-10, 10, 801)
    weights = np.exp(-(steps**2) / 2)
    weights /= weights.sum()
    losses = _loss(np.concatenate([z * steps, 1 + z * steps]), z, rate, sensitivity)
    weights = np.concatenate([(1 - rate) * weights, rate * weights])
    return float(math.sqrt(weights @ (losses - weights @ losses) ** 2))


def outsiders_epsilon(z: float, rate: float, rounds: int, delta: float) -> float:
    """The ε of cohorts of a fixed size, replace-one, against outsiders who see only the published
    models. For comparison only: the guarantee is the ε of `colluders`.

    Outsiders do not know whether a client took part. For them one round has the amplified profile
    of sampling without replacement (Balle, Barthe & Gaboardi 2018),

        δ(ε) = p · δ_Gauss(log(1 + (e^ε − 1)/p); μ = 2/z),        p = q/m.

    T of these are composed, discretised so that δ can only be too large ("connect the dots",
    Doroshenko et al. 2022).
    """
    losses = partial(_outsiders_losses, z, rate, rounds, delta)
    return _capped(losses, z, rate, rounds, delta, sensitivity=2)


def _outsiders_losses(z: float, rate: float, rounds: int, delta: float) -> Any:
    """The distribution of the privacy loss of all rounds."""
    mu = 2 / z
    # A loss beyond `reach` counts as infinite, which costs δ/10⁴ over all rounds.
    unamplified = gaussian.epsilon(mu, min(1e-4 * delta / (rounds * rate), 0.5))
    reach = float(np.logaddexp(math.log1p(-rate), math.log(rate) + unamplified))
    deviation = loss_deviation(z, rate, sensitivity=2)
    interval = grid_interval(deviation, reach, rounds, points=60_000)
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
    create = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap
    return summed(create(interval, -top, top, profile), rounds)
