"""Exports that read the columns of a table: the schema's work is inside the ONNX graph."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest

import pmtl
from pmtl.data import FederatedData
from pmtl.export import columns as export_columns

SCHEMA = {
    "hospital": {"role": "client"},
    "visit_id": {"role": "dropped"},
    "age": {"kind": "number", "low": 0, "high": 110, "missing": "indicator"},
    "rows": {"kind": "category", "categories": ["icu", "Zürich", "1"], "missing": "indicator"},
    "ward": {"kind": "category", "categories": ["a", "b"], "unknown": "other", "missing": "fill"},
    "smoker": {"kind": "boolean", "missing": "fill"},
    "admitted": {"kind": "date", "low": -4e4, "high": 4e4, "missing": "indicator"},
    "outcome": {"role": "target", "kind": "category", "categories": ["died", "home"]},
}
SCHEMA["admitted"]["parts"] = ["month", "weekday"]


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(4)
    rows = 12 * 15
    days = pd.Timestamp("1899-12-30") + pd.to_timedelta(random.integers(0, 70_000, rows), "D")
    frame = pd.DataFrame(
        {
            "hospital": np.repeat([f"h{k}" for k in range(12)], 15),
            "visit_id": range(rows),
            "age": random.normal(50, 30, rows).round(1),
            "rows": random.choice(["icu", "Zürich", "1", "elsewhere", "NA", "n/a", ""], rows),
            "ward": random.choice(["a", "b", "c", "?", ""], rows),
            "smoker": random.choice([True, False, None], rows),
            "admitted": days.where(random.random(rows) > 0.1),
            "outcome": random.choice(["died", "home"], rows),
        }
    )
    frame.loc[random.random(rows) < 0.1, "age"] = np.nan
    return frame


@pytest.fixture(scope="module")
def run(table):
    data = FederatedData.from_frame(table, schema={"columns": SCHEMA})
    return pmtl.train(data, privacy=50.0)


def arrays(table):
    """What a user gives to the graph: plain arrays of the table's own columns."""
    return {
        "age": table["age"].to_numpy(np.float64),
        "column rows": table["rows"].to_numpy(object),  # `rows` is the name of the graph's own.
        "ward": table["ward"].to_numpy(object),
        "smoker": table["smoker"].map({True: 1.0, False: 0.0}).to_numpy(np.float64),
        "admitted": ((table["admitted"] - pd.Timestamp("2000-01-01")) / pd.Timedelta("1D")).values,
    }


def test_a_graph_reads_the_table_as_predict_does(run, table, tmp_path):
    done = pmtl.export_model(run, tmp_path / "out", client="h3", to="onnx")
    content = (tmp_path / "out" / done.models["h3"]).read_bytes()
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    session = onnxruntime.InferenceSession(content)
    names = ("prediction", "probabilities", "class")
    found = dict(zip(names, session.run(None, arrays(table)), strict=True))
    wanted = run.predict_rows(table, client="h3", any_client=True).to_pandas()
    died, home = wanted["probability of died"], wanted["probability of home"]
    assert np.allclose(found["probabilities"], np.stack([died, home], axis=1), atol=1e-5)
    assert found["class"].tolist() == wanted["prediction"].tolist()
    about = json.loads((tmp_path / "out/model.json").read_text())
    assert list(about["input"]) == list(arrays(table))
    assert about["checked"]["rows"] >= 16


def test_all_clients_and_a_shared_model_with_public_bounds(run, table, tmp_path):
    done = pmtl.export_model(run, tmp_path / "all", all_clients=True, to="onnx")
    for client in ("h0", "h11"):
        session = onnxruntime.InferenceSession(tmp_path / "all" / done.models[client])
        _, shares, _ = session.run(None, arrays(table[:1]))
        wanted = run.predict_rows(table[:1], client=client, any_client=True)
        assert shares[0, 0] == pytest.approx(wanted["probability of died"][0], abs=1e-5)
    done = pmtl.export_model(run, tmp_path / "shared", shared=True, to="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "shared" / done.models[""])
    assert [value.name for value in session.get_inputs()] == list(arrays(table))
    whole = table.dropna().reset_index(drop=True)
    wanted = run.predict_rows(whole, shared=True).to_pandas()
    _, shares, _ = session.run(None, arrays(whole))
    assert np.allclose(shares[:, 0], wanted["probability of died"], atol=1e-5)


def test_the_code_on_the_card_runs(run, tmp_path, monkeypatch, capsys):
    pmtl.export_model(run, tmp_path / "out", client="h3", to="onnx")
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.S)
    monkeypatch.chdir(tmp_path / "out")
    exec(compile(code, "README.md", "exec"), {})
    assert "class_name" in capsys.readouterr().out
    assert "days since 2000-01-01" in card
    assert "reads the columns of a table by name" in card


def test_a_wrong_graph_is_noticed(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export_columns, "_FROM_MARCH", 730_426.0)  # Some months are wrong then.
    with pytest.raises(pmtl.PmtlError, match="answers differently as onnx"):
        pmtl.export_model(run, tmp_path / "out", client="h3", to="onnx")
    assert not (tmp_path / "out").exists()


def test_a_hashed_column_is_given_as_its_features(table, tmp_path):
    columns = {name: column for name, column in SCHEMA.items() if name != "admitted"}
    columns |= {"admitted": {"role": "dropped"}, "ward": {"kind": "category", "hash": 3}}
    frame = table.assign(ward=table["ward"].replace({"": "d", "?": "d"}))
    data = FederatedData.from_frame(frame, schema={"columns": columns})
    run = pmtl.train(data, privacy=50.0)
    done = pmtl.export_model(run, tmp_path / "out", client="h3", to="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "out" / done.models["h3"])
    shapes = {value.name: value.shape for value in session.get_inputs()}
    assert shapes["ward"] == ["rows", 3]
    assert shapes["age"] == ["rows"]
