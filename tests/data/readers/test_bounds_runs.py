"""Runs on data with public bounds, from training to predictions on raw rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from weights import personal

import pmtl
from pmtl.algorithms import Pooling, Sizes
from pmtl.data import Bounds
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.folder import RunFolder

ALL = {0: (0, 110), 1: (0, 100), "target": (0, 150)}
SOME = {1: (0, 100), "target": (0, 150)}
M, ROWS = 120, 12


def rows():
    random = np.random.default_rng(7)
    x = np.stack([random.uniform(0, 110, M * ROWS), random.normal(50, 10, M * ROWS)], 1)
    client = np.repeat([f"c{k:03d}" for k in range(M)], ROWS)
    level = np.repeat(random.normal(size=M) * 5, ROWS)
    y = 20 + 0.3 * x[:, 0] + 0.5 * x[:, 1] + level + random.normal(size=M * ROWS) * 5
    return x, y, client


def federation(bounds=None, **options):
    return pmtl.FederatedData.from_arrays(*rows(), bounds=bounds, **options)


@pytest.mark.parametrize("bounds", [ALL, SOME, {"target": (0, 150)}], ids=["all", "some", "target"])
def test_a_run_is_read_again_with_raw_data_and_predicts_on_raw_rows(bounds, tmp_path):
    run = pmtl.train(federation(bounds), privacy=2.0, out=tmp_path / "run")
    measured = run.evaluate()
    assert measured["test"]["personal"]["rmse"] < 7
    assert measured["test"]["alone"]["rmse"] < 7
    x, y, client = rows()
    again = pmtl.load_run(tmp_path / "run", data=federation())
    assert again.evaluate() == measured
    mine = client == "c017"
    answers = again.predict("c017", x[mine])
    assert (answers == run.predict("c017", x[mine])).all()
    assert np.sqrt(np.mean((answers.reshape(-1) - y[mine]) ** 2)) < 8
    other = federation({**bounds, "target": (0, 140)})
    with pytest.raises(pmtl.PmtlError, match="fingerprint"):
        pmtl.load_run(tmp_path / "run", data=other).evaluate()


def test_a_module_reads_raw_rows_as_training_did():
    data = federation(ALL)
    run = pmtl.train(data, privacy=2.0)
    position, beyond = 17, np.array([[-50.0, 60.0], [200.0, 60.0], [0.0, 60.0], [110.0, 60.0]])
    module = run.personal("c017")
    answers = module(torch.tensor(beyond, dtype=torch.float32)).detach()
    assert torch.equal(answers[0], answers[2])  # A value beyond the bounds is clipped to them.
    assert torch.equal(answers[1], answers[3])
    weights = personal(run)[position]
    mine = data.rows("test").of(position)
    exact = torch.from_numpy(data.x[mine]) @ weights[:2] + weights[2]
    raw = torch.tensor(rows()[0][mine], dtype=torch.float32)
    assert torch.allclose(module(raw)[:, 0], exact, atol=1e-3)


def test_with_bounds_for_all_features_the_shared_model_is_a_module(tmp_path):
    run = pmtl.train(federation(ALL), privacy=2.0, out=tmp_path / "run")
    x = torch.tensor(rows()[0][:50], dtype=torch.float32)
    answers = run.shared(x).detach()
    assert torch.equal(answers, run.shared_for("c003")(x))
    assert torch.equal(answers, pmtl.load_run(tmp_path / "run").shared(x))
    assert float((answers[:, 0] - torch.tensor(rows()[1][:50])).square().mean().sqrt()) < 12
    with pytest.raises(pmtl.PmtlError, match="shared_for"):
        _ = pmtl.train(federation(SOME), privacy=2.0).shared


def test_wide_bounds_do_not_make_penalties_stronger():
    """A feature that fills a tenth of its bounds has a tenth of the deviation."""
    wide = {0: (-500, 500), 1: (-500, 500), "target": (0, 150)}
    errors = {}
    for name, data in {"wide": federation(wide), "own": federation(scale="client")}.items():
        tested = pmtl.train(data, privacy=8.0).evaluate()["test"]
        errors[name] = tested["alone"]["rmse"], tested["personal"]["rmse"]
    assert errors["wide"][0] < 1.15 * errors["own"][0]
    assert errors["wide"][1] < 1.15 * errors["own"][1]


@pytest.mark.parametrize("seed", range(3))
def test_wide_bounds_at_a_small_epsilon_cost_no_more_than_what_sharing_gives(seed):
    """The weights are ten times as large there, and some draws of the noise hide them."""
    wide = {0: (-500, 500), 1: (-500, 500), "target": (0, 150)}
    tested = pmtl.train(federation(wide), privacy=2.0, seed=seed).evaluate()["test"]
    assert tested["personal"]["rmse"] < tested["alone"]["rmse"]


def test_the_statement_says_that_bounds_were_given_and_how_many_rows_were_beyond(tmp_path):
    told: list[str] = []
    tight = {**ALL, 1: (30, 70)}
    run = pmtl.train(federation(tight), privacy=2.0, warn=told.append, out=tmp_path / "run")
    assert sum("given by the user" in sentence for sentence in told) == 1
    assert sum("rows a value is beyond the bounds" in sentence for sentence in told) == 1
    statement = (tmp_path / "run/privacy.txt").read_text()
    assert "Bounds of 2 of 2 features and of the target were given by the user" in statement
    assert "rows a value" not in statement
    assert "size and the level of the target" not in statement
    assert run.privacy.epsilon <= 2.0


def test_a_target_with_bounds_needs_no_release():
    sizes = Sizes("regression", 1, 3, True, bounded=True, target_range=(1000.0, 1001.0))
    resolved = Pooling().resolve(sizes, strength=100.0)
    assert resolved.target == "given"
    assert resolved.releases == Pooling().rounds + Pooling().votes
    weights = resolved.published(resolved.billboard_start(torch.zeros(1)).unsqueeze(0))
    assert weights[0, -1] == 1000.5  # Zero weights predict the middle.
    assert Pooling(target="release").resolve(sizes, 100.0).target == "release"
    with pytest.raises(pmtl.PmtlError, match="needs public bounds of the target"):
        Pooling(target="given").resolve(Sizes("regression", 1, 3, True), 100.0)


def test_a_client_without_rows_has_the_shared_model():
    """Its own mean does not move the level, which is public."""
    x, y, client = rows()
    x[client == "c005"] = np.nan
    far = {0: (0, 110), 1: (0, 100), "target": (1000, 1150)}
    data = pmtl.FederatedData.from_arrays(x, y + 1000, client, bounds=far, bad_rows="drop")
    run = pmtl.train(data, privacy=2.0)
    assert data.rows("train").counts[5] == 0
    row = torch.tensor([[55.0, 50.0]])
    assert 1000 < run.personal("c005")(row).item() < 1150


def test_a_run_that_was_cut_continues_to_the_same_bytes(tmp_path, monkeypatch):
    pmtl.train(federation(ALL), privacy=2.0, out=tmp_path / "whole")
    save = RunFolder.save_round

    def save_and_die(self, line):
        save(self, line)
        if line["round"] == 5:
            raise SystemError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", save_and_die)
        with pytest.raises(SystemError):
            pmtl.train(federation(ALL), privacy=2.0, out=tmp_path / "cut", checkpoint_seconds=0)
    with pytest.raises(pmtl.PmtlError, match="fingerprint"):
        pmtl.resume(tmp_path / "cut", data=federation({**ALL, "target": (0, 160)}))
    pmtl.resume(tmp_path / "cut", data=federation())
    for name in ("personal.safetensors", "shared.safetensors", "scaling.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_production_says_nothing_about_rows_and_publishes_the_bounds(tmp_path):
    data = federation({**ALL, 1: (30, 70)})
    told: list[str] = []
    ledger = tmp_path / "ledger.db"
    Ledger.create(ledger, data.clients).close()
    options = {"mode": "production", "ledger": ledger, "warn": told.append}
    pmtl.train(data, privacy=2.0, out=tmp_path / "run", **options)
    public = "\n".join(
        file.read_text()
        for file in (tmp_path / "run/public").iterdir()
        if file.suffix != ".safetensors"
    )
    for text in (" ".join(told), public):
        assert "given by the user" in text
        assert "rows a value" not in text
    assert "rows a value is beyond" in (tmp_path / "run/private/notes.txt").read_text()
    plan = json.loads((tmp_path / "run/public/plan.json").read_text())
    assert Bounds.from_dict(plan["bounds"]) == data.bounds
    again = pmtl.load_run(tmp_path / "run")
    assert again.shared(torch.tensor([[55.0, 50.0]])).isfinite().all()


def test_an_earlier_folder_without_limits_is_read(tmp_path):
    from pmtl import storage as files

    run = pmtl.train(federation(scale="client"), privacy=2.0, out=tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    parts, _ = files.read_tensors(folder.scaling_file, run.facts.written.get("scaling"))
    del parts["limits"]
    digest = files.write_tensors(folder.scaling_file, parts, {}, b"")
    assert folder.load_scaling({"scaling": digest}).limits.tolist() == [4, 4]


def test_steps_and_other_algorithms_use_bounds():
    data = federation({0: (0, 110), 1: (0, 100), "target": (0, 150)})
    run = pmtl.train(data, algorithm="fedavg", privacy={"epsilon": np.inf, "rounds": 3})
    assert run.shared(torch.tensor([[55.0, 50.0]])).isfinite().all()


TABLE = "client,age,note,score\n" + "".join(
    f"s{k % 30},{20 + k % 50},{'abc'[k % 3]},{k % 50 + (k % 7)}\n" for k in range(600)
)
TOML = "[columns.age]\nlow = 0\nhigh = 110\n[columns.score]\nlow = 0\nhigh = 60\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "b.toml").write_text(TOML)
    return tmp_path


def test_from_a_table_and_a_file_of_bounds_to_answers(here, pmtl_command):
    data = ("--data", "t.csv:drop=note", "--target", "score", "--bounds", "b.toml")
    done = pmtl_command("train", *data, "--epsilon", 2, "--out", "run")
    assert done.status == 0, done.err
    assert "given by the user" in done.err
    facts = json.loads((here / "run/run.json").read_text())
    assert facts["task"] == "regression"  # The scores are whole numbers.
    assert facts["bounds"] == {"features": [[0, 110]], "target": [0, 60]}
    (here / "new.csv").write_text("age\n30\n40\n")
    answered = pmtl_command(
        "predict", "run", "--client", "s3", "--data", "new.csv", "--out", "a.csv"
    )
    assert answered.status == 0, answered.err
    assert len((here / "a.csv").read_text().split()) == 3
    assert pmtl_command("evaluate", "run", "--json").status == 0
    again = pmtl_command("train", "--config", "run/config.toml", "--out", "again")
    assert again.status == 0, again.err
    for name in ("personal.safetensors", "scaling.safetensors"):
        assert (here / "run" / name).read_bytes() == (here / "again" / name).read_bytes()


@pytest.mark.parametrize(
    ("bounds", "data", "words"),
    [
        (None, "t.csv:drop=note", ["none.toml", "cannot be read"]),
        ("low =", "t.csv:drop=note", ["not valid TOML"]),
        (TOML.replace("110", "-1"), "t.csv:drop=note", ["'age'", "less than"]),
        (TOML.replace("110", "inf"), "t.csv:drop=note", ["'age'", "finite"]),
        (TOML.replace("age", "aeg"), "t.csv:drop=note", ["'aeg'", "Did you mean 'age'"]),
        (TOML.replace("score", "note"), "t.csv", ["'note'", "category", "leave them"]),
        (TOML.replace("score", "note"), "t.csv:text=note", ["'age'", "neither"]),
        (TOML.replace("high", "hi", 1), "t.csv:drop=note", ["'hi'", "Did you mean 'high'?"]),
        (TOML, "t.csv:drop=age,target=note", ["'age'", "neither"]),
        (TOML.replace("score", "target"), "t.csv:drop=score,target=note", ["target is text"]),
    ],
)
def test_a_mistake_is_a_sentence_and_nothing_is_spent(bounds, data, words, here, pmtl_command):
    name = "none.toml" if bounds is None else "b.toml"
    (here / "b.toml").write_text(bounds or TOML)
    target = () if "target=" in data else ("--target", "score")
    done = pmtl_command("train", "--data", data, *target, "--bounds", name, "--out", "run")
    assert done.status == 2
    for word in words:
        assert word in done.err
    assert "Traceback" not in done.err
    assert not (here / "run").exists()


def test_bounds_need_data(here, pmtl_command):
    done = pmtl_command("train", "--bounds", "b.toml")
    assert done.status == 2
    assert "--bounds cannot be used without --data: give it, too." in done.err
