"""What the fuzzing tests share: ways to damage a file, a judge of what came of it, and a tally.

Whatever stands in a file, reading it ends in one of two ways: a `PmtlError` whose message is a
readable line, or a value that keeps its promises. The judge holds a reader to that, in a process
that may take two more gigabytes at most, with every warning an error.

`PMTL_FUZZ=20` multiplies the number of inputs and draws them anew each time; `make fuzz` does so
and prints the tally.
"""

from __future__ import annotations

import os
import resource
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pmtl.errors import PmtlError

T = TypeVar("T")

TIMES = int(os.environ.get("PMTL_FUZZ", "1"))
ROOM = 2 << 30

#: What was read → how often it was tried, refused, read, or neither.
TALLY: dict[str, Counter[str]] = {}


def fuzz(examples: int) -> settings:
    """So many inputs, always the same ones; PMTL_FUZZ times as many, always others."""
    return settings(
        max_examples=examples * TIMES,
        derandomize=TIMES == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def judge(
    what: str, read: Callable[[], T], check: Callable[[T], object], mention: str = ""
) -> T | None:
    """What `read` gives, after `check` has looked at it, or None if it was refused properly, in a
    sentence with `mention` in it."""
    tally = TALLY.setdefault(what, Counter())
    tally["tried"] += 1
    try:
        with little_memory(), warnings.catch_warnings():
            warnings.simplefilter("error")
            value = read()
            check(value)
    except PmtlError as error:
        told = str(error)
    except BaseException:
        tally["crashed"] += 1
        raise
    else:
        tally["read"] += 1
        return value
    check_sentence(told)
    assert mention in told
    tally["refused"] += 1
    return None


def check_sentence(told: str) -> None:
    """A line for a person: not empty, no dump, nothing that a terminal would obey."""
    assert told.strip()
    assert told.isprintable(), told
    assert len(told) <= 2000, told
    assert "Traceback" not in told
    assert told.endswith((".", "?", "…")), told


@contextmanager
def little_memory() -> Iterator[None]:
    """No more than `ROOM` bytes beyond what the process has now (where the system can say)."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(statm.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """`whole` after an accident: bits flipped, cut short, something put in, taken out, doubled or
    overwritten, or nothing of it left."""
    place = st.integers(0, max(0, len(whole) - 1))
    some = st.binary(min_size=1, max_size=12)

    def flipped(places: list[tuple[int, int]]) -> bytes:
        raw = bytearray(whole)
        for at, bit in places:
            raw[at] ^= 1 << bit
        return bytes(raw)

    def piece(at: int, until: int) -> tuple[int, int]:
        return min(at, until), min(max(at, until), min(at, until) + 64)

    bit = st.tuples(place, st.integers(0, 7))
    return st.one_of(
        *[st.lists(bit, min_size=1, max_size=1).map(flipped)] * 4,
        st.lists(bit, min_size=1, max_size=4).map(flipped),
        place.map(lambda at: whole[:at]),
        place.map(lambda at: whole[at:]),
        st.builds(lambda at, new: whole[:at] + new + whole[at:], place, some),
        st.builds(lambda at, new: whole[:at] + new + whole[at + len(new) :], place, some),
        st.builds(piece, place, place).map(lambda p: whole[: p[0]] + whole[p[1] :]),
        st.builds(piece, place, place).map(lambda p: whole[: p[1]] + whole[p[0] :]),
        st.binary(max_size=200),
    )


def mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Something odd one time in five, so that oddities meet one at a time, too."""
    return st.integers(0, 4).flatmap(lambda chance: usual if chance else odd)


def summary() -> list[str]:
    """The tally as a table: a line for each kind of file, whatever was done to it (", …")."""
    kinds: dict[str, Counter[str]] = {}
    for what, tally in sorted(TALLY.items()):
        kinds.setdefault(what.partition(",")[0], Counter()).update(tally)
    kinds["together"] = sum(kinds.values(), Counter())
    columns = ("tried", "refused", "read", "crashed")
    lines = [f"| {'what was read':20} | {' | '.join(f'{c:>7}' for c in columns)} |"]
    lines.append(f"| {'-' * 20} | {' | '.join(['------:'] * len(columns))} |")
    for kind, tally in kinds.items():
        numbers = " | ".join(f"{tally[column]:7,}" for column in columns)
        lines.append(f"| {kind:20} | {numbers} |")
    return lines
