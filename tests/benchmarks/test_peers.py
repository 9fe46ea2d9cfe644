"""The benchmark beside peers compares like with like: its models, data and table are what they say.

The peers themselves are not needed here.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pmtl.models import build_model

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture
def peers(monkeypatch):
    """The benchmark's folder on the path, and its modules gone afterwards."""
    monkeypatch.syspath_prepend(str(PEERS))
    names = ("workload", "turn", "table", "environments", "torch_model", "with_pmtl", "run")
    yield
    for name in names:
        sys.modules.pop(name, None)


def small_federation(workload, clients=3):
    return replace(workload, clients=clients, cohort=2)


@pytest.mark.parametrize("name", ["small", "wide", "cnn"])
def test_the_model_on_paper_is_the_librarys(peers, name):
    from workload import LOGISTIC, WORKLOADS, draw, logits

    workload = small_federation(WORKLOADS[name])
    made = draw(workload)
    model = build_model(
        "logistic" if workload.layers == LOGISTIC else "femnist_cnn",
        (workload.features,),
        workload.outputs,
        "classification",
        0,
    )
    assert model.size == workload.parameters == len(made.start)
    assert [n for n, _ in model.module.named_parameters()] == [n for n, _ in workload.layers]
    x = made.x[0, :4]
    with torch.no_grad():
        answers = model.apply(torch.from_numpy(made.start), torch.from_numpy(x))
    np.testing.assert_allclose(answers.numpy(), logits(workload, made.start, x), atol=1e-5)


def test_the_workloads_are_those_of_the_readme(peers):
    from workload import WORKLOADS

    assert WORKLOADS["cnn"].parameters == 115_646
    page = (PEERS / "README.md").read_text(encoding="utf-8")
    for name, asked in WORKLOADS.items():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        numbers = [asked.cohort, asked.steps, asked.timed]
        assert cells[2] == f"{asked.clients:,} × {asked.rows}"
        assert [int(cell.replace(",", "")) for cell in cells[3:]] == numbers
        assert asked.rows == asked.steps * asked.batch  # No short batches anywhere.


@pytest.mark.parametrize("name", ["small", "cnn"])
def test_the_modules_of_the_torch_peers_are_the_same(peers, name):
    from torch_model import module, tensors
    from workload import WORKLOADS, draw, logits

    workload = small_federation(WORKLOADS[name])
    made = draw(workload)
    model = module(workload)
    model.load_state_dict(tensors(workload, made.start))
    with torch.no_grad():
        answers = model(torch.from_numpy(made.x[1, :4]))
    wanted = logits(workload, made.start, made.x[1, :4])
    np.testing.assert_allclose(answers.numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["pmtl", "fedavg"])
def test_the_reference_trains_whom_it_is_told_in_file_order(
    peers, tmp_path, monkeypatch, algorithm
):
    """Against Algorithm 1 (or FedAvg) by hand in NumPy: two rounds, one client in both."""
    import with_pmtl
    import workload as definitions

    asked = small_federation(definitions.WORKLOADS["small"])
    monkeypatch.setitem(definitions.EVERY, "small", asked)
    definitions.write(asked, tmp_path)
    drawn = tmp_path / "cohorts.json"
    drawn.write_text(json.dumps({"cohorts": [[0, 2], [1, 2]]}))
    arguments = ["--workload", "small", "--algorithm", algorithm, "--ways", "x", "--no-noise"]
    arguments += ["--folder", str(tmp_path), "--out", str(tmp_path), "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", ["with_pmtl.py", *arguments, "--cohorts", str(drawn)])
    with_pmtl.main()

    made = definitions.read(tmp_path)
    shared = made.start.astype(np.float64)
    own = {k: shared.copy() for k in range(3)}
    for cohort in ([0, 2], [1, 2]):
        total = np.zeros_like(shared)
        for k in cohort:
            before = own[k] if algorithm == "pmtl" else shared
            w = before.copy()
            for step in range(asked.steps):
                rows = slice(step * asked.batch, (step + 1) * asked.batch)
                slope = gradient(asked, w, made.x[k, rows], made.y[k, rows])
                if algorithm == "pmtl":
                    slope += definitions.LAM * (w - shared)
                w -= asked.lr * slope
            own[k], moved = w, w - before
            total += moved * min(1, asked.clip / np.linalg.norm(moved))
        shared = shared + total / asked.cohort
    np.testing.assert_allclose(np.load(tmp_path / "shared.npy"), shared, atol=1e-6)
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["local_steps"] == 2 * 2 * asked.steps
    assert answer["cohorts"] == [[0, 2], [1, 2]]


