"""The page on scale tells what was measured: its tables are those of the checked-in results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def test_the_benchmark_still_measures_what_the_tables_show():
    """In small; `test_rows_on_disk_runs.py` has the bound on resident memory."""
    memory = benchmark()
    (trained, *_), (rounds, *_) = (
        json.loads(memory.RESULTS.read_text())[case] for case in ("steps", "clients")
    )
    few = {"clients": 2, "steps": 1, "dense": False}
    assert set(trained) <= {*few, *memory.steps(**few)}
    some = {"clients": 1000, "where": "memory", "rounds": 3}
    row = memory.clients(**some)
    assert set(rounds) <= {*some, *row}
    assert row["vectors_bytes"] == 4 * row["parameters"] * row["clients_seen"]
    assert 100 < row["clients_seen"] < 400
