"""`pmtl compare`: table, JSON and plot; mistakes are sentences."""

from __future__ import annotations

import json

import pytest

from pmtl.experiments.compare import Grid, compare
from pmtl.experiments.sweep.summary import prices
from pmtl.privacy.accounting import selection
from pmtl.privacy.request import PrivacyRequest
from pmtl.report.tables import comparison_markdown
from pmtl.runs.config import TrainConfig

SPEC = "synthetic:clients=20,samples=12"
INF = float("inf")


def test_a_comparison_writes_table_json_and_plot(tmp_path, pmtl_command):
    done = pmtl_command(
        *("compare", "--data", SPEC, "--rounds", 2, "--steps", 2, "--seeds", 2),
        *("--algorithm", "pmtl", "--algorithm", "local", "--epsilon", 1, "--epsilon", 4),
        *("--out", tmp_path / "out"),
    )
    assert done.status == 0, done.err
    assert "ε = 4" in done.out
    assert "Verdict at ε = 1: " in done.out
    assert done.out.splitlines()[-1].startswith("Verdict at ε = 4: ")
    assert (tmp_path / "out/comparison.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert len(results["runs"]) == 2 * 2 + 2  # local is run once a seed, not once an ε
    assert (tmp_path / "out/table.md").read_text() == comparison_markdown(results)
    for run in results["runs"]:
        if run["epsilon"] is not None:
            assert run["privacy_epsilon"] <= run["epsilon"]


def test_json_output_is_json_alone(tmp_path, pmtl_command):
    done = pmtl_command(
        *("compare", "--data", SPEC, "--rounds", 1, "--steps", 1, "--seeds", 1, "--json"),
        *("--algorithm", "local", "--epsilon", "inf", "--out", tmp_path / "out"),
    )
    assert done.status == 0, done.err
    answer = json.loads(done.out)
    assert answer["metric"] == "accuracy"
    assert answer["verdict"]["sentence"].startswith("Verdict: nothing can be said.")


def test_the_price_of_choosing_between_settings_is_shown(tmp_path, pmtl_command):
    done = pmtl_command(
        *("compare", "--data", SPEC, "--rounds", 2, "--steps", 1, "--seeds", 2),
        *("--algorithm", "pmtl:lam=0.1", "--algorithm", "pmtl:lam=5", "--algorithm", "fedavg"),
        *("--algorithm", "local", "--epsilon", 4, "--epsilon", 1, "--out", tmp_path / "out"),
    )
    assert done.status == 0, done.err
    results = json.loads((tmp_path / "out/results.json").read_text())
    # Two settings of PMTL at two ε. Two seeds are no candidates, and FedAvg had no choice.
    assert [(e["method"], e["epsilon"], e["candidates"]) for e in results["selection"]] == [
        ("pmtl", 1.0, 2),
        ("pmtl", 4.0, 2),
    ]
    for entry in results["selection"]:
        plan = PrivacyRequest(epsilon=entry["epsilon"], rounds=2).resolve(20)
        expected = selection.report({plan: 2})
        assert {name: entry[name] for name in expected} == expected
        assert entry["publish_best"] > entry["one_run"]
    at_1, at_4 = (f"{entry['publish_best']:.4g}" for entry in results["selection"])
    table = (tmp_path / "out/table.md").read_text()
    assert "| ε with the choice | one run: 1 | one run: 4 |" in table
    assert f"| pmtl, 2 settings: the best published | {at_1} | {at_4} |" in table
    assert "fedavg, " not in table
    for words in (
        "exact validation scores, which no ε covers",
        "the number of runs is random and secret, on average the number of settings",
        "Seeds are repetitions, not candidates",
    ):
        assert words in table
        assert words in done.out


def test_without_a_choice_no_price_is_shown(tmp_path, pmtl_command):
    done = pmtl_command(
        *("compare", "--data", SPEC, "--rounds", 1, "--steps", 1, "--seeds", 2, "--epsilon", 1),
        *("--algorithm", "pmtl", "--algorithm", "local", "--out", tmp_path / "out"),
    )
    assert done.status == 0, done.err
    assert json.loads((tmp_path / "out/results.json").read_text())["selection"] == []
    assert "settings" not in done.out + (tmp_path / "out/table.md").read_text()
    # What shares nothing has no ε: its clients choose for themselves.
    alone = [{"method": "alone", "epsilon": None} for _ in range(2)]
    assert prices(alone, lambda line: PrivacyRequest().resolve(20)) == []


def test_resume_on_the_command_line_knows_comparisons(tmp_path, pmtl_command):
    base = TrainConfig(data=SPEC, privacy=PrivacyRequest(rounds=2), evaluate_every=0)
    compare(Grid(("local",), seeds=(0, 1), base=base), tmp_path / "out")
    done = pmtl_command("resume", tmp_path / "out")
    assert done.status == 0, done.err
    assert (tmp_path / "out/comparison.png").exists()


def test_a_grid_is_run_and_told_as_a_table_with_its_price(tmp_path, pmtl_command, monkeypatch):
    """With an algorithm of one's own, several --grid and a cell that cannot be run."""
    (tmp_path / "own_method.py").write_text(
        "from dataclasses import dataclass\n"
        "from pmtl.algorithms import PMTL\n"
        "@dataclass(frozen=True)\n"
        "class Own(PMTL):\n"
        "    name = 'own'\n"
    )
    monkeypatch.chdir(tmp_path)
    done = pmtl_command(
        *("compare", "--data", SPEC, "--steps", 2, "--seeds", 1, "--epsilon", 4),
        *("--algorithm", "own_method:Own", "--grid", "own_method:Own:lam=0.1,1"),
        *("--grid", "cohort=20,21", "--grid", "rounds=1", "--out", "out"),
    )
    assert done.status == 0, done.err
    assert "own_method:Own:lam=0.1, cohort=20, rounds=1" in done.out
    assert "own_method:Own, 2 settings: the best published" in done.out
    assert "cohort=21, rounds=1: A cohort of 21 cannot be drawn" in done.out
    assert "warning: 2 of 4 runs failed or diverged" in done.err
    header, *lines = (tmp_path / "out/results.csv").read_text().splitlines()
    assert header.startswith("run,name,method,algorithm,own_method:Own:lam,cohort,rounds,epsilon")
    assert len(lines) > 4
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["selection"][0]["candidates"] == 2


def test_a_private_choice_says_what_it_covers(tmp_path, pmtl_command):
    done = pmtl_command(
        *("compare", "--data", SPEC, "--rounds", 1, "--steps", 1, "--algorithm", "pmtl"),
        *("--grid", "lr=0.05,0.5", "--epsilon", 2, "--select", "--out", tmp_path / "out"),
    )
    assert done.status == 0, done.err
    results = json.loads((tmp_path / "out/choice.json").read_text())
    assert f"Chosen among 2 settings: {results['chosen']}" in done.out
    assert f"ε = {results['epsilon']:.4g} at δ = 0.005 covers the run and the choice" in done.out
    assert results["protocol"] in done.out
    assert "pmtl:" not in done.out.replace(results["chosen"], "")


def test_settings_of_the_grid_that_are_lists_of_options(tmp_path, pmtl_command):
    done = pmtl_command(
        *("compare", "--data", SPEC, "--rounds", 1, "--steps", 1, "--json"),
        *("--grid", "algorithm=pmtl,local", "--grid", "epsilon=1,inf", "--grid", "seed=3,5"),
        *("--out", tmp_path / "out"),
    )
    assert done.status == 0, done.err
    runs = json.loads(done.out)["runs"]
    assert {run["epsilon"] for run in runs} == {1.0, "inf", None}
    assert {run["seed"] for run in runs} == {3, 5}
    assert len(runs) == 2 * 2 + 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "lr=.1,.3", "--lr", "1"], "by --lr and by --grid"),
        (["--grid", "epsilon=1,2", "--epsilon", "1"], "by an option and by --grid"),
        (["--grid", "seed=1,2", "--seeds", "1"], "by an option and by --grid"),
        (["--grid", "epsilon=1,x"], "its values must be numbers"),
        (["--grid", "lrr=1"], "Did you mean 'lr'?"),
        (["--grid", "cohort=21,22"], "cohort of 21"),
        (["--jobs", "0"], "at least 1"),
        (["--jobs", "2", "--ledger", "l.db"], "A ledger has one writer"),
        (["--select", "--jobs", "2", "--grid", "lr=1,2"], "one run after the other"),
        (["--algorithm", "nothing"], "no algorithm 'nothing'"),
        (["--epsilon", "-1"], "greater than 0"),
        (["--seeds", "0"], "at least one"),
        (["--cohort", "21"], "cohort of 21"),
    ],
)
def test_mistakes_are_sentences(arguments, words, tmp_path, pmtl_command):
    refused = pmtl_command("compare", "--data", SPEC, "--out", tmp_path / "out", *arguments)
    assert refused.status == 2
    assert words in refused.err
    assert "Traceback" not in refused.err
    assert not (tmp_path / "out").exists()


def test_one_seed_has_no_deviation(pmtl_command, tmp_path):
    done = pmtl_command(
        *("compare", "--data", SPEC, "--rounds", 1, "--steps", 1, "--seeds", 1),
        *("--algorithm", "fedavg", "--epsilon", 2, "--out", tmp_path / "one"),
    )
    assert done.status == 0, done.err
    assert "±" not in done.out
    assert "one seed" in done.out
