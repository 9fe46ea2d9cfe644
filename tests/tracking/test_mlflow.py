"""`--callback mlflow`, with a local folder, read back by MLflow's own client."""

from __future__ import annotations

import os

import pytest

import pmtl
from pmtl.errors import PmtlError
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.callbacks import Callback, build_callback

tracking = pytest.importorskip("mlflow.tracking")


class Failing(Callback):
    def on_round(self, event):
        if event.round == 2:
            raise RuntimeError("stop")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # Restored after the test.
    return tmp_path / "mlruns"


def only_run(folder, experiment="pmtl"):
    client = tracking.MlflowClient(tracking_uri=str(folder))
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    assert len(found) == 1
    return client, found[0]


def test_settings_metrics_and_statement_are_there_after_a_stop_and_a_resume(
    folder, small, tmp_path
):
    name, path = f"mlflow:uri={folder},experiment=visits", tmp_path / "visits-1"
    privacy = {"rounds": 4}
    with pytest.raises(PmtlError, match="stop"):
        pmtl.train(small, algorithm="pmtl", privacy=privacy, callbacks=[name, Failing], out=path)
    _, begun = only_run(folder, "visits")
    assert begun.info.status == "RUNNING"
    run = pmtl.resume(path, data=small, callbacks=[name])
    client, found = only_run(folder, "visits")
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "visits-1"
    assert found.data.params["privacy.rounds"] == "4"
    assert found.data.params["algorithm"] == run.facts.algorithm
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [(m.step, m.value) for m in history] == [
        (line["round"], line["train_loss"]) for line in run.metrics
    ]
    assert found.data.metrics["privacy.epsilon"] == pytest.approx(2.0)
    written = tmp_path / "statement"
    written.mkdir()
    file = client.download_artifacts(found.info.run_id, "privacy.txt", str(written))
    assert open(file, encoding="utf-8").read() == (path / "privacy.txt").read_text()  # noqa: PTH123, SIM115


def test_production_tells_what_is_public(folder, small, tmp_path):
    Ledger.create(tmp_path / "ledger.db", small.clients).close()
    pmtl.train(
        small,
        algorithm="pmtl",
        privacy={"rounds": 2},
        mode="production",
        ledger=tmp_path / "ledger.db",
        out=tmp_path / "run",
        callbacks=[f"mlflow:uri={folder}"],
    )
    _, found = only_run(folder)
    assert found.info.run_name == "run"
    assert "train_loss" not in found.data.metrics
    assert "validation.personal.loss_mean" in found.data.metrics
    told = str(found.data.params) + str(found.data.tags)
    assert found.data.params["mode"] == "production"
    assert "site-0" not in told
    assert "ledger.db" not in told
    assert not any(name in found.data.params for name in ("data", "ledger", "clients", "device"))


def test_an_address_that_cannot_be_used_is_a_sentence(folder, tmp_path):
    with pytest.raises(PmtlError, match="MLflow at nosuch://place cannot be used"):
        build_callback("mlflow:uri=nosuch://place")
    before = dict(os.environ)
    with pytest.raises(PmtlError, match=r"MLflow at http://127\.0\.0\.1:9 cannot be used"):
        build_callback("mlflow:uri=http://127.0.0.1:9")  # Nobody listens there.
    assert dict(os.environ) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(PmtlError, match="cannot be used"):
        build_callback(f"mlflow:uri={tmp_path / 'file'}")
