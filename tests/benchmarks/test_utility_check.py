"""Federations drawn at random can be drawn again, and are compared by paired differences."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

UTILITY = Path(__file__).parents[2] / "benchmarks" / "utility"


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(str(UTILITY))
    yield
    for name in ("check", "random_federations", "federation"):
        sys.modules.pop(name, None)


def test_a_federation_is_the_same_whenever_it_is_drawn():
    import random_federations

    for seed in range(30):
        first, second = random_federations.draw(seed), random_federations.draw(seed)
        assert np.array_equal(first.x, second.x)
        assert np.array_equal(first.y, second.y)
        assert np.isfinite(first.x).all()
        assert first.test_rows().any()
        assert first.m == random_federations.recipe(seed).m
        assert np.array_equal(np.unique(first.client), np.arange(first.m))


def test_federations_are_of_all_kinds():
    import random_federations

    recipes = [random_federations.recipe(seed) for seed in range(200)]
    assert {one.task for one in recipes} == {"regression", "classification", "multilabel"}
    assert {2, 3, 10} <= {one.outputs for one in recipes if one.task == "classification"}
    assert min(one.m for one in recipes) < 50
    assert max(one.m for one in recipes) > 2000
    assert min(one.rows for one in recipes) < 3


def test_differences_are_paired_and_in_standard_errors():
    import check

    random = np.random.default_rng(0)
    alone, rows = random.normal(size=400) ** 2, np.full(400, 2.0)
    gain = random.normal(size=400)
    expected = -(gain.mean() + 0.3) / (gain.std(ddof=1) / 20)
    assert check.apart(alone - gain - 0.3, alone, rows) == pytest.approx(expected)
    assert check.apart(alone, alone, rows) == 0
    assert check.mean(np.array([1.0, np.nan, 4.0]), np.array([3.0, 0, 1])) == pytest.approx(1.75)


def test_the_table_counts_what_is_worse():
    import check

    lines = [
        {"epsilon": 1.0, "finite": True, "alone": 1.0, "personal": p, "beside_alone": z}
        for p, z in ((0.5, -5.0), (1.1, 3.0), (1.01, 0.5))
    ]
    row = check.table(lines).splitlines()[-1]
    assert row == "| 1 | 3 | 0 | −13.0% | 1 | 1 | 10.0% | 0 |"
