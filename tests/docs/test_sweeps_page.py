"""docs/sweeps.md is true: its commands and its program are run, and its numbers counted."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from pmtl.experiments.sweep.grid import FIXED
from pmtl.privacy.accounting import selection

PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line[2:]) for line in PAGE.splitlines() if line.startswith("$ pmtl ")]


@pytest.fixture
def visits(tmp_path, monkeypatch, pmtl_command):
    """A folder in which the page's first command was run."""
    monkeypatch.chdir(tmp_path)
    assert pmtl_command(*COMMANDS[0][1:]).status == 0
    return tmp_path


def test_the_grid_of_the_page(visits, pmtl_command):
    done = pmtl_command(*COMMANDS[1][1:], "--rounds", 2, "--steps", 2)
    assert done.status == 0, done.err
    results = json.loads((visits / "grid/results.json").read_text())
    names = {row["name"] for row in results["runs"]}
    assert {"pooling", "local, lr=0.3", "pmtl:lam=0.03, lr=0.1"} <= names
    assert len(names) == 4 + 2 + 1
    assert results["failures"] == []
    assert [price["candidates"] for price in results["selection"]] == [4]
    for name in ("table.md", "comparison.png", "results.csv"):
        assert (visits / "grid" / name).exists()


def test_the_choice_of_the_page(visits, pmtl_command):
    done = pmtl_command(*COMMANDS[2][1:], "--rounds", 2, "--steps", 2)
    assert done.status == 0, done.err
    results = json.loads((visits / "choice/choice.json").read_text())
    assert results["epsilon"] <= 2
    assert f"ε = {results['epsilon']:.4g}" in (visits / "choice/best/privacy.txt").read_text()


def test_the_program_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(program, "sweeps.md", "exec"), {})
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("pmtl, lr=0.1", "local, lr=0.3"))


def test_what_cannot_be_varied_and_the_chance_of_no_run_are_as_stated():
    assert {"data", "delta", "noise", "mode", "ledger", "metric"} <= set(FIXED)
    assert "in 14% of choices between two settings" in " ".join(PAGE.split())
    none = math.exp(-2)
    assert round(100 * none) == 14
    random = np.random.default_rng(5)
    drawn = [selection.draw_number_of_runs(2, selection.POISSON, random) for _ in range(4000)]
    assert drawn.count(0) / 4000 == pytest.approx(none, abs=0.02)
