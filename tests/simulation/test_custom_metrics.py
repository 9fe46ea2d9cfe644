"""Metrics of the user's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pmtl.data import FederatedData
from pmtl.engines.row_tensors import RowTensors
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.simulation.custom_metrics import client_value, find_metrics, less_is_better, summary
from pmtl.simulation.evaluation import evaluate

MODULE = """
import numpy as np

def share_right(y_true, y_pred):
    return np.mean(y_true == y_pred)

def sureness(y_true, y_score):
    return np.mean(y_score)

def sureness_error(y_true, y_score):
    return np.mean(y_score)

def of_ones(y_true, y_pred):
    return np.mean(y_pred) if y_true.any() else np.nan

def broken(y_true, y_pred):
    raise KeyError("oh no")

number = 3
"""


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    (tmp_path / "own_metrics.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("own_metrics", None)


def measured(names: str, y: np.ndarray) -> dict[str, float]:
    """On test rows of ten clients, of a model that answers 1 where its input is positive."""
    client = np.repeat([f"c{k}" for k in range(10)], 4)
    x = np.tile([[-1.0], [2.0], [3.0], [-4.0]], (10, 1)).astype(np.float32)
    split = np.tile(["train", "test", "test", "test"], 10)
    data = FederatedData.from_arrays(
        x, y, client, split, task="classification", outputs=2, validation=0
    )
    model = build_model("logistic", data.input_shape, 2, data.task, 0)
    weights = torch.tensor([-1.0, 1.0, 0.0, 0.0])
    tensors = RowTensors(data, torch.device("cpu"), torch.float32)
    views = {"shared": lambda clients: weights.expand(len(clients), -1)}
    result = evaluate(tensors, model, views, "test", custom=find_metrics(names))
    assert result is not None
    return result["shared"]


def test_they_stand_beside_the_librarys():
    rng = np.random.default_rng(0)
    values = measured("own_metrics:share_right", rng.integers(0, 2, 40))
    assert values["share_right_mean"] == pytest.approx(values["accuracy_mean"])
    assert values["share_right_worst_decile"] == pytest.approx(values["accuracy_worst_decile"])


def test_probabilities_go_to_those_who_ask_for_scores():
    values = measured("own_metrics:sureness+own_metrics:share_right", np.tile([0, 1, 1, 0], 10))
    expected = np.mean(1 / (1 + np.exp(-2 * np.array([2.0, 3.0, -4.0]))))
    assert values["sureness_mean"] == pytest.approx(expected, rel=1e-5)
    assert values["share_right_mean"] == 1


def test_clients_without_a_value_are_left_out():
    y = np.zeros(40, dtype=np.int64)
    y[4:8] = 1
    assert measured("own_metrics:of_ones", y)["of_ones_mean"] == pytest.approx(2 / 3)


def test_the_worst_clients_of_an_error_are_those_with_the_highest():
    values = np.arange(20.0)
    assert summary("a_loss", values, less_is_better("a_loss", len))["a_loss_worst_decile"] == 18.5
    assert summary("a_score", values, less_is_better("a_score", len))["a_score_worst_decile"] == 0.5
    assert np.isnan(summary("a_score", values * np.nan, False)["a_score_mean"])


def test_scikit_learns_work_as_they_are():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    outputs, targets = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
    for name in ("f1_score", "roc_auc_score"):
        found = find_metrics(f"sklearn.metrics:{name}")[name]
        assert found is getattr(metrics, name)
        assert client_value(name, found, "classification", targets, outputs) == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("own_metrics:number", "is not a function"),
        ("own_metrics:none", "has no 'none'"),
        ("f2", "There is no metric 'f2'"),
        ("own_metrics:broken", "The metric 'broken' failed for a client with 3 rows: KeyError"),
    ],
)
def test_what_goes_wrong_is_a_sentence(name, sentence):
    with pytest.raises(PmtlError, match=sentence):
        measured(name, np.zeros(40, dtype=np.int64))


def test_the_command_line_and_sweeps_know_them(pmtl_command, tmp_path):
    settings = ("--data", "synthetic:clients=6,samples=12", "--rounds", "2")
    own = ("--metric", "own_metrics:share_right")
    done = pmtl_command("train", *settings, "--noise", "0.1", "--out", "run", "--json", *own)
    assert done.status == 0, done.err
    scores = json.loads((tmp_path / "run" / "result.json").read_text())["test"]["personal"]
    assert scores["share_right_mean"] == pytest.approx(scores["accuracy_mean"])
    other = pmtl_command("evaluate", "run", "--json", "--metric", "own_metrics:of_ones")
    assert "of_ones_mean" in json.loads(other.out)["test"]["personal"]
    swept = pmtl_command(
        "compare", *settings, *own, "--algorithm", "pmtl", "--epsilon", "4", "--seed", "0",
        "--out", "sweep",
    )  # fmt: skip
    assert swept.status == 0, swept.err
    assert "share_right_mean" in (tmp_path / "sweep" / "results.json").read_text()


def test_production_and_unknown_names_are_refused_before_anything_is_trained(pmtl_command):
    refused = pmtl_command("train", "--metric", "own_metrics:none", "--out", "run")
    assert refused.status == 2
    assert "has no 'none'" in refused.err
    refused = pmtl_command(
        "train", "--mode", "production", "--ledger", "l", "--metric", "own_metrics:share_right"
    )
    assert "production withholds them" in " ".join(refused.err.split())


def test_two_metrics_of_one_name_are_refused():
    with pytest.raises(PmtlError, match="Two metrics have the name 'mean'"):
        find_metrics("numpy:mean+statistics:mean")


TAKEN = ("loss", "accuracy", "rmse", "recall_at_5", "f1", "all", "rows")


@pytest.mark.parametrize("name", TAKEN)
def test_a_metric_with_a_name_that_results_have_anyway_is_refused(name):
    Path("own_metrics.py").write_text(f"def {name}(y_true, y_pred):\n    return 0.5\n")
    with pytest.raises(PmtlError, match=f"'own_metrics:{name}' would replace '{name}'"):
        find_metrics(f"accuracy+own_metrics:{name}")
