"""Which clients train in which step, and with how many rows.

A cohort is one array, in which clients with fewer rows or batches are padded. To keep the padding
small, clients with much smaller batches are trained separately (`row_groups`), and clients leave
when they are done (`schedule`). A client's padding within a batch depends on its own rows alone,
and steps of padding change nothing, so results do not depend on the other clients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pmtl.client.batches import FEW_ROWS
from pmtl.engines.base import Ints

Mask = NDArray[np.bool_]


def schedule(active: Mask) -> tuple[Ints, list[int]]:
    """The cohort ordered by number of steps, most first, and how many clients are left in each
    step. `active` [K, steps] says which clients have real rows in which step."""
    last = _last(active)
    if (active.sum(axis=1) < last).any():
        raise ValueError("A client has a step without real rows before one with real rows.")
    left = [int((last > step).sum()) for step in range(int(last.max(initial=0)))]
    return np.argsort(-last, kind="stable"), left


def row_groups(mask: Mask) -> list[tuple[Ints, int]]:
    """The cohort in groups, each with the number of rows that its batches need, rounded up to all,
    a quarter, a sixteenth, …, but not below `FEW_ROWS`."""
    needs = _last(np.asarray(mask.any(axis=1)))
    room = np.full(len(mask), mask.shape[2])
    while (smaller := -(-int(room.min()) // 4)) >= FEW_ROWS:
        fits = needs <= smaller
        if not fits.any():
            break
        room[fits] = smaller
    return [(np.flatnonzero(room == rows), int(rows)) for rows in np.unique(room)]


def widths(cohort: int, left: list[int], usual: int | None) -> list[int]:
    """The number of clients in each step, rounded up so that there are few different ones.

    A whole cohort is rounded up to the `usual` width or, where cohorts vary, by at most a quarter.
    As clients finish, the width falls to the next power of four, down to 16.
    """
    whole = usual if usual is not None and cohort <= usual else rounded(cohort)
    return [min(whole, _power_of_four(n)) for n in left]


def _last(marks: Mask) -> Ints:
    """For each row, one more than its last marked column; 0 where none is marked."""
    number = np.arange(1, marks.shape[1] + 1)
    return np.asarray(np.where(marks, number, 0).max(axis=1, initial=0))


def rounded(n: int) -> int:
    """Rounded up to three significant bits, so by at most a quarter: 64, 80, 96, 112, 128, …"""
    grain: int = 2 ** max(0, n.bit_length() - 3)
    return -(-n // grain) * grain


def _power_of_four(n: int) -> int:
    power = 16
    while power < n:
        power *= 4
    return power
