"""docs/utility.md shows what was measured, and says where we lose."""

from __future__ import annotations

import importlib.util
from copy import deepcopy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load_page():
    place = ROOT / "benchmarks/utility/page.py"
    spec = importlib.util.spec_from_file_location("utility_page", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = load_page()


def line(score, error=0.01, alone=1.0, ceiling=0.8):
    return {
        "score": score,
        "difference": None if score is None else score - alone,
        "error": None if score is None else error,
        "share": None if score is None else (alone - score) / (alone - ceiling),
    }


def result(name="schools", clients=600, **private):
    """Alone 1, ceiling 0.8; `private` has the scores of the methods at ε = 1 and 2."""
    return {
        "name": name,
        "about": "scores by school",
        "task": "regression",
        "score": "rmse",
        "clients": clients,
        "columns": 5,
        "outputs": 1,
        "training_rows": 9.0,
        "baselines": {
            name: line(score)
            for name, score in (
                ("alone", 1.0),
                ("alone_tuned", 0.95),
                ("global", 0.9),
                ("ceiling", 0.8),
            )
        },
        "private": {
            method: dict(zip(("1", "2"), map(line, scores), strict=True))
            for method, scores in private.items()
        },
    }


def test_the_page_is_the_results():
    assert PAGE.PAGE.read_text(encoding="utf-8") == PAGE.text(PAGE.read())


def test_the_picture_has_all_federations():
    picture = PAGE.PICTURE.read_text(encoding="utf-8")
    for one in PAGE.read():
        assert f"{one['name']} ({one['clients']:,})" in picture


def test_every_share_in_the_results_is_that_of_its_scores():
    for one in PAGE.read():
        alone, ceiling = (one["baselines"][name]["score"] for name in ("alone", "ceiling"))
        for lines in one["private"].values():
            # The least ε is not tried with rivals, nor with earlier versions of the method.
            assert {*PAGE.EPSILONS[1:]} <= {*lines} <= {*PAGE.EPSILONS}
            for found in lines.values():
                if found["share"] is not None:
                    wanted = (alone - found["score"]) / (alone - ceiling)
                    assert found["share"] == pytest.approx(wanted, rel=5e-3, abs=2e-3)


def test_losses_are_told():
    good = result(ours=(0.9, 0.85), ditto=(0.95, 0.9))
    bad = result("clinics", ours=(1.01, 1.03), ditto=(0.99, 0.98))
    diverged = result("phones", ours=(None, None))
    assert PAGE.worse_than_alone([good, bad, diverged]) == [
        ("clinics", "2"),
        ("phones", "1"),
        ("phones", "2"),
    ]
    assert PAGE.beaten([good, bad, diverged], "2") == [("clinics", "Ditto")]
    told = PAGE.where_we_lose([good, bad])
    assert "Worse than training alone by more than two standard errors: clinics (ε = 2)." in told
    assert "on 1 of 2 federations: clinics (Ditto)." in told
    assert "At no ε and on no federation" in PAGE.where_we_lose([good])
    assert "not been measured" in PAGE.where_we_lose([result(ditto=(0.9, 0.9))])


def test_goals_count_natural_tables_of_their_size():
    large, small = result(ours=(0.95, 0.88)), result("wards", 200, ours=(1.0, 0.96))
    drawn = result("drawn", ours=(1.0, 1.0))
    drawn["about"] = "synthetic: nothing in common"
    told = PAGE.goals([large, small, drawn])
    assert told == [
        "- Tables with 500 clients or more, ε = 2: 50% of the gap or more on 1 of 1.",
        "- Tables with 500 clients or more, ε = 1: 33% of the gap or more on 0 of 1, not on "
        "schools.",
        "- Tables with 100 to 499 clients, ε = 2: 25% of the gap or more on 0 of 1, not on wards.",
    ]


def test_a_run_that_diverged_is_shown_as_such(tmp_path):
    one = deepcopy(result(ours=(None, 0.9)))
    assert "| diverged | 0.9000 ± 0.01 |" in PAGE.ours([one])
    PAGE.draw([one], tmp_path / "picture.svg")
    assert "schools (600)" in (tmp_path / "picture.svg").read_text(encoding="utf-8")
