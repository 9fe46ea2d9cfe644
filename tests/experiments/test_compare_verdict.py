"""The verdict of a comparison: which methods are compared, on which rows, and what that costs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from pmtl.data import load
from pmtl.experiments.compare import Grid, compare, resume_comparison
from pmtl.experiments.compare_verdict import verdicts
from pmtl.privacy.accounting import selection
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig
from pmtl.runs.result import load_run
from pmtl.simulation import LocalTraining

SPEC = "synthetic:clients=20,samples=20"
INF = float("inf")


def line(algorithm, epsilon, validation, test):
    scores = {"validation_personal": validation, "test_personal": test}
    means = {name: {"loss": {"mean": value}} for name, value in scores.items()}
    return {"name": algorithm, "epsilon": epsilon, "method": algorithm, **means}


def judged(lines, losses, spec=SPEC):
    """The verdict, and what was measured on which rows."""
    asked = []

    def measure(line, split, view):
        asked.append((line["name"], line["epsilon"], split))
        name = line["name"] if view == "personal" else f"{view} of {line['name']}"
        return np.atleast_2d(losses[name] + np.linspace(0, 0.01, 20))

    def plan_of(line):
        return PrivacyRequest(rounds=3, epsilon=line["epsilon"]).resolve(20)

    results = {"summary": lines, "chosen": lines}
    return verdicts(results, load(spec), plan_of, measure), asked


def test_validation_picks_and_test_rows_judge():
    """Ditto has the better test loss, but validation picks PMTL: the test rows only judge."""
    lines = [
        line("pmtl", 1.0, validation=0.5, test=0.7),
        line("ditto", 1.0, validation=0.6, test=0.1),
        line("local", None, validation=0.9, test=0.9),
    ]
    told, asked = judged(lines, {"pmtl": 0.7, "local": 0.9})
    assert asked == [("pmtl", 1.0, "test"), ("local", None, "test")]
    (entry,) = told["at"]
    assert entry["advice"] == "share"
    assert entry["comparisons"][0]["gain"] == pytest.approx(0.2)
    assert not entry["chosen"]
    assert told["sentence"].startswith("Verdict at ε = 1: share. pmtl has a loss 0.2 (22%) lower")


def test_without_validation_rows_the_scores_are_marked():
    lines = [
        line("pmtl", 1.0, validation=0.5, test=0.7),
        line("ditto", 1.0, validation=0.6, test=0.1),
        line("local", None, validation=0.9, test=0.9),
    ]
    told, asked = judged(lines, {"ditto": 0.1, "local": 0.9}, f"{SPEC},validation=0")
    assert asked[0] == ("ditto", 1.0, "test")
    assert told["at"][0]["chosen"]
    assert "These test rows also picked what is compared here." in told["sentence"]
    # With one method and training alone there was no picking.
    told, _ = judged(lines[1:], {"ditto": 0.1, "local": 0.9}, f"{SPEC},validation=0")
    assert not told["at"][0]["chosen"]


def test_the_price_is_that_of_choosing_between_all_settings():
    lines = [
        line("pmtl", 1.0, 0.5, 0.7),
        line("pmtl", 4.0, 0.4, 0.6),
        line("ditto", 1.0, 0.6, 0.1),
        line("local", None, 0.9, 0.9),
    ]
    told, _ = judged(lines, {"pmtl": 0.7, "ditto": 0.1, "local": 0.9})
    at_1, at_4 = told["at"]
    plan = PrivacyRequest(rounds=3, epsilon=1.0).resolve(20)
    price = selection.report({plan: 3})
    assert "one of the 3 candidates" in at_1["cost"]
    assert f"ε = {price['publish_best']:.3g} with only the best run" in at_1["cost"]
    assert f"ε = {price['publish_all']:.3g} with all" in at_1["cost"]
    assert "one of the 2 candidates" in at_4["cost"]
    assert told["sentence"].count("Verdict at ε = ") == 2


def test_without_training_alone_the_best_two_are_compared():
    lines = [line(name, INF, loss, loss) for name, loss in (("a", 0.5), ("b", 0.3), ("c", 0.4))]
    told, asked = judged(lines, {"b": 0.3, "c": 0.4})
    assert [entry[0] for entry in asked] == ["b", "c"]
    assert told["at"][0]["advice"] == "b"
    assert told["sentence"].startswith("Verdict at ε = ∞: use b.")
    assert "Training alone is not part of this comparison." in told["sentence"]
    assert "private scores" not in told["sentence"]  # Without privacy there is no price.


@pytest.mark.parametrize(("inside", "gain"), [(0.8, 0.1), (1.1, 0.3)])
def test_training_alone_inside_a_run_counts_if_validation_prefers_it(inside, gain):
    ours = line("pooling", 1.0, validation=0.6, test=0.6)
    ours |= {f"{rows}_alone": {"loss": {"mean": inside}} for rows in ("validation", "test")}
    lines = [ours, line("ditto", 1.0, 0.7, 0.7), line("local", None, validation=1.0, test=0.9)]
    losses = {"pooling": 0.6, "alone of pooling": 0.7, "local": 0.9}
    told, _ = judged(lines, losses)
    assert told["at"][0]["comparisons"][0]["gain"] == pytest.approx(gain)
    assert ("is what the runs of pooling brought along" in told["sentence"]) == (inside < 1)
    told, _ = judged(lines[:2], losses)  # Also without a method that shares nothing.
    assert told["at"][0]["advice"] == "share"
    assert told["at"][0]["comparisons"][0]["gain"] == pytest.approx(0.1)
    lines[2]["diverged"] = 1
    told, _ = judged(lines, losses)
    assert told["at"][0]["comparisons"][0]["gain"] == pytest.approx(0.1)


def test_what_diverged_is_not_picked():
    lines = [line("a", 1.0, math.nan, 0.1), line("b", 1.0, 0.4, 0.4), line("local", None, 1, 1)]
    _, asked = judged(lines, {"b": 0.4, "local": 1.0})
    assert asked[0][0] == "b"


def test_if_nothing_is_shared_nothing_is_compared():
    told, asked = judged([line("local", None, 1, 1)], {})
    assert (asked, told["at"]) == ([], [])
    assert "nothing to compare training alone with" in told["sentence"]


def test_a_comparison_measures_its_own_runs(tmp_path):
    base = TrainConfig(
        data=SPEC, privacy=PrivacyRequest(rounds=2), local=LocalTraining(steps=2), evaluate_every=0
    )
    grid = Grid(("pmtl", "local"), (1.0,), (0, 1), base)
    results = compare(grid, tmp_path / "out")
    (entry,) = results["verdict"]["at"]

    def losses(name):
        runs = [load_run(tmp_path / f"out/runs/{name}-seed{seed}") for seed in (0, 1)]
        return np.stack([run.client_losses("test")["personal"] for run in runs])

    ours, alone = losses("pmtl-eps1.0"), losses("local")
    gains = alone - ours
    here = np.isfinite(gains).all(axis=0)
    (paired,) = entry["comparisons"]
    assert paired["gain"] == pytest.approx(gains[:, here].mean())
    over_clients = gains[:, here].mean(axis=0).std(ddof=1) / np.sqrt(here.sum())
    over_seeds = gains[:, here].mean(axis=1).std(ddof=1) / np.sqrt(2)
    assert paired["error"] == pytest.approx(np.hypot(over_clients, over_seeds))
    written = json.loads((tmp_path / "out/results.json").read_text())
    assert written["verdict"] == json.loads(json.dumps(results["verdict"]))
    assert resume_comparison(tmp_path / "out")["verdict"] == results["verdict"]
