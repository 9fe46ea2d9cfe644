"""Where the noise comes from.

An *experiment* is reproducible: its noise is a function of the seed and the round, and whoever
knows the seed can remove it. In *production* every bit comes from the operating system's generator
and there is no state that could be logged, saved, forked or reused.

Both are a stream of 64-bit words. A word becomes a normal number by the inverse of the normal
distribution function: its first bit is the sign, the others are a place in the lower half. `real`
gives float64 numbers, whose last bits are not quite those of a Gaussian and can reveal something
about the number they were added to (Mironov 2012). `rounded` gives whole numbers that are *exactly*
what rounding a true Gaussian would give, for the hardened gate (`privacy/grid.py`).
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

#: So many random 64-bit words, none of which was given out before.
Words = Callable[[int], NDArray[np.uint64]]
#: The words of a round.
Source = Callable[[int], Words]
#: Standard normal draws for a round: (round, shape) → float64 tensor.
Noise = Callable[[int, tuple[int, ...]], Tensor]

#: Where randomness comes from: a seed, or the operating system.
MODES = ("experiment", "production")

CPU = torch.device("cpu")
#: Words turned into numbers at a time.
_CHUNK = 2**20
#: How far the float64 inverse of the normal distribution function, up to `_FAR`, may be off. It is
#: about 1e-15 (and 2e-14 from the width of a word's interval); a test compares it with mpmath.
_ERROR, _FAR = 1e-13, 5.0
#: Words that one number may take. Each is needed with a chance of about 2⁻⁶⁴ of the one before.
_MOST_WORDS = 16


def seeded_source(seed: int, release: str = "") -> Source:
    """Words for experiments: a stream of its own, a fresh generator for every round.

    `release` names what is published (plan, algorithm, data, …). Two runs that differ in any of it
    have independent noise even with the same seed; if they shared it, two published models with
    different σ would be two equations that reveal the sum exactly.

    The CPU draws them, so that a run on a graphics card has the same noise (but for the last bits
    of `real`), and Philox does, because torch's own generator keeps only 32 bits of a seed.
    """
    what = name_key(release)

    def of_round(round: int) -> Words:
        generator = np.random.Philox(key=words(seed, "noise", what, round, np.arange(2)))
        return lambda count: np.asarray(generator.random_raw(count), dtype=np.uint64)

    return of_round


def system_source(round: int) -> Words:
    """Words for production, from the operating system; there is nothing to reproduce."""
    return lambda count: np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def seeded_noise(seed: int, release: str = "") -> Noise:
    """Standard normal numbers for experiments, from `seeded_source`."""
    source = seeded_source(seed, release)
    return lambda round, shape: real(source(round), shape)


def system_noise(round: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers for production, from `system_source`."""
    return real(system_source(round), shape)


def real(words: Words, shape: tuple[int, ...], device: torch.device = CPU) -> Tensor:
    """Standard normal numbers in float64."""
    normal = torch.empty(prod(shape), dtype=torch.float64, device=device)
    for part in torch.split(normal, _CHUNK):
        drawn = _tensor(words(len(part)), device)
        lengths, _ = _lengths(drawn)
        torch.where(drawn < 0, -lengths, lengths, out=part)
    return normal.reshape(shape)


def rounded(
    words: Words, shape: tuple[int, ...], scale: float, device: torch.device = CPU
) -> Tensor:
    """N(0, scale²) rounded to whole numbers, exactly: no output is a bit more or less likely.

    A word is the beginning of an infinite binary expansion of a uniform number. Mostly it already
    settles which whole number its Gaussian is nearest to; where it does not, or where float64 is
    not sure, more bits are drawn and more digits are computed
    (interval refining: Haney et al. 2022, "Precision-based attacks and interval refining").
    """
    whole = torch.empty(prod(shape), dtype=torch.int64, device=device)
    for part in torch.split(whole, _CHUNK):
        drawn = _tensor(words(len(part)), device)
        lengths, places = _lengths(drawn)
        distance = lengths * scale + 0.5
        nearest = distance.floor()
        off = distance - nearest
        error = _ERROR * scale
        unsure = (off < error) | (off > 1 - error) | (lengths > _FAR)
        steps = nearest.to(torch.int64)
        for i in torch.nonzero(unsure).flatten().tolist():
            steps[i] = _refine(int(places[i]), float(lengths[i]), scale, words)
        torch.where(drawn < 0, -steps, steps, out=part)
    return whole.reshape(shape)


def _tensor(words: NDArray[np.uint64], device: torch.device) -> Tensor:
    """Words as torch has them: the first bit makes them negative."""
    # Not waiting: beside a graphics card there is other work to do, and the words are staged.
    return torch.tensor(words.view(np.int64)).to(device, non_blocking=True)


def _lengths(words: Tensor) -> tuple[Tensor, Tensor]:
    """|g|, and its place: g's distribution function, from the nearer end, lies in
    [place, place + 1) · 2⁻⁶⁴."""
    places = words & (2**63 - 1)
    middle = (places.to(torch.float64) + 0.5) * 2.0**-64
    return -torch.special.ndtri(middle), places


def _refine(place: int, guess: float, scale: float, words: Words) -> int:
    """The whole number nearest to scale·|g|, from as many bits of g's place as it takes."""
    bits, near = 64, floor(guess * scale + 0.5)
    for _ in range(_MOST_WORDS):
        if (settled := _settled(place, bits, near, scale)) is not None:
            return settled
        place, bits = (place << 64) | int(words(1)[0]), bits + 64
    raise PmtlError(
        "The random words that noise is made from cannot be random: the same border was met again "
        "and again. Nothing was published; look at the operating system's generator."
    )


def _settled(place: int, bits: int, near: int, scale: float) -> int | None:
    """round(scale·|g|), if it is the same for all g with places in [place, place + 1) · 2⁻ᵇⁱᵗˢ."""
    import mpmath

    # |g| ≥ (n − ½)/scale exactly if g's place is at most Φ(−(n − ½)/scale).
    def limit(n: int) -> mpmath.mpf:
        return mpmath.ldexp(mpmath.ncdf(-(mpmath.mpf(n) - 0.5) / scale), bits)

    with mpmath.workprec(bits + 64):
        slack = mpmath.ldexp(1, -20)  # far more than the error of 64 further bits
        least = _last(lambda n: limit(n) - slack >= place + 1, near)
        if place > 0 and least == _last(lambda n: limit(n) + slack > place, near):
            return least
    return None


def _last(holds: Callable[[int], bool], near: int) -> int:
    """The last n ≥ 0 for which a condition, true up to some n and then false, holds; it is taken
    to hold at 0, and is looked for from `near` on."""
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
