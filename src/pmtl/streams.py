"""Random streams without state.

Every random choice of an experiment is a pure function of *(seed, stream, client, round, …)*, by
the SplitMix64 finaliser (Steele, Lea & Flood, OOPSLA 2014). So a resumed run needs no saved
generator state, and a client's batches and coins never depend on which other clients were sampled.
These numbers are for *experiments*: anyone who knows the seed can compute them.

>>> bool((uniforms(7, "sampling", np.arange(3), 0) < 1).all())
True
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def name_key(name: str) -> int:
    """A stable 64-bit key for a name (Python's `hash` differs between processes)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def name_keys(names: tuple[str, ...]) -> Words:
    return np.array([name_key(name) for name in names], dtype=np.uint64)


def words(seed: int, stream: str, *counters: Any) -> Words:
    """64 random bits for every element of the broadcast `counters`."""
    with np.errstate(over="ignore"):
        state = _finalise(np.uint64(seed % 2**64) ^ np.uint64(name_key(stream)))
    return extend(state, *counters)


def extend(state: Any, *counters: Any) -> Words:
    """`words` for further counters; `state` is the result for the counters before them."""
    with np.errstate(over="ignore"):
        for counter in counters:
            state = _finalise((state + _GOLDEN) ^ _finalise(np.asarray(counter).astype(np.uint64)))
    return np.asarray(state, dtype=np.uint64)


def uniforms(seed: int, stream: str, *counters: Any) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits each."""
    return np.asarray((words(seed, stream, *counters) >> np.uint64(11)) * 2.0**-53)


def subseed(seed: int, stream: str, *counters: int) -> int:
    """A 63-bit seed, never negative, for the generator of a library (torch, NumPy)."""
    return int(words(seed, stream, *counters) >> np.uint64(1))


def _finalise(state: Any) -> Any:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
