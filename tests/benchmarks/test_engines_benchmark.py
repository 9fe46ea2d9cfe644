"""The benchmark of engines runs: every contender trains, and is timed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
VARIANTS = ("auto", "eager-patches", "threads")


@pytest.fixture
def engines(monkeypatch):
    """The benchmark, with turns of one round."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("engines", "measure", "plain")  # Other tests have modules of these names.
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    import engines
    import measure

    monkeypatch.setattr(measure, "TURN_SECONDS", 0.0)
    yield engines
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)


def test_every_contender_has_a_mean_and_a_median(engines, monkeypatch, tmp_path, capsys):
    smallest = ["-q", "2", "-b", "1", "-e", "1", "--repeats", "1"]
    words = ["engines.py", *smallest, "--variant", *VARIANTS, "--json", str(tmp_path / "r.json")]
    monkeypatch.setattr(sys, "argv", [*words, "--task", "cnn"])
    engines.main()
    (result,) = json.loads((tmp_path / "r.json").read_text())["results"]
    timed = {line["contender"]: line for line in result["contenders"]}
    assert {f"pmtl {name}" for name in VARIANTS} | {"loop"} <= set(timed)
    for line in timed.values():
        assert line["mean"] > 0
        assert line["median"] > 0
    assert "pmtl threads" in capsys.readouterr().out
