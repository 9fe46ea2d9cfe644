"""`pmtl evaluate`."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from visits import trained

import pmtl
from pmtl.privacy.ledger.ledger import Ledger


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path)
    return tmp_path


def test_measures_are_chosen_by_name(here, pmtl_command):
    told = json.loads(pmtl_command("evaluate", "run", "--metric", "auc+brier", "--json").out)
    personal = told["test"]["personal"]
    assert {"auc", "auc_mean", "auc_worst_decile", "auc_clients", "brier"} <= set(personal)
    assert "f1" not in personal
    assert personal["brier_worst_decile"] > personal["brier_mean"]
    everything = json.loads(pmtl_command("evaluate", "run", "--json").out)["test"]["personal"]
    assert {"balanced_accuracy", "f1", "auc", "log_loss", "calibration_error"} <= set(everything)
    assert everything["log_loss"] == pytest.approx(everything["loss"], abs=1e-6)
    assert {key: everything[key] for key in personal} == personal


def test_a_table_with_a_line_for_every_client(here, pmtl_command):
    done = pmtl_command("evaluate", "run", "--per-client", "--out", "clients.csv")
    assert done.status == 0, done.err
    assert "12 clients on test rows are in clients.csv" in done.out
    frame = pd.read_csv("clients.csv")
    run = pmtl.load_run("run")
    expected = pd.DataFrame(run.per_client())
    assert list(frame["client"]) == list(expected["client"]) == [*run.clients, *run.clients]
    np.testing.assert_allclose(frame["log_loss"], expected["log_loss"], rtol=1e-12)
    assert set(frame["model"]) == {"personal", "shared"}
    printed = pmtl_command("evaluate", "run", "--per-client", "--metric", "accuracy+auc")
    assert "h07" in printed.out
    told = pmtl_command("evaluate", "run", "--per-client", "--json", "--split", "validation")
    lines = json.loads(told.out)["clients"]
    counts = run.data.rows("validation").counts
    assert [line["rows"] for line in lines[:12]] == counts.tolist()
    assert all(line["auc"] is None or 0 <= line["auc"] <= 1 for line in lines)


def test_clients_without_a_value_are_told(here, pmtl_command):
    told = pmtl_command("evaluate", "run", "--metric", "auc").out
    table = pmtl.load_run("run").per_client("auc", "validation")
    personal = table["model"] == "personal"
    there = personal & (table["rows"] > 0)
    missing = int(np.isnan(table["auc"][there]).sum())
    assert missing
    sentence = f"{missing} of {there.sum()} clients with validation rows have no auc, because"
    assert sentence in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--metric", "r2"], "no r2 for classification"),
        (["--metric", "acuracy"], "Did you mean 'accuracy'"),
        (["--out", "a.csv"], "belong to --per-client"),
        (["--per-client", "--split", "later"], "no split 'later'"),
        (["--per-client", "--out", "a.txt"], "no known ending"),
    ],
)
def test_mistakes_are_sentences(here, pmtl_command, options, said):
    refused = pmtl_command("evaluate", "run", *options)
    assert refused.status == 2
    assert said in refused.err


def test_production_withholds_every_exact_measure_and_still_predicts(small, tmp_path, pmtl_command):
    Ledger.create(tmp_path / "ledger.db", small.clients).close()
    run = pmtl.train(
        small,
        privacy={"epsilon": 2.0, "rounds": 2, "cohort": 6},
        algorithm="pmtl",
        mode="production",
        ledger=tmp_path / "ledger.db",
        out=tmp_path / "run",
    )
    for options in ((), ("--metric", "auc"), ("--per-client",), ("--per-client", "--json")):
        refused = pmtl_command("evaluate", tmp_path / "run", *options)
        assert refused.status == 2
        assert "withholds them" in refused.err
        assert refused.out == ""
    with pytest.raises(pmtl.PmtlError, match="withholds them"):
        run.per_client("accuracy")
    np.savez(tmp_path / "d.npz", x=small.x, client=np.repeat(small.clients, 14))
    asked = ("--data", tmp_path / "d.npz", "--out", tmp_path / "a.csv")
    assert pmtl_command("predict", tmp_path / "run", *asked).status == 0
