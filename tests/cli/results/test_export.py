"""`pmtl export`, as its users meet it."""

from __future__ import annotations

import csv
import json

import numpy as np
import onnxruntime
import pytest


@pytest.fixture
def run(tmp_path, monkeypatch, pmtl_command):
    """A run on a table with names for everything."""
    monkeypatch.chdir(tmp_path)
    lines = ["hospital,age,dose,outcome"]
    lines += [
        f"h{k % 9},{40 + k % 37},{k % 11},{'ill' if k % 37 > 2 * (k % 11) else 'well'}"
        for k in range(9 * 12)
    ]
    (tmp_path / "visits.csv").write_text("\n".join(lines) + "\n")
    columns = ("--client-column", "hospital", "--target", "outcome")
    done = pmtl_command("train", "--data", "visits.csv", *columns, "--out", "run")
    assert done.status == 0, done.err
    return tmp_path


def test_from_a_table_to_a_model_that_another_program_runs(run, pmtl_command):
    done = pmtl_command("export", "run", "--client", "h3", "--out", "h3")
    assert done.status == 0, done.err
    assert "the answers are those of the run" in done.out
    assert "Private to client h3" in done.out
    (run / "new.csv").write_text("dose,age\n3,50\n9,41\n0,76\n")  # Columns are found by name.
    told = pmtl_command(
        *("predict", "run", "--client", "h3", "--data", "new.csv", "--out", "answers.csv")
    )
    assert told.status == 0, told.err
    with (run / "answers.csv").open() as file:
        expected = [row["prediction"] for row in csv.DictReader(file)]
    rows = np.array([[50, 3], [41, 9], [76, 0]], dtype=np.float32)
    session = onnxruntime.InferenceSession("h3/model.onnx")
    names = [output.name for output in session.get_outputs()]
    answers = dict(zip(names, session.run(None, {"rows": rows}), strict=True))
    assert answers["class_name"].tolist() == expected
    assert np.allclose(answers["probabilities"].sum(1), 1)
    assert json.loads((run / "h3/model.json").read_text())["feature_names"] == ["age", "dose"]


def test_all_clients_as_json(run, pmtl_command):
    done = pmtl_command("export", "run", "--all", "--to", "safetensors", "--out", "all", "--json")
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert set(told["models"]) == {f"h{k}" for k in range(9)}
    assert all((run / "all" / name).is_file() for name in told["models"].values())
    plain = pmtl_command("export", "run", "--all", "--to", "safetensors", "--out", "again")
    assert "9 models in again/models" in plain.out
    assert "9/9" in plain.err  # The progress bar.


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["run", "--out", "x"], "Say which model"),
        (["run", "--client", "h99", "--out", "x"], "no client 'h99'"),
        (["run", "--client", "h3", "--all", "--out", "x"], "--all cannot be combined"),
        (["run", "--client", "h3", "--to", "onxx", "--out", "x"], "Did you mean 'onnx'"),
        (["run", "--client", "h3", "--out", "run"], "exists already"),
        (["absent", "--client", "h3", "--out", "x"], "no run at absent"),
        (["run", "--client", "h3", "--out", "visits.csv/x"], "could not be written"),
    ],
)
def test_a_mistake_is_a_sentence(typed, words, run, pmtl_command):
    before = sorted(run.rglob("*"))
    refused = pmtl_command("export", *typed)
    assert refused.status == 2
    assert words in refused.err
    assert "Traceback" not in refused.err
    assert sorted(run.rglob("*")) == before


def test_a_factory_that_changed_is_noticed_by_export_and_predict(run, pmtl_command, monkeypatch):
    source = (
        "import torch\n"
        "class Bent(torch.nn.Linear):\n"
        "    def __init__(self, input_shape, outputs):\n"
        "        super().__init__(input_shape[0], outputs)\n"
        "    def forward(self, x):\n"
        "        return super().forward(torch.FUNCTION(x / 50))\n"
    )
    import sys

    def write(function):
        (run / "bent_model.py").write_text(source.replace("FUNCTION", function))
        monkeypatch.delitem(sys.modules, "bent_model", raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)

    write("tanh")
    data = "visits.csv:client=hospital,target=outcome"
    quick = ("--algorithm", "pmtl", "--rounds", 1, "--steps", 1)
    train = ("train", "--data", data, "--model", "bent_model:Bent", *quick, "--out", "own")
    done = pmtl_command(*train)
    assert done.status == 0, done.err
    export = ("export", "own", "--client", "h3", "--to", "safetensors", "--out")
    write("tanh")  # Written again, the code is the same.
    same = pmtl_command(*export, "one")
    assert same.status == 0, same.err
    assert "warning" not in same.err
    write("sigmoid")
    refused = pmtl_command(*export, "two")
    assert refused.status == 2
    assert "changed since this run was trained" in refused.err
    told = pmtl_command(*("predict", "own", "--data", "visits.csv", "--out", "o.csv"))
    assert told.status == 0
    assert "warning: The model 'bent_model:Bent' changed" in told.err
