"""Who trains in which step, and with how many rows.

Clients have different numbers of rows, and so of batches, but a cohort is one array, in which the
shorter are padded. This keeps the padding small: clients whose batches are much smaller are trained
apart (`row_groups`), and clients that are done leave (`schedule`). How much a client is padded
within a batch depends on its own rows alone, and steps of padding change nothing, so nobody's
numbers depend on the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pmtl.client.batches import FEW_ROWS
from pmtl.engines.base import Ints

Mask = NDArray[np.bool_]


def schedule(active: Mask) -> tuple[Ints, list[int]]:
    """The cohort in the order of its numbers of steps, those with most first, and how many clients
    are not done in each step. `active` [K, steps] says who has real rows in which step."""
    last = _last(active)
    if (active.sum(axis=1) < last).any():
        raise ValueError("A client has a step without real rows before one with real rows.")
    left = [int((last > step).sum()) for step in range(int(last.max(initial=0)))]
    return np.argsort(-last, kind="stable"), left


def row_groups(mask: Mask) -> list[tuple[Ints, int]]:
    """The cohort cut into groups, each with the rows that its batches need, rounded up.

    Rows are rounded up to all, a quarter of them, a sixteenth, … as long as it is worth the extra
    group.
    """
    needs = _last(np.asarray(mask.any(axis=1)))
    room = np.full(len(mask), mask.shape[2])
    while (smaller := -(-int(room.min()) // 4)) >= FEW_ROWS:
        fits = needs <= smaller
        if not fits.any():
            break
        room[fits] = smaller
    return [(np.flatnonzero(room == rows), int(rows)) for rows in np.unique(room)]


def widths(cohort: int, left: list[int], usual: int | None) -> list[int]:
    """How many places each step has, where it shall be one of few numbers.

    A whole cohort is rounded up to the `usual` width or, where cohorts vary, by at most a quarter.
    As clients finish, the width falls to the next power of four, down to 16.
    """
    whole = usual if usual is not None and cohort <= usual else rounded(cohort)
    return [min(whole, _power_of_four(n)) for n in left]


def _last(marks: Mask) -> Ints:
    """One more than the last place that is marked, row by row; 0 where none is."""
    number = np.arange(1, marks.shape[1] + 1)
    return np.asarray(np.where(marks, number, 0).max(axis=1, initial=0))


def rounded(n: int) -> int:
    """Up to three significant bits, so by at most a quarter: 64, 80, 96, 112, 128, …"""
    grain: int = 2 ** max(0, n.bit_length() - 3)
    return -(-n // grain) * grain


def _power_of_four(n: int) -> int:
    power = 16
    while power < n:
        power *= 4
    return power
