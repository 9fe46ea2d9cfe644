"""Gaussian noise from random words.

In an *experiment* the noise is a function of the seed and the round, so anyone who knows the seed
can remove it. In *production* every bit comes from the operating system, and no state is kept.

A 64-bit word becomes a normal number by the inverse of the normal distribution function: the first
bit is the sign, the other bits are a quantile in the lower half. `real` gives float64 numbers,
whose last bits can reveal something about the sum they were added to (Mironov 2012). `rounded`
gives whole numbers that are distributed *exactly* like a rounded Gaussian (`privacy/grid.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import floor, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.errors import PmtlError
from pmtl.streams import name_key, words

#: words(n): the next n random 64-bit words.
WordStream = Callable[[int], NDArray[np.uint64]]
#: source(round): the words of a round.
Source = Callable[[int], WordStream]
#: noise(round, shape): standard normal numbers in float64.
Noise = Callable[[int, tuple[int, ...]], Tensor]

CPU = torch.device("cpu")
#: Words that are converted at a time.
CHUNK = 2**20
#: A bound on the error of the float64 inverse of the normal distribution function, up to `_FAR`.
#: The error is about 2e-14; a test compares it with mpmath.
ERROR, _FAR = 1e-13, 5.0
#: The most words for one number. Each further word is needed with a chance of about 2⁻⁶⁴.
_MOST_WORDS = 16


def seeded_source(seed: int, release: str = "") -> Source:
    """Words for experiments, with a new generator for every round.

    `release` names what is published (plan, algorithm, data, …). Runs that differ in it have
    independent noise even with the same seed: otherwise two published models with the same noise
    and different σ would reveal the sum exactly.

    NumPy's Philox draws on the CPU, so runs on a GPU have the same noise (up to the last bits of
    `real`); torch's generator keeps only 32 bits of a seed.
    """
    what = name_key(release)

    def of_round(round: int) -> WordStream:
        generator = np.random.Philox(key=words(seed, "noise", what, round, np.arange(2)))
        return lambda count: np.asarray(generator.random_raw(count), dtype=np.uint64)

    return of_round


def system_source(round: int) -> WordStream:
    """Words for production, from the operating system."""
    return lambda count: np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def real(words: WordStream, shape: tuple[int, ...], device: torch.device = CPU) -> Tensor:
    """Standard normal numbers in float64."""
    normal = torch.empty(prod(shape), dtype=torch.float64, device=device)
    for part in torch.split(normal, CHUNK):
        drawn = _tensor(words(len(part)), device)
        lengths, _ = _lengths(drawn)
        torch.where(drawn < 0, -lengths, lengths, out=part)
    return normal.reshape(shape)


def rounded(
    words: WordStream, shape: tuple[int, ...], scale: float, device: torch.device = CPU
) -> Tensor:
    """N(0, scale²) rounded to whole numbers, with exactly the right probabilities.

    A word is the beginning of the infinite binary expansion of a uniform number. Mostly it already
    decides which whole number is nearest. Where it does not, or where float64 is not precise
    enough, more bits are drawn and more digits are computed (Haney et al. 2022, "Precision-based
    attacks and interval refining").
    """
    whole = torch.empty(prod(shape), dtype=torch.int64, device=device)
    for part in torch.split(whole, CHUNK):
        drawn = _tensor(words(len(part)), device)
        lengths, places = _lengths(drawn)
        distance = lengths * scale + 0.5
        nearest = distance.floor()
        off = distance - nearest
        error = ERROR * scale
        unsure = (off < error) | (off > 1 - error) | (lengths > _FAR)
        steps = nearest.to(torch.int64)
        for i in torch.nonzero(unsure).flatten().tolist():
            steps[i] = _refine(int(places[i]), float(lengths[i]), scale, words)
        torch.where(drawn < 0, -steps, steps, out=part)
    return whole.reshape(shape)


def _tensor(words: NDArray[np.uint64], device: torch.device) -> Tensor:
    """Words as int64: those whose first bit is set are negative."""
    return torch.tensor(words.view(np.int64)).to(device, non_blocking=True)


def _lengths(words: Tensor) -> tuple[Tensor, Tensor]:
    """|g| and its place: Φ(−|g|) is in [place, place + 1) · 2⁻⁶⁴."""
    places = words & (2**63 - 1)
    middle = (places.to(torch.float64) + 0.5) * 2.0**-64
    return -torch.special.ndtri(middle), places


def _refine(place: int, guess: float, scale: float, words: WordStream) -> int:
    """The whole number nearest to scale·|g|, with as many bits of g's place as needed."""
    bits, near = 64, floor(guess * scale + 0.5)
    for _ in range(_MOST_WORDS):
        if (settled := _settled(place, bits, near, scale)) is not None:
            return settled
        place, bits = (place << 64) | int(words(1)[0]), bits + 64
    raise PmtlError(
        f"The random words for the noise are not random: {_MOST_WORDS} words did not decide one "
        "number. Nothing was published; check the operating system's generator."
    )


def _settled(place: int, bits: int, near: int, scale: float) -> int | None:
    """round(scale·|g|), if it is the same for all g with places in [place, place + 1) · 2⁻ᵇⁱᵗˢ."""
    import mpmath

    # |g| ≥ (n − ½)/scale if and only if g's place is at most Φ(−(n − ½)/scale).
    def limit(n: int) -> mpmath.mpf:
        return mpmath.ldexp(mpmath.ncdf(-(mpmath.mpf(n) - 0.5) / scale), bits)

    with mpmath.workprec(bits + 64):
        slack = mpmath.ldexp(1, -20)  # far more than the error of 64 further bits
        least = _last(lambda n: limit(n) - slack >= place + 1, near)
        if place > 0 and least == _last(lambda n: limit(n) + slack > place, near):
            return least
    return None


def _last(holds: Callable[[int], bool], near: int) -> int:
    """The last n ≥ 0 for which `holds` is true. It is true from 0 up to some n, and false after it.
    The search starts at `near`."""
    low, high, step = near, near + 1, 1
    while low > 0 and not holds(low):
        low, high, step = max(low - step, 0), low, 2 * step
    step = 1
    while holds(high):
        low, high, step = high, high + step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
