"""Runs on tables as they come, from the file to predictions on new rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hospital import hospital_frame
from new_rows import features_of

import pmtl
from pmtl.data import FederatedData, Schema, load
from pmtl.data.scaling import scaling_of_new_client
from pmtl.errors import PmtlError
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.folder import RunFolder

SPEC = "hospital.csv:client=hospital,target=outcome"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hospital_frame(80).to_csv("hospital.csv", index=False)
    return tmp_path


def test_a_messy_table_is_trained_predicted_and_described_by_commands(folder, pmtl_command):
    data = ("--client-column", "hospital", "--target", "outcome")
    done = pmtl_command(
        *("train", "--data", "hospital.csv", *data, "--epsilon", 2, "--out", "run", "--json")
    )
    assert done.status == 0, done.err
    scores = json.loads(done.out)["test"]
    assert scores["personal"]["accuracy"] >= scores["alone"]["accuracy"] + 0.03
    assert scores["personal"]["loss"] < scores["alone"]["loss"]
    assert done.err.count("No schema was given") == 1
    assert "read from all clients' rows without noise" in (
        folder / "run/privacy.txt"
    ).read_text().replace("\n  ", " ")
    schema = json.loads((folder / "run/run.json").read_text())["schema"]
    assert Schema.read(folder / "run/schema.toml") == Schema.from_dict(schema)

    new = hospital_frame(80, seed=1).drop(columns="outcome")
    new[new.hospital == "h07"].to_csv("new.csv", index=False)
    done = pmtl_command("predict", "run", "--client", "h07", "--data", "new.csv", "--out", "a.csv")
    assert done.status == 0, done.err
    answers = pd.read_csv("a.csv").prediction
    assert len(answers) == (new.hospital == "h07").sum()
    assert set(answers) <= {"died", "home"}
    done = pmtl_command("evaluate", "run", "--json")
    assert json.loads(done.out)["test"]["personal"].items() >= scores["personal"].items()

    done = pmtl_command("data", "show", "hospital.csv", *data)
    for words in ("ward", "category", "5 features, ward=general", "visit_id", "dropped"):
        assert words in done.out


def test_a_module_fills_as_training_did(folder):
    run = pmtl.train(SPEC, privacy=2.0, out="run")
    schema, data = Schema.from_dict(run.facts.schema), run.data
    frame = pd.read_csv("hospital.csv", dtype=str, keep_default_na=False)
    raw = schema.encode(frame)
    assert np.isnan(raw).any()
    for client in ("h00", "h05", "h07"):
        mine, k = (frame.hospital == client).to_numpy(), data.index_of(client)
        assert (data.scaling.apply(k, raw[mine]) == data.x[mine]).all()
        inside = run.personal(client)[1](torch.from_numpy(data.x[mine]))
        assert torch.equal(run.personal(client)(torch.from_numpy(raw[mine])), inside)
        assert np.isfinite(run.predict_proba(client, raw[mine])).all()
    again = pmtl.load_run("run")
    assert (again.predict("h05", raw[:9]) == run.predict("h05", raw[:9])).all()
    with pytest.raises(PmtlError, match=r"scaled or filled.*shared_for"):
        _ = run.shared


def test_a_new_client_fills_and_scales_by_its_own_rows(folder):
    data = load(SPEC)
    frame = pd.read_csv("hospital.csv", dtype=str, keep_default_na=False)
    mine = (frame.hospital == "h02").to_numpy()
    raw = data.schema.encode(frame[mine])
    for like in (data, data.scaled()):
        made = scaling_of_new_client(raw, like.scaling)
        x = made.apply(0, raw)
        assert np.isfinite(x).all()
        assert made.scales == like.is_scaled
        middle = np.sort(raw[~np.isnan(raw[:, 0]), 0])
        assert made.fills[0, 0] == middle[(len(middle) - 1) // 2]


def test_a_run_stops_and_goes_on_with_its_own_schema(folder, monkeypatch):
    given = load(SPEC).schema.to_toml()
    Path("schema.toml").write_text(given)
    spec = "hospital.csv:schema=schema.toml"
    options = {
        "algorithm": "pmtl",
        "privacy": {"epsilon": 4.0, "rounds": 4},
        "checkpoint_seconds": 0,
    }
    whole = pmtl.train(f"{spec},scale=client", **options, out="whole")

    save = RunFolder.save_round

    def save_and_die(self, line):
        save(self, line)
        if line["round"] == 2:
            raise SystemError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", save_and_die)
        with pytest.raises(SystemError):
            pmtl.train(f"{spec},scale=client", **options, out="part")
    Path("schema.toml").write_text(given.replace('"icu"', '"intensive"'))  # The run has its own.
    resumed = pmtl.resume("part")
    assert resumed.evaluate() == whole.evaluate()
    assert pmtl.load_run("part").evaluate() == whole.evaluate()
    other = pmtl.load(spec)
    with pytest.raises(PmtlError, match="other feature columns"):
        pmtl.load_run("part", data=other).evaluate()


def test_filled_rows_train_without_scaling_and_by_every_engine(folder):
    run = pmtl.train(
        SPEC,
        algorithm="fedavg",
        local={"lr": 1e-6},
        privacy={"epsilon": 4.0, "rounds": 2},
        out="run",
    )
    assert not run.facts.scaled
    raw = Schema.from_dict(run.facts.schema).encode(
        pd.read_csv("hospital.csv", dtype=str, keep_default_na=False)
    )
    module = pmtl.load_run("run").shared_for("h05")
    assert torch.isfinite(module(torch.from_numpy(raw))).all()
    with pytest.raises(PmtlError, match="shared_for"):
        _ = run.shared


def test_with_bounds_of_all_columns_the_shared_model_reads_raw_rows(folder):
    frame = pd.read_csv("hospital.csv", dtype=str, keep_default_na=False)
    frame = frame[["hospital", "age", "ward", "smoker", "outcome"]]
    schema = FederatedData.from_frame(frame, "hospital", "outcome").schema
    schema = schema.with_bounds({"age": (0, 110)})
    data = FederatedData.from_frame(frame, schema=schema)
    run = pmtl.train(data, privacy=2.0)
    empty = torch.tensor([[np.nan, 1, *[0.0] * 5, np.nan, 1]])
    middle = torch.tensor([[55.0, 1, *[0.0] * 5, 0.5, 1]])
    assert torch.equal(run.shared(empty), run.shared(middle))  # And nobody's median.
    assert not torch.equal(run.shared_for("h02")(empty), run.shared(empty))


def test_tiny_and_odd_clients_do_not_explode(folder):
    """One row, no value of a column, constant columns, one class: finite scores for everybody."""
    rng = np.random.default_rng(3)
    owner = np.repeat([f"c{k:02d}" for k in range(30)], [1] * 10 + [2] * 5 + [20] * 14 + [500])
    rows = len(owner)
    frame = pd.DataFrame(
        {
            "client": owner,
            "a": rng.normal(size=rows),
            "never": np.where(np.char.startswith(owner.astype(str), "c1"), np.nan, 1e6),
            "one": 7,
            "word": rng.choice(["p", "q", None], rows),
            "huge": rng.choice([1e30, -1e30, np.nan], rows),
            "target": rng.integers(0, 2, rows),
        }
    )
    frame.loc[frame.client == "c00", ["a", "never", "huge"]] = np.nan
    for algorithm in ("auto", "pmtl"):
        settings = 2.0 if algorithm == "auto" else {"epsilon": 2.0, "rounds": 2}
        data = FederatedData.from_frame(frame, scale="client")
        run = pmtl.train(data, algorithm=algorithm, privacy=settings)
        assert run.not_finite is None
        for view in run.evaluate()["test"].values():
            assert np.isfinite(view["loss"])
        raw = data.schema.encode(frame)
        for client in ("c00", "c03", "c29"):
            assert np.isfinite(run.predict_proba(client, raw[:50])).all()


def test_production_shows_the_schema_and_nothing_of_the_rows(folder):
    schema = load(SPEC).schema
    Path("schema.toml").write_text(schema.to_toml().replace("public = false", "public = true"))
    spec = "hospital.csv:schema=schema.toml"
    Ledger.create("clients.db", load(spec, production=True).clients).close()
    run = pmtl.train(spec, mode="production", ledger="clients.db", privacy=2.0, out="run")
    public = folder / "run/public"
    assert Schema.read(public / "schema.toml").public
    assert json.loads((public / "plan.json").read_text())["schema"] == run.facts.schema
    statement = (public / "privacy.txt").read_text().replace("\n  ", " ")
    assert "which the user states is public" in statement
    for file in public.iterdir():
        content = file.read_bytes()
        assert b"empty cells" not in content
        assert b"fills" not in content
    kept = RunFolder.open("run")
    fills = kept.load_scaling(kept.facts().written).fills
    assert np.array_equal(fills, run.data.scaling.fills)
    x = features_of("hospital.csv", run.facts.input_shape, None, schema=run.facts.schema)
    assert np.isnan(x).any()
    assert len(pmtl.load_run("run").predict("h03", x[:5])) == 5
