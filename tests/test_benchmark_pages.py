"""The pages on benchmarks show what was measured: their tables are those of the results."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load_tables():
    place = ROOT / "benchmarks/tables.py"
    spec = importlib.util.spec_from_file_location("benchmark_tables", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLES = load_tables()


@pytest.mark.parametrize(("page", "mark"), TABLES.TABLES)
def test_the_tables_are_the_results(page, mark, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    shown = text.split(f"<!-- {mark} -->")[1].split(f"<!-- /{mark} -->")[0].strip()
    assert shown == TABLES.TABLES[page, mark]()


def results(name):
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())


def lines(name, task):
    for result in results(name)["results"]:
        for line in result["contenders"]:
            if line["contender"] == "pmtl auto" and result["task"] == task:
                yield result, line


def test_what_the_pages_claim_was_measured():
    """The targets that the page on benchmarks says are met."""
    for result, line in lines("engines-h200-q100", "cnn"):
        if result["tf32"]:
            assert line["times_loop"] >= 100
    (large,) = [
        line
        for result, line in lines("engines-h200", "cnn")
        if (result["q"], result["batch"], result["tf32"]) == (1000, 32, False)
    ]
    assert large["share_of_float32_rate"] >= 0.25
    assert all(line["times_best_loop"] >= 1.0 for _, line in lines("engines-cpu", "cnn"))
    assert all(line["times_best_loop"] >= 20 for _, line in lines("engines-cpu", "linear"))
    peers = results("peers-cpu")["results"]
    assert {line["peer"] for line in peers} == {"pfl", "flower", "fedjax"}
    assert all(line["ratio"] >= 5 for line in peers if line["workload"] == "small")
    networks = [line for line in peers if line["workload"] == "cnn"]
    assert all(line["theirs"]["mean"] >= 1.2 * line["ours"]["mean"] for line in networks)
    ratios = {(r["workload"], r["peer"]): r["ratio"] for r in results("peers-h200")["results"]}
    assert len(ratios) == 6
    assert ratios["cohort", "pfl"] >= 100
    assert ratios["cohort", "fedjax"] >= 50
    assert results("end-to-end")["share_of_local_training"] >= 0.8
    assert results("noise")["seconds"]["noise_hardened"] < 0.5
