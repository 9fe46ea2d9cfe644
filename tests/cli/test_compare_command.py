"""`pmtl compare`: table, JSON and plot; mistakes are sentences."""

from __future__ import annotations

import json

import pytest

from pmtl.experiments.compare import Grid, compare
from pmtl.experiments.sweep.summary import prices
from pmtl.privacy.accounting import selection
from pmtl.privacy.plan import PrivacyRequest
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
        expected = selection.report(plan, 2)
        assert {name: entry[name] for name in expected} == expected
        assert entry["publish_best"] > entry["one_run"]
    at_1, at_4 = (f"{entry['publish_best']:.3g}" for entry in results["selection"])
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
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
