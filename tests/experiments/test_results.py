"""The results of a setting: what is chosen by which ε, and what is not mixed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tiny import TINY, filled

from pmtl import storage as files
from pmtl.errors import PmtlError
from pmtl.experiments.results import Point, Results
from pmtl.experiments.run import run_experiments
from pmtl.experiments.tasks import Cell, Task
from pmtl.privacy.accounting import accountant, poisson


def test_epsilon_is_counted_both_ways(results):
    cell, plan = Cell("pmtl", 0.05, 0.5, 0), results.plan(0.05, 0.5, 4)
    assert plan.sampling == "poisson"
    assert plan.delta == 1 / 20
    assert results.epsilon("ours", cell, 4) == accountant.epsilon(plan)
    theirs = poisson.authors_epsilon(plan.noise_multiplier, 0.6, 4, 1 / 20)
    assert results.epsilon("paper's", cell, 4) == theirs
    assert results.epsilon("ours", Cell("pmtl", 0.0, math.inf, 0), 4) == math.inf


def write_curve(results: Results, cell: Cell, values: dict[int, tuple[float, float]]) -> None:
    """A made-up result: validation and test accuracy after some rounds."""
    curve = [
        {
            "round": round,
            "train_loss": 1.0,
            "validation": {"personal": {"accuracy": validation}},
            "test": {"personal": {"accuracy": test}},
        }
        for round, (validation, test) in values.items()
    ]
    files.write_json(results.out / "cells" / f"{cell}.json", {"curve": curve})


def test_validation_chooses_and_test_reports_what_the_budget_allows(results, monkeypatch):
    one, two = Cell("a", 0.1, 0.5, 0), Cell("b", 0.2, 0.5, 0)
    write_curve(results, one, {1: (0.5, 0.1), 2: (0.9, 0.2), 4: (0.95, 0.99)})
    write_curve(results, two, {1: (0.6, 0.3), 2: (0.9, 0.8), 4: (0.7, 0.9)})
    write_curve(results, replace(one, seed=1), {2: (0.1, 0.4)})
    spent = {0.1: 2.0, 0.2: 1.0}
    monkeypatch.setattr(results, "epsilon", lambda how, cell, rounds: rounds * spent[cell.sigma])
    # ε = 4 pays for two rounds of the first and four of the second; fewer rounds win a draw.
    assert results.best([one, two], 4.0, "ours", "personal") == Point(one, 2)
    assert results.best([one, two], 3.0, "ours", "personal") == Point(two, 2)
    assert results.best([one, two], 100.0, "ours", "personal") == Point(one, 4)
    assert results.best([one, two], 0.5, "ours", "personal") is None
    assert results.reported(Point(one, 2), "personal") == [0.2, 0.4]


def test_nothing_is_chosen_before_all_curves_are_there(results):
    cells = results.grid("pmtl")
    write_curve(results, cells[0], {1: (0.5, 0.5)})
    assert results.best(cells, math.inf, "ours", "personal") is None
    assert list(results.missing) == [Task("curve", cell) for cell in cells[1:]]
    results.fill()
    assert not results.missing
    assert results.best(cells, math.inf, "ours", "personal") is not None


def test_a_mistake_does_not_claim_the_folder(tmp_path):
    with pytest.raises(PmtlError, match="There is no file"):
        run_experiments(["fig2"], Results(TINY, tmp_path, data="nowhere.npz", device="cpu"))
    assert run_experiments(["fig2"], Results(TINY, tmp_path, device="cpu"))


def test_results_of_other_settings_are_not_mixed(results):
    filled(results, results.curve, Cell("local", 0.0, math.inf, 0))
    with pytest.raises(PmtlError, match="results of other settings"):
        Results(replace(TINY, rounds=8), results.out.parent, device="cpu")
