"""Random streams that need no state.

Every random choice of an experiment is a pure function of *(seed, stream, client, round, …)*: a
counter-based generator, built on the SplitMix64 finaliser (Steele, Lea & Flood, OOPSLA 2014).
Three things follow that a stateful generator cannot give:

- a resumed run continues to the same bits, because there is no generator state to save;
- a client's batches and coins depend on who the client is and never on who else was sampled;
- a thousand clients draw in one vectorised call.

The streams for initialisation, sampling, local batches and noise differ by name, so drawing from
one never moves another. These numbers are for *experiments*: anyone who knows the seed can
recompute them, so they hide nothing from somebody who does.

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
    """A stable 64-bit key of a stream's or a client's name (Python's own `hash` is salted)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def name_keys(names: tuple[str, ...]) -> Words:
    """The keys of many names, e.g. of every client of a federation."""
    return np.array([name_key(name) for name in names], dtype=np.uint64)


def words(seed: int, stream: str, *counters: Any) -> Words:
    """64 random bits for every element of the broadcast `counters`."""
    with np.errstate(over="ignore"):
        state = _finalise(np.uint64(seed % 2**64) ^ np.uint64(name_key(stream)))
    return go_on(state, *counters)


def go_on(state: Any, *counters: Any) -> Words:
    """`words` with more counters, given the words of the first ones: what does not change from
    draw to draw need not be computed again."""
    with np.errstate(over="ignore"):
        for counter in counters:
            state = _finalise((state + _GOLDEN) ^ _finalise(np.asarray(counter).astype(np.uint64)))
    return np.asarray(state, dtype=np.uint64)


def uniforms(seed: int, stream: str, *counters: Any) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits each."""
    return np.asarray((words(seed, stream, *counters) >> np.uint64(11)) * 2.0**-53)


def subseed(seed: int, stream: str, *counters: int) -> int:
    """A seed for a library's own generator (torch's, NumPy's): 63 bits, never negative."""
    return int(words(seed, stream, *counters) >> np.uint64(1))


def _finalise(state: Any) -> Any:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
