"""Where the noise comes from.

An *experiment* is reproducible: its noise is a function of the seed and the round, and whoever
knows the seed can take it off again. In *production* every number comes from the operating
system's generator, nothing is seeded, and there is no state that could be logged, saved, forked or
reused: two draws, in one process or in two, never share a byte.

Both are standard normal in float64; the gate scales them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod

import numpy as np
import torch
from torch import Tensor

from pmtl.streams import name_key, words

#: Standard normal draws for a round: (round, shape) → float64 tensor.
Noise = Callable[[int, tuple[int, ...]], Tensor]

#: Bytes asked of the operating system at a time.
_CHUNK = 2**24


def seeded_noise(seed: int, release: str = "") -> Noise:
    """Noise for experiments: a stream of its own, a fresh generator for every round.

    `release` names what is published (plan, algorithm, data, …). Two runs that differ in any of it
    have independent noise even with the same seed; if they shared it, two published models with
    different σ would be two equations that give the sum away exactly.

    It is always drawn on the CPU, so that a run on a graphics card has the same noise, and by
    Philox, because torch's own generator keeps only 32 bits of a seed.
    """
    what = name_key(release)

    def draw(round: int, shape: tuple[int, ...]) -> Tensor:
        key = words(seed, "noise", what, round, np.arange(2))
        generator = np.random.Generator(np.random.Philox(key=key))
        return torch.from_numpy(generator.standard_normal(shape))

    return draw


def system_noise(round: int, shape: tuple[int, ...]) -> Tensor:
    """Noise for production: the operating system's bytes through the Box–Muller transform.

    `round` is not used: there is nothing to reproduce.
    """
    pairs = -(-prod(shape) // 2)
    normal = np.empty((pairs, 2))
    for first in range(0, pairs, _CHUNK // 16):
        rows = normal[first : first + _CHUNK // 16]
        drawn = np.frombuffer(os.urandom(16 * len(rows)), dtype=np.uint64).reshape(-1, 2)
        # In (0, 1], so that the logarithm is finite.
        uniform = ((drawn >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
        radius = np.sqrt(-2 * np.log(uniform[:, 0]))
        angle = 2 * np.pi * uniform[:, 1]
        rows[:, 0] = radius * np.cos(angle)
        rows[:, 1] = radius * np.sin(angle)
    return torch.from_numpy(normal.reshape(-1)[: prod(shape)].reshape(shape))
