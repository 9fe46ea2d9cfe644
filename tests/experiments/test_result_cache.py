"""The cache: every task is computed once, and failures are remembered."""

from __future__ import annotations

import pytest

from pmtl.errors import PmtlError
from pmtl.experiments.result_cache import ResultCache


class Squares:
    """Stores the squares of numbers, and fails for negative ones."""

    def __init__(self) -> None:
        self.stored: dict[int, dict[str, int]] = {}
        self.done: list[int] = []

    def do(self, number: int) -> dict[str, object]:
        self.done.append(number)
        if number < 0:
            return {"error": "negative"}
        self.stored[number] = {"square": number**2}
        return self.stored[number]

    def cache(self, **options) -> ResultCache[int]:
        return ResultCache(self.stored.get, self.do, "squares", **options)


def test_what_is_missing_is_computed_once_and_then_read():
    squares = Squares()
    cache = squares.cache()
    assert [cache.get(number) for number in (3, 4, 3)] == [{}, {}, {}]
    assert list(cache.missing) == [3, 4]
    cache.fill()
    cache.fill()
    assert cache.get(3) == {"square": 9}
    again = squares.cache()
    assert again.get(4) == {"square": 16}
    assert not again.missing
    assert squares.done == [3, 4]


def test_a_failure_is_tried_again_by_the_next_cache_only():
    squares = Squares()
    cache = squares.cache()
    cache.get(-1)
    cache.fill()
    assert cache.failures == {"-1": "negative"}
    assert cache.get(-1) == {}
    assert not cache.missing
    again = squares.cache()
    again.get(-1)
    assert list(again.missing) == [-1]


def test_after_a_stop_the_rest_is_still_missing():
    squares = Squares()

    def stopping(number: int) -> dict[str, object]:
        if number == 2:
            raise KeyboardInterrupt
        return squares.do(number)

    cache = ResultCache(squares.stored.get, stopping, "squares")
    for number in range(4):
        cache.get(number)
    with pytest.raises(KeyboardInterrupt):
        cache.fill()
    assert list(cache.missing) == [2, 3]


def test_no_jobs_are_refused():
    with pytest.raises(PmtlError, match="jobs must be at least 1"):
        Squares().cache(jobs=0)
