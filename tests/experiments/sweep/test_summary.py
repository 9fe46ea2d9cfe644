"""Summaries of comparisons: what validation chose, what that costs, and what failed."""

from __future__ import annotations

import math

import pytest

from pmtl.experiments.sweep.grid import Candidate
from pmtl.experiments.sweep.summary import choose, prices, summarise
from pmtl.privacy.accounting import composition, selection
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.request import PrivacyRequest
from pmtl.report.tables import chosen_cells, chosen_notes, comparison_markdown, selection_cells

INF = math.inf


def plan_of(line, **more):
    return PrivacyRequest(epsilon=line["epsilon"], **{"rounds": 2, **more}).resolve(20)


def test_validation_chooses_and_test_only_reports():
    def line(algorithm, validation, test):
        entry = {"method": "pmtl", "algorithm": algorithm, "epsilon": 1.0}
        entry["validation_personal"] = {"accuracy": {"mean": validation}}
        entry["test_personal"] = {"accuracy": {"mean": test}}
        return entry

    chosen = choose([line("pmtl:lam=1", 0.7, 0.5), line("pmtl:lam=2", 0.6, 0.9)], "accuracy")
    assert [entry["algorithm"] for entry in chosen] == ["pmtl:lam=1"]


def test_algorithms_of_ones_own_are_grouped_by_their_whole_name():
    def line(algorithm, accuracy):
        scores = {"accuracy": {"mean": accuracy}}
        method = Candidate(algorithm).method
        line = {"method": method, "algorithm": algorithm, "epsilon": 1.0}
        return line | {"test_personal": scores}

    names = ("own.module:One:lam=1", "own.module:One:lam=2", "own.module:Two")
    lines = [line(name, 0.5 + number / 10) for number, name in enumerate(names)]
    chosen = choose(lines, "accuracy")
    assert [(entry["method"], entry["algorithm"]) for entry in chosen] == [
        ("own.module:One", "own.module:One:lam=2"),
        ("own.module:Two", "own.module:Two"),
    ]
    told = prices(lines, plan_of)
    assert [(price["method"], price["candidates"]) for price in told] == [("own.module:One", 2)]


def test_no_privacy_has_an_infinite_price_and_the_order_of_epsilons_does_not_matter():
    lines = [{"method": "pmtl", "epsilon": e} for _ in range(2) for e in (INF, 2.0)]
    results = {"selection": prices(lines, plan_of)}
    header, rows = selection_cells(results)
    assert header[1:] == ["one run: 2", "one run: ∞"]
    assert [row[2] for row in rows] == ["∞", "∞"]
    assert 2 < float(rows[0][1]) < 4


def test_what_diverged_is_chosen_only_if_nothing_else_is_there():
    def line(algorithm, accuracy, diverged):
        scores = {"accuracy": {"mean": accuracy}}
        about = {"method": "pmtl", "algorithm": algorithm, "epsilon": 1.0, "diverged": diverged}
        return about | {"test_personal": scores}

    # The first diverged to NaN, the second in one seed only.
    lines = [line("a", math.nan, 2), line("b", 0.9, 1), line("c", 0.3, 0)]
    assert [entry["algorithm"] for entry in choose(lines, "accuracy")] == ["c"]
    assert [entry["algorithm"] for entry in choose(lines[:2], "accuracy")] == ["b"]
    assert choose([{"method": "pmtl", "epsilon": 1.0}], "accuracy") == []


def test_settings_with_other_plans_are_priced_with_their_own():
    """All published is composition of both plans; the best costs at least what the dearer does."""
    lines = [{"method": "pmtl", "epsilon": 1.0, "rounds": rounds} for rounds in (2, 9)]
    plans = [plan_of(line, rounds=line["rounds"], cohort=5) for line in lines]
    (price,) = prices(lines, lambda line: plan_of(line, rounds=line["rounds"], cohort=5))
    score = selection.validation_release(plans[0], price["one_run"])
    every = {GaussianEvent.of(plan): plan.rounds for plan in plans} | {score: 2}
    assert price["publish_all"] == pytest.approx(composition.epsilon(every, plans[0].delta))
    alone = [
        selection.cheapest([{GaussianEvent.of(plan): plan.rounds, score: 1}], plan.delta, 2)[0]
        for plan in plans
    ]
    assert price["publish_best"] >= max(alone)


