"""The paper's experiments on a small federation: what they report and survive."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from tiny import TINY

from pmtl import storage as files
from pmtl.errors import PmtlError
from pmtl.experiments import tasks
from pmtl.experiments.figures import fig2, longer, table1, table3
from pmtl.experiments.results import Results
from pmtl.experiments.run import EXPERIMENTS, run_experiments
from pmtl.experiments.settings import setting_of
from pmtl.experiments.tasks import TaskRunner


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Results:
    """All experiments, run once."""
    results = Results(TINY, tmp_path_factory.mktemp("paper"), device="cpu")
    run_experiments(EXPERIMENTS, results)
    return results


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_leaves_a_table_its_numbers_and_a_plot(name, done):
    saved = json.loads((done.out / f"{name}.json").read_text())
    assert saved["rows"]
    assert saved["clients"] == 20
    table = (done.out / f"{name}.md").read_text()
    assert all(column in table for column in saved["columns"])
    assert table.count("\n| ") == len(saved["rows"]) + 2
    assert (done.out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_no_run_failed(done):
    assert done.failures == {}
    methods = {cell.algorithm.partition(":")[0] for cell in done.grid("fedprox")}
    assert methods == {"fedprox"}
    row = json.loads((done.out / "fedprox.json").read_text())["rows"][-1]
    assert row["private FedProx, ε ours"]["seeds"] == 2


def test_accuracy_against_rounds_is_that_of_the_runs_without_noise(done):
    rows = longer(done).rows
    (cell,) = done.grid("pmtl", private=False)[:1]
    lam = cell.algorithm.partition("lam=")[2].partition(",")[0]
    curve = done.curve(cell)
    assert [row["rounds"] for row in rows] == [point["round"] for point in curve]
    for row, point in zip(rows, curve, strict=True):
        for column, view in (
            (f"PMTL, λ = {lam}", "personal"),
            (f"its shared model, λ = {lam}", "shared"),
        ):
            assert row[column]["mean"] == point["test"][view]["accuracy"]
    (free,) = done.grid("fedavg", private=False)
    assert rows[-1]["global"]["mean"] == done.curve(free)[-1]["test"]["shared"]["accuracy"]


def test_what_was_run_is_not_run_again(done, monkeypatch):
    """A second time everything is read: a stopped experiment goes on where it was."""

    def refuse(*args):
        raise AssertionError("trained again")

    monkeypatch.setattr(TaskRunner, "do", refuse)
    again = Results(TINY, done.out.parent, device="cpu")
    before = (done.out / "fig3.md").read_bytes()
    run_experiments(("fig3", "table1", "table3"), again)
    assert (done.out / "fig3.md").read_bytes() == before


def test_a_run_that_fails_says_so_and_the_others_go_on(results, monkeypatch):
    simulate = tasks.simulate

    def sometimes(data, model, algorithm, plan, *rest):
        if plan.noise_std == 0.2:
            raise PmtlError("An image cannot be read.")
        return simulate(data, model, algorithm, plan, *rest)

    monkeypatch.setattr(tasks, "simulate", sometimes)
    (sheet,) = run_experiments(["fig3"], results)
    assert any(isinstance(row["PMTL, ε ours"], dict) for row in sheet.rows)
    name = "pmtl-lam=0.1-sigma0.2-clip0.5-seed0"
    assert results.failures[name] == "An image cannot be read."
    file = results.out / f"cells/{name}.json"
    assert files.read_json(file)["error"] == "An image cannot be read."
    monkeypatch.setattr(tasks, "simulate", simulate)  # The image was put back.
    run_experiments(["fig3"], Results(TINY, results.out.parent, device="cpu"))
    assert files.read_json(file)["curve"]


def test_an_experiment_whose_runs_all_fail_still_ends(results, monkeypatch):
    def fail(*rest):
        raise PmtlError("An image cannot be read.")

    monkeypatch.setattr(tasks, "simulate", fail)
    names = [name for name in EXPERIMENTS if name != "clusters"]
    sheets = run_experiments(names, results)
    assert [sheet.name for sheet in sheets] == names
    assert set(results.failures.values()) == {"An image cannot be read."}


def test_several_at_once_give_the_same(done, tmp_path):
    results = Results(TINY, tmp_path, device="cpu", jobs=2)
    EXPERIMENTS["clusters"](results)  # Its first runs, among them algorithms that have no spec.
    asked = list(results.missing)
    assert len(asked) > 10
    results.fill()
    for task in asked:
        mine, theirs = ({**at.get(task), "seconds": 0} for at in (results, done))
        assert mine == theirs
        assert mine.keys() > {task.kind}


def test_a_device_that_is_not_there_is_refused_though_all_is_done(done, pmtl_command, monkeypatch):
    monkeypatch.setattr("pmtl.experiments.settings.setting_of", lambda name, quick: TINY)
    options = ("--on", "synthetic", "--out", done.out.parent)
    assert pmtl_command("paper", "fig2", *options, "--device", "cpu").status == 0
    refused = pmtl_command("paper", "fig2", *options, "--device", "tpu")
    assert refused.status == 2
    assert "tpu" in refused.err


def test_table_1_has_every_method_from_both_starts(done):
    sheet = table1(done)
    assert [(row["ε, paper's"], row["start"]) for row in sheet.rows] == [
        (50.0, "MTL"),
        (50.0, "Global"),
        (math.inf, "MTL"),
        (math.inf, "Global"),
    ]
    for row in sheet.rows:
        assert all(row[m]["seeds"] == 2 for m in ("before", "vanilla", "mean", "kl", "ewc"))
    assert sheet.rows[0]["ε, ours"] != sheet.rows[0]["ε, paper's"]


def test_table_3_lets_clients_choose(done):
    for row in table3(done).rows:
        assert {row["counted"], "ours", "paper's"} == {"ours", "paper's"}
        assert row["local"]["seeds"] == row["PMTL + select"]["seeds"] == 2
    picked = [
        files.read_json(file)["chosen"]["picked"] for file in done.out.glob("cells/*-chosen.json")
    ]
    assert picked
    assert all(sum(counts.values()) == 20 for counts in picked)


def test_fig_2_rises_in_epsilon(done):
    rows = fig2(done).rows
    assert [row["rounds"] for row in rows] == [1, 2, 4]
    for counting in ("ε, ours", "ε, paper's"):
        assert rows[0][counting] < rows[1][counting] < rows[2][counting]


def test_true_clusters_help_where_there_are_some(tmp_path):
    """Without noise, with clients too small to learn alone."""
    setting = replace(
        setting_of("clusters", quick=True),
        data="synthetic:clusters=4,alpha=0.05,clients=120,samples=6",
        cohort=120,
        rounds=16,
        sigmas=(0.001,),
        epsilons=(1e6,),
        lams=(1.0,),
        seeds=(0,),
    )
    results = Results(setting, tmp_path, device="cpu")
    (sheet,) = run_experiments(["clusters"], results)
    row = sheet.rows[-1]
    assert row["clustered"]["mean"] > row["PMTL"]["mean"] + 0.05
    assert row["clustered"]["mean"] > row["wrong clusters"]["mean"] + 0.05
    assert row["clustered"]["mean"] > row["both"]["mean"] > row["PMTL"]["mean"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fig9"], "There is no experiment 'fig9'"),
        (["fig3", "--on", "femnits"], "Did you mean 'femnist'"),
        (["fig3", "--on", "femnist"], "pmtl data fetch femnist"),
        (["fig3", "--on", "femnist", "--data", "nowhere.npz"], "There is no file or folder"),
        (["clusters", "--quick"], "data with known clusters"),
        (["fig3", "--quick", "--jobs", "0"], "jobs must be at least 1"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence, pmtl_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = pmtl_command("paper", *arguments, "--out", "out")
    assert done.status == 2
    assert sentence in done.err
    assert not [*tmp_path.glob("out/*/cells/*")]
