"""The picture of the learning curve that `pmtl train` leaves."""

from __future__ import annotations

import sys

import pytest

import pmtl
from pmtl.report.curve import draw_curve

PNG = b"\x89PNG\r\n"
SPEC = "synthetic:clients=8"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_leaves_a_curve(here, pmtl_command):
    options = ("--data", SPEC, "--algorithm", "pmtl", "--rounds", 2, "--out", "run")
    assert pmtl_command("train", *options).status == 0
    assert (here / "run/curve.png").read_bytes().startswith(PNG)


def test_in_production_it_is_drawn_from_released_averages_and_public(here, pmtl_command):
    pytest.importorskip("matplotlib")
    assert pmtl_command("ledger", "create", "c.db", "--data", SPEC).status == 0
    options = ("--data", SPEC, "--algorithm", "pmtl", "--rounds", 2, "--out", "run")
    done = pmtl_command("train", *options, "--mode", "production", "--ledger", "c.db")
    assert done.status == 0, done.err
    assert (here / "run/public/curve.png").read_bytes().startswith(PNG)
    assert not (here / "run/private/curve.png").exists()
    run = pmtl.load_run(here / "run")
    quiet = pmtl.train(
        SPEC,
        algorithm="pmtl",
        privacy={"rounds": 1, "metrics": 0.0},
        mode="production",
        ledger=here / "c.db",
        out=here / "quiet",
    )
    assert run.released()
    assert draw_curve(quiet) is None, "without released averages there is nothing to draw"


def test_nothing_is_drawn_for_releases_in_memory_or_without_matplotlib(here, monkeypatch):
    pooled = pmtl.train(SPEC, privacy=2.0, out=here / "pooled")
    assert draw_curve(pooled) is None, "an exact algorithm has no loss on the way"
    assert not (here / "pooled/curve.png").exists()
    options = {"algorithm": "pmtl", "privacy": {"rounds": 1}}
    assert draw_curve(pmtl.train(SPEC, **options)) is None
    run = pmtl.train(SPEC, **options, out=here / "run")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw_curve(run) is None
