"""Runs under less usual circumstances: changed files, other folders, odd names, odd models."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

import pmtl
from pmtl.algorithms import ClusteredPMTL
from pmtl.experiments.compare import Cell, Grid, compare
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig
from pmtl.runs.folder import RunFolder
from pmtl.simulation import LocalTraining

FEW = {"privacy": {"epsilon": 3.0, "rounds": 6}, "local": {"steps": 2, "batch": 4}}


class Crash(Exception):
    pass


def crash_after(rounds, monkeypatch, train):
    save = RunFolder.save_round

    def save_and_crash(self, line):
        save(self, line)
        if line["round"] == rounds:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", save_and_crash)
        with pytest.raises(Crash):
            train()


def dropout_model(input_shape, outputs):
    return torch.nn.Sequential(
        torch.nn.Linear(input_shape[0], 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, outputs)
    )


def variants(small, tmp_path):
    clusters = tmp_path / "clusters.json"
    clusters.write_text(json.dumps({c: str(int(c[-1]) % 3) for c in small.clients}))
    owner = np.empty(len(small.y), dtype=object)
    for rows in small.splits.values():
        for k, client in enumerate(small.clients):
            owner[rows.of(k)] = client
    owner = owner.astype(str)
    thin = pmtl.FederatedData.from_arrays(sparse.csr_matrix(small.x), small.y, owner, outputs=2)
    scaled = pmtl.FederatedData.from_arrays(small.x, small.y, owner, outputs=2, scale="client")
    return {
        "dropout": (small, {"model": dropout_model}),
        "clusters": (small, {"algorithm": f"clustered:clusters={clusters}"}),
        "sparse": (thin, {}),
        "scaled": (scaled, {}),
        "fixed": (small, {"privacy": {"rounds": 6, "cohort": 4, "sampling": "fixed"}}),
        "epochs": (small, {"local": {"epochs": 2, "batch": 3, "halve_every": 2}}),
    }


@pytest.mark.parametrize("name", ["dropout", "clusters", "sparse", "scaled", "fixed", "epochs"])
def test_every_kind_of_run_resumes_to_the_same_bytes(name, small, tmp_path, monkeypatch):
    data, changes = variants(small, tmp_path)[name]
    options = {**FEW, **changes, "checkpoint_seconds": 0.0}
    pmtl.train(data, out=tmp_path / "whole", **options)
    crash_after(3, monkeypatch, lambda: pmtl.train(data, out=tmp_path / "cut", **options))
    pmtl.resume(tmp_path / "cut", data=data, model=changes.get("model"))
    for file in ("personal.safetensors", "shared.safetensors", "metrics.jsonl", "result.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "cut" / file).read_bytes()


def test_an_edited_configuration_is_not_resumed(small, tmp_path, monkeypatch):
    crash_after(3, monkeypatch, lambda: pmtl.train(small, out=tmp_path / "cut", **FEW))
    file = tmp_path / "cut/config.toml"
    file.write_text(file.read_text().replace("lr = 0.1", "lr = 0.7"))
    with pytest.raises(pmtl.PmtlError, match="not what the run was started with"):
        pmtl.resume(tmp_path / "cut", data=small)


def test_changed_clusters_are_not_resumed(small, tmp_path, monkeypatch):
    def clusters(shift):
        return ClusteredPMTL(clusters={c: str((int(c[-1]) + shift) % 2) for c in small.clients})

    lopsided = ClusteredPMTL(clusters={c: str(int(c[-1]) < 2) for c in small.clients})
    run = {"out": tmp_path / "cut", **FEW}
    crash_after(3, monkeypatch, lambda: pmtl.train(small, algorithm=clusters(0), **run))
    with pytest.raises(pmtl.PmtlError, match="clusters or relations of clients are not those"):
        pmtl.resume(tmp_path / "cut", data=small, algorithm=lopsided)
    pmtl.resume(tmp_path / "cut", data=small, algorithm=clusters(0))


def test_a_run_can_be_used_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    rng = np.random.default_rng(0)
    np.savez(
        "d.npz", x=rng.normal(size=(60, 3)), y=rng.integers(0, 2, 60), client=np.arange(60) % 6
    )
    (tmp_path / "home/mine_review.py").write_text(
        "import torch\ndef make(input_shape, outputs):\n"
        "    return torch.nn.Linear(input_shape[0], outputs)\n"
    )
    run = pmtl.train(pmtl.load("d.npz"), model="mine_review:make", out="run", **FEW)
    grid = Grid(("local",), seeds=(0,), base=TrainConfig(data="d.npz"))
    compare(grid, "compared")
    monkeypatch.chdir(tmp_path / "away")
    again = pmtl.load_run(tmp_path / "home/run")
    assert again.evaluate() == run.evaluate()
    assert pmtl.load_run(tmp_path / "home/compared/runs/local-seed0").evaluate()["test"]


def test_a_selection_is_not_taken_for_its_source(tmp_path):
    data = pmtl.load("synthetic:clients=20")
    assert data.select(data.clients[:5]).source is None


def test_a_folder_called_synthetic_is_in_nobodys_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "synthetic").mkdir()
    pmtl.train("synthetic:clients=15", out="run", **FEW)
    assert pmtl.load_run("run").evaluate()["test"]


def test_pixels_are_read_alike_in_training_and_prediction(tmp_path):
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (80, 6)).astype(np.uint8)
    data = pmtl.FederatedData.from_arrays(x, (x[:, 0] > 128).astype(int), np.arange(80) % 8)
    run = pmtl.train(data, **FEW)
    assert (run.predict("3", x) == run.predict("3", x / np.float32(255))).all()


def test_a_plan_and_an_integer_client_are_accepted(small):
    plan = PrivacyPlan(small.m, 4, "poisson", 0.3, 0.05, 3, 1e-3)
    run = pmtl.train(small, privacy=plan, local=LocalTraining(steps=1))
    assert run.facts.plan == plan
    numbered = pmtl.train("synthetic:clients=12", **FEW)
    assert isinstance(numbered.personal(7), torch.nn.Module)


def test_nothing_is_called_shared_where_nothing_was(small):
    with pytest.raises(pmtl.PmtlError, match="Nothing was shared"):
        _ = pmtl.train(small, algorithm="local", **FEW).shared


def test_an_existing_folder_is_refused_before_the_data_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(pmtl.PmtlError, match="exists already"):
        pmtl.train("nothing.npz", out=tmp_path)


def test_cells_of_a_comparison_never_share_a_folder():
    cells = [
        Cell("pmtl", 1.0, 0),
        Cell("pmtl", 1.0000001, 0),
        Cell("clustered:clusters=a/b.json", 1.0, 0),
        Cell("clustered:clusters=a-b.json", 1.0, 0),
        Cell("pmtl", 1.0, 1),
    ]
    assert len({str(cell) for cell in cells}) == len(cells)
    assert Grid(epsilons=(1.0, 1.0), seeds=(2, 2)).epsilons == (1.0,)


@pytest.mark.parametrize(
    "base",
    [
        TrainConfig(data="synthetic:clients=9", model="nope"),
        TrainConfig(data="synthetic:clients=9", privacy=PrivacyRequest(cohort=400)),
        TrainConfig(data="synthetic:clients=9", device="abacus"),
    ],
)
def test_a_comparison_that_cannot_run_writes_nothing(base, tmp_path):
    with pytest.raises(pmtl.PmtlError):
        compare(replace(Grid(), base=base), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_large_client_does_not_make_the_shuffles_of_all_the_others_large():
    """300 small clients and one with 20,000 rows: a round's batches within 40 MB."""
    import tracemalloc

    from pmtl.client.batches import Batches
    from pmtl.streams import name_keys

    counts = [5] * 300 + [20_000]
    owner = np.repeat(np.arange(301), counts)
    x = np.zeros((len(owner), 1), dtype=np.float32)
    data = pmtl.FederatedData.from_arrays(x, owner % 2, owner, np.full(len(owner), "train"))
    batches = Batches(data.rows("train"), LocalTraining(), 0, name_keys(data.clients))
    tracemalloc.start()
    index, real = batches.draw(np.arange(301), 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert index.shape == (301, 10, 10)
    assert real.all(axis=2).any()
    assert peak < 40 * 2**20
