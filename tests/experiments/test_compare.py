"""Comparisons: chosen by validation, continued after a stop, charged like any run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pmtl import storage as files
from pmtl.algorithms import FedAvg
from pmtl.data import load
from pmtl.errors import Interrupted, PmtlError
from pmtl.experiments.compare import (
    CellRunner,
    Grid,
    compare,
    read_plan,
    resume_comparison,
    write_plan,
)
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig, merge
from pmtl.simulation import LocalTraining

SPEC = "synthetic:clients=20,samples=12"


def grid(**changes):
    base = TrainConfig(
        data=SPEC, privacy=PrivacyRequest(rounds=2), local=LocalTraining(steps=2), evaluate_every=0
    )
    values = {
        "algorithms": ("pmtl:lam=0.1", "pmtl:lam=5", "local"),
        "epsilons": (1.0, float("inf")),
        "seeds": (0, 1),
        "base": base,
    }
    return Grid(**{**values, **changes})


def test_means_and_deviations_are_over_seeds(tmp_path):
    results = compare(grid(), tmp_path / "out")
    line = next(e for e in results["summary"] if e["algorithm"] == "local")
    values = [
        run["test"]["personal"]["accuracy"]
        for run in results["runs"]
        if run["algorithm"] == "local"
    ]
    mean = sum(values) / 2
    assert line["test_personal"]["accuracy"]["mean"] == pytest.approx(mean)
    deviation = (sum((value - mean) ** 2 for value in values)) ** 0.5
    assert line["test_personal"]["accuracy"]["std"] == pytest.approx(deviation)


def test_a_comparison_goes_on_where_it_stopped(tmp_path, monkeypatch):
    whole = compare(grid(), tmp_path / "whole")
    calls = []
    do = CellRunner.do

    def die_at_third(runner, cell):
        calls.append(cell)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return do(runner, cell)

    with monkeypatch.context() as patch:
        patch.setattr(CellRunner, "do", die_at_third)
        with pytest.raises(KeyboardInterrupt):
            compare(grid(), tmp_path / "cut")
    resumed = resume_comparison(tmp_path / "cut")
    assert resumed == whole
    assert (tmp_path / "cut/results.json").read_bytes() == (
        tmp_path / "whole/results.json"
    ).read_bytes()


def test_a_stop_ends_after_the_present_run_and_says_how_to_go_on(tmp_path, monkeypatch):
    finished = []
    do = CellRunner.do

    def stop_after_second(runner, cell):
        row = do(runner, cell)
        finished.append(cell)
        if len(finished) == 2:
            runner.stop.set()
        return row

    with monkeypatch.context() as patch:
        patch.setattr(CellRunner, "do", stop_after_second)
        with pytest.raises(
            Interrupted, match="Stopped after 2 of 10 runs; continue with `pmtl resume"
        ):
            compare(grid(), tmp_path / "cut")
    assert len([*(tmp_path / "cut/runs").iterdir()]) == len(finished) == 2
    assert len(resume_comparison(tmp_path / "cut")["runs"]) == 10


def test_an_existing_folder_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_text("")
    with pytest.raises(PmtlError, match="exists already"):
        compare(grid(), tmp_path / "out")


def test_a_comparison_is_charged_like_any_run_and_is_never_production(tmp_path):
    data = load(SPEC)
    Ledger.create(tmp_path / "ledger.db", data.clients).close()
    base = replace(grid().base, ledger=str(tmp_path / "ledger.db"))
    compare(grid(base=base, epsilons=(1.0,)), tmp_path / "out")
    with Ledger.open(tmp_path / "ledger.db", write=False) as ledger:
        # Two settings of PMTL, two seeds, two rounds; training alone is free.
        assert sum(ledger.events().values()) == 2 * 2 * 2
    with pytest.raises(PmtlError, match="is an experiment"):
        grid(base=replace(base, mode="production"))


def test_a_base_with_an_epsilon_of_its_own_is_refused():
    with pytest.raises(PmtlError, match="sets ε itself"):
        grid(base=TrainConfig(privacy=PrivacyRequest(epsilon=3.0)))


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithms": ["theirs:Mine", "local"]},
        {"axes": {"model": ["theirs:net", "linear"]}},
        {"base": {"model": "theirs:net"}},
        {"base": {"metric": "auc+theirs:value"}},
        {"base": {"privacy": {"sampling": "theirs:Draws"}}},
        {"base": {"data": "victim:reader=os:remove"}},
    ],
)
def test_a_comparison_of_somebody_else_runs_no_code_that_it_names(changes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "victim").touch()
    (tmp_path / "theirs.py").write_text("raise SystemExit('their code runs')")
    file = tmp_path / "compared" / "comparison.json"
    write_plan(grid(), file, load(SPEC))
    files.write_json(file, merge(files.read_json(file), changes))
    with pytest.raises(PmtlError, match=r"names code of its own .*PMTL_TRUST_CODE=1"):
        resume_comparison(file.parent)
    assert (tmp_path / "victim").exists()


def test_ones_own_comparison_with_code_is_continued(tmp_path):
    own = grid(algorithms=(f"{FedAvg.__module__}:FedAvg", "local"), epsilons=(1.0,), seeds=(0,))
    compare(own, tmp_path)
    plan = files.read_json(tmp_path / "comparison.json")
    again = resume_comparison(tmp_path)
    assert not again["failures"]
    files.write_json(tmp_path / "comparison.json", plan | {"seeds": [1]})
    with pytest.raises(PmtlError, match="names code of its own"):
        resume_comparison(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"algorithms": ("nosuch",)}, "no algorithm 'nosuch'"),
        ({"base": TrainConfig(model="nosuch")}, "no model 'nosuch'"),
        ({"base": TrainConfig(device="nosuch")}, "The device 'nosuch'"),
        ({"seeds": (-1,)}, "seed must be at least 0"),
        ({"jobs": 0}, "jobs must be at least 1"),
    ],
)
def test_a_mistake_is_told_before_the_data_are_read(wrong, words, tmp_path):
    values = {"base": TrainConfig(), "jobs": 1, **wrong}
    jobs, base = values.pop("jobs"), replace(values.pop("base"), data="nosuch.csv")
    with pytest.raises(PmtlError, match=words):
        compare(grid(**values, base=base), tmp_path / "out", jobs=jobs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("algorithms", "no entry 'algorithms' in .*comparison.json"),
        ("base", "no entry 'base' in"),
        ({"algorithms": "pmtl"}, "'algorithms' is not valid"),
        ({"epsilons": ["large"]}, "'epsilons' is not valid"),
        ({"seeds": [0.5]}, "'seeds' is not valid"),
        ({"base": 3}, "'base' is not valid"),
        ({"axes": {"lr": 3}}, "'axes' is not valid"),
        ({"colour": "red"}, "no entry of .* named 'colour'"),
        ({"format": 99}, "use the version that wrote it"),
    ],
)
def test_a_plan_with_a_wrong_entry_is_a_sentence(changes, words, tmp_path):
    file = tmp_path / "comparison.json"
    write_plan(grid(), file, load(SPEC))
    assert read_plan(file) == grid(base=replace(grid().base, data=load(SPEC).source))
    values = files.read_json(file)
    if isinstance(changes, str):
        del values[changes]
    else:
        values |= changes
    files.write_json(file, values)
    with pytest.raises(PmtlError, match=words):
        read_plan(file)
