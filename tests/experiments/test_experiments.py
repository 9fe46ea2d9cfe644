"""The paper's experiments on a small federation: what they choose by, keep, report and survive."""

from __future__ import annotations

import json
import math
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import TINY, filled

import pmtl
from pmtl import storage as files
from pmtl.errors import PmtlError
from pmtl.experiments.figures import fig2
from pmtl.experiments.process_pool import run_tasks
from pmtl.experiments.results import Point, Results
from pmtl.experiments.run import EXPERIMENTS, run_experiments
from pmtl.experiments.settings import setting_of
from pmtl.experiments.tables import table1, table3
from pmtl.experiments.tasks import Cell, Task, TaskRunner, accuracy, histograms
from pmtl.models.hog import HogLinear
from pmtl.privacy.accounting import accountant, poisson
from pmtl.simulation import LocalTraining


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Results:
    """All experiments, run once."""
    lab = Results(TINY, tmp_path_factory.mktemp("paper"), device="cpu")
    run_experiments(EXPERIMENTS, lab)
    return lab


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_leaves_a_table_its_numbers_and_a_plot(name, done):
    told = json.loads((done.out / f"{name}.json").read_text())
    assert told["rows"]
    assert told["clients"] == 20
    table = (done.out / f"{name}.md").read_text()
    assert all(column in table for column in told["columns"])
    assert table.count("\n| ") == len(told["rows"]) + 2
    assert (done.out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_no_run_failed(done):
    assert done.failures == {}
    methods = {cell.algorithm.partition(":")[0] for cell in done.grid("fedprox")}
    assert methods == {"fedprox"}
    row = json.loads((done.out / "fedprox.json").read_text())["rows"][-1]
    assert row["private FedProx, ε ours"]["seeds"] == 2


def test_what_was_run_is_not_run_again(done, monkeypatch):
    """A second time everything is read: a stopped experiment goes on where it was."""

    def refuse(*args):
        raise AssertionError("trained again")

    again = Results(TINY, done.out.parent, device="cpu")
    monkeypatch.setattr(TaskRunner, "do", refuse)
    before = (done.out / "fig3.md").read_bytes()
    run_experiments(("fig3", "table1", "table3"), again)
    assert (done.out / "fig3.md").read_bytes() == before


def test_a_result_is_that_of_the_run_it_names(lab):
    """The same as training by the front door."""
    cell = Cell("pmtl:lam=0.1", 0.05, 0.5, 1)
    plan = lab.plan(0.05, 0.5, 4)
    run = pmtl.train(
        lab.data,
        algorithm="pmtl:lam=0.1",
        privacy={
            "noise": 0.05,
            "clip": 0.5,
            "rounds": 4,
            "cohort": 12,
            "sampling": plan.sampling,
            "delta": plan.delta,
        },
        local={"steps": 2, "batch": 5},
        evaluate_every=0,
        seed=1,
        model="logistic",
    )
    last = filled(lab, lab.curve, cell)[-1]
    assert last["round"] == 4
    assert {split: last[split] for split in ("test", "validation")} == run.evaluate()


def test_fine_tuning_starts_from_the_models_of_its_round(lab):
    """With no steps to speak of it changes nothing: what is tuned is what the curve measured."""
    still = Results(
        replace(TINY, tune=LocalTraining(steps=1, batch=5, lr=1e-12)),
        lab.out / "still",
        None,
        "cpu",
    )
    for name, view in (("pmtl:lam=0.1", "personal"), ("fedavg", "shared")):
        cell = Cell(name, 0.05, 0.5, 0)
        point = next(p for p in filled(still, still.curve, cell) if p["round"] == 2)
        for result in filled(still, still.tuned, cell, 2).values():
            assert accuracy(result, "test") == accuracy(point, "test", view)


def test_epsilon_is_counted_both_ways(lab):
    cell, plan = Cell("pmtl", 0.05, 0.5, 0), lab.plan(0.05, 0.5, 4)
    assert plan.sampling == "poisson"
    assert plan.delta == 1 / 20
    assert lab.epsilon("ours", cell, 4) == accountant.epsilon(plan)
    theirs = poisson.authors_epsilon(plan.noise_multiplier, 0.6, 4, 1 / 20)
    assert lab.epsilon("paper's", cell, 4) == theirs
    assert lab.epsilon("ours", Cell("pmtl", 0.0, math.inf, 0), 4) == math.inf


def write_curve(lab: Results, cell: Cell, values: dict[int, tuple[float, float]]) -> None:
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
    files.write_json(lab.out / "cells" / f"{cell}.json", {"curve": curve})


def test_validation_chooses_and_test_reports_what_the_budget_allows(lab, monkeypatch):
    one, two = Cell("a", 0.1, 0.5, 0), Cell("b", 0.2, 0.5, 0)
    write_curve(lab, one, {1: (0.5, 0.1), 2: (0.9, 0.2), 4: (0.95, 0.99)})
    write_curve(lab, two, {1: (0.6, 0.3), 2: (0.9, 0.8), 4: (0.7, 0.9)})
    write_curve(lab, replace(one, seed=1), {2: (0.1, 0.4)})
    spent = {0.1: 2.0, 0.2: 1.0}
    monkeypatch.setattr(lab, "epsilon", lambda how, cell, rounds: rounds * spent[cell.sigma])
    # ε = 4 pays for two rounds of the first and four of the second; fewer rounds win a draw.
    assert lab.best([one, two], 4.0, "ours", "personal") == Point(one, 2)
    assert lab.best([one, two], 3.0, "ours", "personal") == Point(two, 2)
    assert lab.best([one, two], 100.0, "ours", "personal") == Point(one, 4)
    assert lab.best([one, two], 0.5, "ours", "personal") is None
    assert lab.reported(Point(one, 2), "personal") == [0.2, 0.4]


def test_a_run_that_fails_says_so_and_the_others_go_on(lab, monkeypatch):
    train = TaskRunner._train

    def sometimes(self, cell):
        if cell.sigma == 0.2:
            raise PmtlError("An image cannot be read.")
        return train(self, cell)

    monkeypatch.setattr(TaskRunner, "_train", sometimes)
    (sheet,) = run_experiments(["fig3"], lab)
    assert any(isinstance(row["PMTL, ε ours"], dict) for row in sheet.rows)
    name = "pmtl-lam=0.1-sigma0.2-clip0.5-seed0"
    assert lab.failures[name] == "An image cannot be read."
    file = lab.out / f"cells/{name}.json"
    assert files.read_json(file)["error"] == "An image cannot be read."
    monkeypatch.setattr(TaskRunner, "_train", train)  # The image was put back.
    run_experiments(["fig3"], Results(TINY, lab.out.parent, device="cpu"))
    assert files.read_json(file)["curve"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_want_of_memory_is_one_runs_failure(lab, monkeypatch, error):
    def full(self, cell):
        raise error

    monkeypatch.setattr(TaskRunner, "_train", full)
    lab.curve(Cell("local", 0.0, math.inf, 0))
    lab.fill()
    (reason,) = lab.failures.values()
    assert "fewer --jobs" in reason
    lab.fill()  # Nothing is missing, and nothing is done.


def test_an_experiment_whose_runs_all_fail_still_ends(lab, monkeypatch):
    def fail(self, cell):
        raise PmtlError("An image cannot be read.")

    monkeypatch.setattr(TaskRunner, "_train", fail)
    monkeypatch.setattr(TaskRunner, "_models", lambda self, cell, rounds: fail(self, cell))
    names = [name for name in EXPERIMENTS if name != "clusters"]
    sheets = run_experiments(names, lab)
    assert [sheet.name for sheet in sheets] == names
    assert set(lab.failures.values()) == {"An image cannot be read."}


def test_choices_by_another_rule_are_made_again(lab):
    cell = Cell("pmtl:lam=0.1", 0.05, 0.5, 0)
    assert filled(lab, lab.chosen, cell, 2) is not None
    file = lab.out / "cells" / f"{cell}-rounds2-chosen.json"
    kept = files.read_json(file)
    kept.pop("digest", None)
    files.write_json(file, kept | {"rule": "the best accuracy"})
    again = Results(TINY, lab.out.parent, device="cpu")
    assert again.chosen(cell, 2) is None
    assert list(again.missing) == [Task("chosen", cell, 2)]


def test_nothing_is_chosen_before_all_curves_are_there(lab):
    cells = lab.grid("pmtl")
    write_curve(lab, cells[0], {1: (0.5, 0.5)})
    assert lab.best(cells, math.inf, "ours", "personal") is None
    assert list(lab.missing) == [Task("curve", cell) for cell in cells[1:]]
    lab.fill()
    assert not lab.missing
    assert lab.best(cells, math.inf, "ours", "personal") is not None


def test_several_at_once_give_the_same(done, tmp_path):
    lab = Results(TINY, tmp_path, device="cpu", jobs=2)
    run_experiments(("fig2", "clusters"), lab)
    for name in ("fig2.json", "clusters.json"):
        mine, theirs = (json.loads((each.out / name).read_text()) for each in (lab, done))
        assert mine["rows"] == theirs["rows"]


def test_what_is_at_work_beside_a_failure_is_kept(lab):
    several = Results(TINY, lab.out / "several", device="cpu", jobs=2)
    several.curve(Cell("local", 0.0, math.inf, 0))
    several.curve(Cell("local", 0.0, math.inf, "no number"))  # Not a sentence, but a mistake.
    with pytest.raises(TypeError):
        several.fill()
    assert several.curve(Cell("local", 0.0, math.inf, 0))


def test_after_a_mistake_nothing_new_is_begun(lab, monkeypatch):
    class Waiting(Future):
        def cancel(self):
            super().cancel()
            return self.set_running_or_notify_cancel()

    wrong, waiting = Future(), Waiting()
    wrong.set_exception(TypeError("no number"))
    futures = iter([wrong, waiting])

    class Pool:
        def __init__(self, *args, **kwargs):
            pass

        def submit(self, *args):
            return next(futures)

        def shutdown(self, **kwargs):
            pass

    monkeypatch.setattr("pmtl.experiments.process_pool.ProcessPoolExecutor", Pool)
    tasks = [Task("curve", Cell("local", 0.0, math.inf, seed)) for seed in (0, 1)]
    with pytest.raises(TypeError, match="no number"):
        list(run_tasks(lab._runner.do, tasks, 2))
    assert waiting.cancelled()


def test_whoever_stops_does_not_wait_for_the_workers(lab, monkeypatch):
    made = []

    class Pool(ProcessPoolExecutor):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr("pmtl.experiments.process_pool.ProcessPoolExecutor", Pool)
    tasks = [Task("curve", Cell("local", 0.0, math.inf, seed)) for seed in range(4)]
    results = run_tasks(lab._runner.do, tasks, 2)
    next(results)
    workers = list(made[0]._processes.values())
    results.close()  # As an interrupt would.
    assert [worker.exitcode for worker in workers] == [-signal.SIGTERM] * 2


def test_a_worker_that_ends_before_its_time_is_a_sentence(lab, monkeypatch):
    class Broken:
        def __init__(self, *args, **kwargs):
            pass

        def submit(self, *args):
            broken = Future()
            broken.set_exception(BrokenProcessPool("A child process terminated abruptly"))
            return broken

        def shutdown(self, **kwargs):
            pass

    monkeypatch.setattr("pmtl.experiments.process_pool.ProcessPoolExecutor", Broken)
    several = Results(TINY, lab.out / "several", device="cpu", jobs=2)
    several.curve(Cell("local", 0.0, math.inf, 0))
    with pytest.raises(PmtlError, match="fewer --jobs"):
        several.fill()


def test_a_device_that_is_not_there_is_refused_though_all_is_done(done, pmtl_command, monkeypatch):
    monkeypatch.setattr("pmtl.experiments.settings.setting_of", lambda name, quick: TINY)
    options = ("--on", "synthetic", "--out", done.out.parent)
    assert pmtl_command("paper", "fig2", *options, "--device", "cpu").status == 0
    refused = pmtl_command("paper", "fig2", *options, "--device", "tpu")
    assert refused.status == 2
    assert "tpu" in refused.err


def test_a_mistake_does_not_claim_the_folder(tmp_path):
    with pytest.raises(PmtlError, match="There is no file"):
        run_experiments(["fig2"], Results(TINY, tmp_path, data="nowhere.npz", device="cpu"))
    assert run_experiments(["fig2"], Results(TINY, tmp_path, device="cpu"))


def test_results_of_other_settings_are_not_mixed(lab):
    filled(lab, lab.curve, Cell("local", 0.0, math.inf, 0))
    with pytest.raises(PmtlError, match="results of other settings"):
        Results(replace(TINY, rounds=8), lab.out.parent, device="cpu")


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
    lab = Results(setting, tmp_path, device="cpu")
    (sheet,) = run_experiments(["clusters"], lab)
    row = sheet.rows[-1]
    assert row["clustered"]["mean"] > row["PMTL"]["mean"] + 0.05
    assert row["clustered"]["mean"] > row["wrong clusters"]["mean"] + 0.05
    assert row["clustered"]["mean"] > row["both"]["mean"] > row["PMTL"]["mean"]


def test_histograms_are_what_the_model_would_compute():
    random = np.random.default_rng(0)
    x = random.integers(0, 255, (60, 28, 28), dtype=np.uint8)
    y, owner = random.integers(0, 3, 60), np.arange(60) % 4
    data = pmtl.FederatedData.from_arrays(x, y, owner, outputs=3)
    made = histograms(data)
    assert made.clients == data.clients
    hog = HogLinear((28, 28), 3)
    for split in ("train", "test"):
        mine, theirs = made.rows(split), data.rows(split)
        assert mine.counts.tolist() == theirs.counts.tolist()
        features, targets = made.gather(mine.order)
        pixels, expected = data.gather(theirs.order)
        assert np.allclose(features, hog.features(torch.from_numpy(pixels)).numpy(), atol=1e-6)
        assert np.array_equal(targets, expected)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fig9"], "There is no experiment 'fig9'"),
        (["fig3", "--on", "femnits"], "Did you mean 'femnist'"),
        (["fig3", "--on", "femnist"], "pmtl data fetch femnist"),
        (["fig3", "--on", "femnist", "--data", "nowhere.npz"], "There is no file or folder"),
        (["clusters", "--quick"], "whose clusters are known"),
        (["fig3", "--quick", "--jobs", "0"], "at least one job"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence, pmtl_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = pmtl_command("paper", *arguments, "--out", "out")
    assert done.status == 2
    assert sentence in done.err
    assert not [*tmp_path.glob("out/*/cells/*")]