def test_a_failed_run_is_a_sentence_and_the_others_count():
    def row(seed, **more):
        about = {"name": "a", "method": "a", "algorithm": "a", "settings": {}, "epsilon": 1.0}
        scores = {"test": {"personal": {"accuracy": 0.5 + seed}}, "validation": None}
        return {**about, "seed": seed, "run": f"a-{seed}", "not_finite": None, **scores, **more}

    failed = {**row(2), "error": "No such thing."}
    told = summarise([row(0), failed, row(0.25)], "classification")
    (line,) = told["summary"]
    assert (line["seeds"], line["failed"], line["diverged"]) == (2, 1, 0)
    assert line["test_personal"]["accuracy"]["mean"] == pytest.approx(0.625)
    assert told["failures"] == [{"sentence": "No such thing.", "names": ["a"], "runs": ["a-2"]}]
    text = comparison_markdown({**told, "selection": []})
    assert "| a | 0.625 ± 0.177 (1 failed) |" in text
    assert "a: No such thing." in text
    told = summarise([failed], "classification")
    assert (told["chosen"], told["summary"][0]["seeds"]) == ([], 0)
    assert "| a | failed |" in comparison_markdown({**told, "selection": []})


def test_every_method_is_shown_with_the_setting_that_validation_chose_by_the_same_rule():
    def line(method, setting, epsilon, validation, test):
        name = f"{method}:{setting}" if setting else method
        scores = {"accuracy": {"mean": validation, "std": 0.0}, "loss": {"mean": 1, "std": 0.0}}
        entry = {"name": name, "method": method, "algorithm": name, "settings": {}}
        entry |= {"epsilon": epsilon, "seeds": 3, "failed": 0, "diverged": 0}
        entry["validation_personal"] = scores
        entry["test_personal"] = {"accuracy": {"mean": test, "std": 0.01}}
        return entry

    summary = [
        line("pooling", "", 1.0, 0.6, 0.61),
        line("pooling", "", 2.0, 0.6, 0.62),
        line("ditto", "lam=1", 1.0, 0.7, 0.5),  # Best on validation rows, not on test rows.
        line("ditto", "lam=2", 1.0, 0.6, 0.9),
        line("ditto", "lam=1", 2.0, 0.6, 0.4),
        line("ditto", "lam=2", 2.0, 0.7, 0.8),
        line("local", "lr=1", None, 0.5, 0.45),
        line("local", "lr=2", None, 0.4, 0.55),
    ]
    results = {"metric": "accuracy", "summary": summary, "chosen": choose(summary, "accuracy")}
    results |= {"selection": prices(summary, plan_of), "failures": []}
    best = [f"{price['publish_best']:.4g}" for price in results["selection"]]
    assert len(best) == 2
    header, rows = chosen_cells(results)
    assert header == ["test accuracy", "ε = 1", "ε = 2", "ε with the choice"]
    assert rows == [
        ["pooling", "0.610 ± 0.010", "0.620 ± 0.010", "1, 2"],
        ["ditto, best of 2", "0.500 ± 0.010", "0.800 ± 0.010", ", ".join(best)],
        ["local, best of 2", "0.450 ± 0.010", "0.450 ± 0.010", "–"],
    ]
    notes = chosen_notes(results)
    assert "best accuracy on validation rows" in notes[0]
    assert notes[1:] == [
        "Chosen for ditto: lam=1 at ε = 1; lam=2 at ε = 2.",
        "Chosen for local: lr=1.",
    ]
    alone = [entry for entry in summary if entry["method"] == "local"]
    results |= {"summary": alone, "chosen": choose(alone, "accuracy"), "selection": []}
    assert chosen_cells(results) == (
        ["method", "test accuracy"],
        [["local, best of 2", "0.450 ± 0.010"]],
    )
    results["summary"] = results["chosen"] = alone[:1]
    assert chosen_cells(results) == ([], [])
    assert chosen_notes(results) == []
