"""The page on scale tells what was measured: its tables are those of the checked-in results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/scale.md").read_text(encoding="utf-8")


def benchmark():
    place = ROOT / "benchmarks/memory.py"
    spec = importlib.util.spec_from_file_location("memory_benchmark", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", ["steps", "stackoverflow", "clients"])
def test_the_tables_are_the_results(case):
    memory = benchmark()
    measured = json.loads(memory.RESULTS.read_text())
    table = memory.tables(measured).split("\n\n")[list(memory.FULL).index(case)]
    assert PAGE.split(f"<!-- {case} -->")[1].split(f"<!-- /{case} -->")[0].strip() == table
    options = [
        {key: row[key] for key in asked}
        for row, asked in zip(measured[case], memory.FULL[case], strict=True)
    ]
    assert options == memory.FULL[case]


def test_memory_stays_where_the_issue_wants_it():
    """Eight gigabytes of vectors on a machine of 24 GiB, and rounds that do not feel m."""
    measured = json.loads(benchmark().RESULTS.read_text())
    (shape,) = measured["stackoverflow"]
    assert shape["vectors_bytes"] == 400 * 5_000_500 * 4
    assert shape["where"] == "disk"
    assert shape["peak_resident_bytes"] < 2e9
    for row in measured["clients"]:
        assert row["resident_bytes_of_the_rounds"] < 3 * row["vectors_bytes"]
