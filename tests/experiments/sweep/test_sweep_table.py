"""The tidy table of a comparison, on real runs: a grid with cells that fail, in two processes."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest

from pmtl.data import FederatedData, load
from pmtl.experiments.compare import Grid, compare, resume_comparison
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig
from pmtl.runs.result import load_run
from pmtl.simulation import LocalTraining

SPEC = "synthetic:clients=20,samples=12"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two step sizes, of which one diverges, and two cohorts, of which one is impossible."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    base = TrainConfig(
        data=SPEC, privacy=PrivacyRequest(rounds=2), local=LocalTraining(steps=2), evaluate_every=0
    )
    grid = Grid(("pmtl:lam=0.1",), (4.0,), (0,), base, {"lr": (0.1, 1e30), "cohort": (20, 21)})
    return compare(grid, out, jobs=2), out


def test_a_cell_that_fails_is_a_sentence_and_the_others_go_on(sweep):
    results, _ = sweep
    told = {tuple(row["settings"].values()): row for row in results["runs"]}
    assert "error" not in told[0.1, 20]
    assert told[0.1, 20]["not_finite"] is None
    assert told[1e30, 20]["not_finite"].startswith("Training diverged")
    assert told[0.1, 21]["error"].startswith("A cohort of 21 cannot be drawn from 20 clients")
    assert [line["settings"] for line in results["chosen"]] == [{"lr": 0.1, "cohort": 20}]
    sentences = [failure["sentence"] for failure in results["failures"]]
    assert len(sentences) == 2
    assert any("cohort of 21" in sentence for sentence in sentences)


def test_only_what_ran_is_a_candidate_of_the_price(sweep):
    results, _ = sweep
    (price,) = results["selection"]
    assert price["candidates"] == 2
    assert price["one_run"] <= 4 < price["publish_best"] < price["publish_all"]


def test_the_table_has_a_line_for_each_run_split_view_and_metric(sweep):
    results, out = sweep
    frame = results.to_frame()
    settings = ["pmtl:lam", "lr", "cohort"]
    assert [*frame.columns[4:7]] == settings
    mine = frame[(frame.lr == 0.1) & (frame.cohort == 20)]
    run = load_run(out / "runs" / mine.run.iloc[0], load(SPEC))
    exact = run.evaluate()
    assert len(mine) == sum(len(v) for views in exact.values() for v in views.values())
    for _, line in mine.iterrows():
        assert line.value == exact[line.split][line["view"]][line.metric]
    failed = frame[frame.cohort == 21]
    assert len(failed) == 2
    assert failed.value.isna().all()
    assert failed.failure.str.contains("cohort of 21").all()


def test_the_file_holds_the_same_table(sweep):
    results, out = sweep
    with (out / "results.csv").open(newline="") as file:
        lines = [*csv.DictReader(file)]
    expected = [*results.lines()]
    assert len(lines) == len(expected)
    for line, told in zip(lines, expected, strict=True):
        assert (line["run"], line["failure"] or None) == (told["run"], told["failure"])
        if line["value"]:
            assert float(line["value"]) == told["value"] or math.isnan(told["value"])
    written = json.loads((out / "results.json").read_text())
    assert written["failures"] == results["failures"]


def test_a_finished_sweep_is_found_again_and_not_repeated(sweep):
    results, out = sweep
    again = resume_comparison(out)
    assert _equal(again["summary"], results["summary"])
    assert again["selection"] == results["selection"]


def _equal(one, two):
    """Whether two trees are equal, with NaN equal to NaN."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_equal(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_equal, one, two))
    return one == two or (one != one and two != two)


def test_all_methods_read_the_table_alike(tmp_path):
    """Pooling scales raw columns inside the clients; in a comparison with it PMTL gets them scaled,
    too, instead of diverging on columns of ten thousands."""
    random = np.random.default_rng(3)
    x = random.normal(size=(400, 3)) * [1e4, 1.0, 1e-2] + [3e4, 0, 1]
    y = (x[:, 0] > 3e4).astype(np.int64)
    raw = FederatedData.from_arrays(x.astype(np.float32), y, np.repeat(np.arange(20), 20))
    base = TrainConfig(privacy=PrivacyRequest(rounds=3), evaluate_every=0)
    results = compare(Grid(("pooling", "pmtl"), (8.0,), (0,), base), tmp_path / "out", raw)
    assert results["failures"] == []
    runs = [load_run(tmp_path / "out/runs" / row["run"], raw) for row in results["runs"]]
    assert [run.facts.scaled for run in runs] == [True, True]
    assert runs[1].evaluate()["test"]["personal"]["accuracy"] > 0.8
    alone = compare(Grid(("pmtl",), (8.0,), (0,), base), tmp_path / "alone", raw)
    run = load_run(tmp_path / "alone/runs" / alone["runs"][0]["run"], raw)
    assert not run.facts.scaled
