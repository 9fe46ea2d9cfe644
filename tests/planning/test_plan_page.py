"""The numbers of docs/plan.md are those of `pmtl.plan`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import pmtl
from pmtl.experiments.compare import Grid, compare
from pmtl.planning import payoff
from pmtl.planning.advice import MANY_ROWS
from pmtl.runs.config import TrainConfig

RESULTS = Path(__file__).parents[2] / "benchmarks/results/utility"
PAGE = (Path(__file__).parents[2] / "docs/plan.md").read_text(encoding="utf-8")


def marked(name: str) -> str:
    return PAGE.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].strip()


def test_the_example_is_what_the_command_prints():
    assert marked("sixty") == pmtl.plan(60, 66, privacy=1.0).recommendation


def test_the_table_is_what_plans_say():
    rows = [line.strip("| ").split(" | ") for line in marked("tables").splitlines()[2:]]
    assert len(rows) == 11
    won = []
    for name, clients, columns, epsilon, noise, vote, advice, measured in rows:
        results = json.loads((RESULTS / f"{name}.json").read_text())
        assert [clients, columns] == [str(results["clients"]), str(results["columns"])]
        classes = 2 if results["task"] == "classification" else 1
        sizes = {"columns": int(columns), "classes": classes}
        plan = pmtl.plan(int(clients), **sizes, privacy=float(epsilon))
        assert [noise, vote, advice] == [f"{plan.noise:.2g}", f"{plan.vote:.2g}", plan.advice]
        ours = results["private"]["ours"][epsilon]
        assert measured == f"{ours['difference']:.2g} ± {ours['error']:.1g}"
        won.append((advice, ours["difference"] < -2 * ours["error"]))
    told, right = (
        [better for advice, better in won if advice == "share"],
        won.count(("share", True)),
    )
    assert right >= 0.9 * len(told)
    assert f'Of the {len(told)} lines that say "share", it won {right} by' in PAGE


def test_between_a_quarter_and_a_half_sharing_won_everywhere():
    tried = 0
    for place in RESULTS.glob("*.json"):
        results = json.loads(place.read_text())
        classes = 1 if results["task"] == "regression" else results["outputs"]
        for epsilon, ours in results["private"]["ours"].items():
            sizes = {"columns": results["columns"], "classes": classes}
            plan = pmtl.plan(results["clients"], **sizes, privacy=float(epsilon))
            if 1 / 4 < plan.vote <= 1 / 2 and plan.noise <= payoff.MODERATE:
                tried += 1
                assert ours["difference"] < -2 * ours["error"], (results["name"], epsilon)
    assert tried >= 5


COMPARED = [line.strip("| ").split(" | ") for line in marked("compared").splitlines()[2:]]


@pytest.mark.parametrize(
    ("clients", "epsilon", "planned", "measured"),
    [COMPARED[0], *(pytest.param(*line, marks=pytest.mark.thorough) for line in COMPARED[1:])],
)
def test_plans_and_verdicts_are_those_of_the_page(clients, epsilon, planned, measured, tmp_path):
    base = TrainConfig(data=f"synthetic:clients={clients}", evaluate_every=0)
    grid = Grid(("ditto", "local"), (float(epsilon),), (0, 1, 2), base)
    (entry,) = compare(grid, tmp_path / "out")["verdict"]["at"]
    plan = pmtl.plan(int(clients), columns=10, classes=4, privacy=float(epsilon))
    assert (plan.advice, entry["advice"]) == (planned, measured)


def test_the_limits_are_those_of_the_code():
    assert (payoff.MODERATE, payoff.READABLE_VOTE_NOISE) == (1 / 3, 1 / 2)
    assert "at most ⅓ of the clip, and a vote's noise at most ½ of a vote" in PAGE
    assert re.search(
        rf"K = {payoff.CELLS} numbers, with {payoff.VOTE_SHARE:g}\s+of the budget", PAGE
    )
    assert f"with `--rows {MANY_ROWS}` the plan needs no vote" in PAGE