def gradient(workload, vector, x, y):
    """Of the mean cross-entropy of a linear model."""
    from workload import cut

    w = cut(workload, vector)
    scores = x @ w["linear.weight"].T + w["linear.bias"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    odds[np.arange(len(y)), y] -= 1
    odds /= len(y)
    return np.concatenate([(odds.T @ x).ravel(), odds.sum(axis=0)])


def test_a_contestant_that_fails_does_not_stop_the_others(peers, tmp_path, monkeypatch):
    import run
    import workload as definitions

    asked = small_federation(definitions.WORKLOADS["small"])
    definitions.write(asked, tmp_path)

    def raised(script, limit=20.0):
        monkeypatch.setattr(
            run.Contestant, "command", lambda self, packages: [sys.executable, "-c", script, "--"]
        )
        with pytest.raises(run.Failure) as caught:
            run.take_turn(run.CONTESTANTS[0], "small", "pmtl", 1, tmp_path, limit)
        return str(caught.value)

    assert raised("raise SystemExit('no such thing')") == "Ended with status 1: no such thing"
    assert "within 0.5 seconds" in raised("import time; time.sleep(60)", 0.5)


def test_what_cannot_be_installed_is_tried_once(peers, monkeypatch):
    import run

    tried = []

    def environment(name):
        tried.append(name)
        raise RuntimeError(f"Installing {name} failed: no such version.")

    monkeypatch.setattr(run, "environment", environment)
    for who in run.CONTESTANTS[:2]:
        with pytest.raises(run.Failure, match="Installing pfl failed: no such version"):
            who.command()
    assert tried == ["pfl"]


def test_on_a_cpu_nobody_sees_a_card_and_peers_see_nothing_of_ours(peers, tmp_path, monkeypatch):
    import run

    monkeypatch.setenv("PYTHONPATH", "src")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    here, card = run.Where(), run.Where("cuda", tmp_path)
    assert here.values("pmtl")["PYTHONPATH"] == "src"
    assert here.values("pfl")["CUDA_VISIBLE_DEVICES"] == ""
    assert "PYTHONPATH" not in here.values("pfl")
    assert card.values("pfl")["PYTHONPATH"] == str(tmp_path / "pfl")
    assert "CUDA_VISIBLE_DEVICES" not in card.values("pfl")
    assert all("OMP_NUM_THREADS" not in each.values("pmtl") for each in (here, card))
    assert run.CONTESTANTS[0].command(tmp_path)[0] == sys.executable


def test_other_work_is_refused(peers, tmp_path, monkeypatch):
    import run
    import workload as definitions

    definitions.write(definitions.WORKLOADS["small"], tmp_path)
    start = definitions.read(tmp_path).start
    answer = {"cohorts": [list(range(100))] * 3, "local_steps": 600, "clipped": 0.5}

    def turn(who, *rest, where):
        return answer | {"shared": start + (1.0 if who is run.OURS else off)}

    monkeypatch.setattr(run, "take_turn", turn)
    asked = (run.CONTESTANTS[0], "small", "pmtl", tmp_path, 1.0)
    off = 1 + 1e-6
    assert run.check(*asked)["clients_in_both_rounds"] == 100
    off = 1.01
    with pytest.raises(run.Failure, match="other work"):
        run.check(*asked)
    off, answer["local_steps"] = 1.0, 200
    with pytest.raises(run.Failure, match="200 local steps were counted instead of 600"):
        run.check(*asked)


def test_the_table_marks_the_best_and_shows_errors(peers):
    from table import table

    taken = {"median": 0.002, "quartiles": [0.001, 0.003], "startup": 1.0, "first_round": 0.5}
    common = {"workload": "small", "algorithm": "pmtl", "peer": "pfl"}
    rows = [
        common | {"title": name, "ours": taken, "theirs": taken | {"median": t}, "ratio": t / 0.002}
        for name, t in (("slow", 0.006), ("quick", 0.004))
    ]
    for row in rows:
        row["check"] = {"max_difference": 1e-8}
    rows.append(common | {"title": "broken", "error": "It fell | over."})
    lines = table({"results": rows, "note": "busy"}).splitlines()
    assert "| 3.00 |" in lines[2]
    assert "| **2.00** |" in lines[3]
    assert "failed: It fell / over." in lines[4]
    assert lines[-1] == "busy"
    assert len({line.count("|") for line in lines[:5]}) == 1
