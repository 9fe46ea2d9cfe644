"""Measures are those of scikit-learn, for every client of many at once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import pmtl
from pmtl.engines.row_tensors import RowTensors
from pmtl.errors import PmtlError
from pmtl.simulation.evaluation import Evaluator, evaluate
from pmtl.simulation.measures import BINS, MEASURES, PredictedRows, measures_of

metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
CLIENTS = 23
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def answered(task: str, outputs: int, seed: int = 0) -> PredictedRows:
    """Rows of clients of unequal sizes, in no order; scores have ties."""
    random = np.random.default_rng(seed)
    owner = np.concatenate([np.arange(CLIENTS), random.integers(CLIENTS, size=40 * CLIENTS)])
    scores = np.round(random.normal(size=(len(owner), outputs)) * 2, 1).astype(np.float32)
    if task == "classification":
        truth = random.integers(outputs, size=len(owner))
        scores[np.arange(len(owner)), truth] += 1
    elif task == "multilabel":
        truth = (random.random(scores.shape) < 0.3).astype(np.uint8)
    else:
        truth = (scores + random.normal(size=scores.shape)).astype(np.float32)
        truth = truth[:, 0] if outputs == 1 else truth
    return PredictedRows(task, truth, scores, owner, CLIENTS)


def one_by_one(given: PredictedRows, theirs) -> np.ndarray:
    """What scikit-learn says for the rows of each client."""
    rows = [np.flatnonzero(given.owner == client) for client in range(given.clients)]
    return np.array([theirs(given.truth[mine], mine) for mine in rows])


@pytest.mark.parametrize("classes", [2, 5])
def test_measures_of_classes_are_scikit_learns(classes):
    given = answered("classification", classes)
    sure, told, everything = given.probabilities, given.predicted, list(range(classes))

    def area(y, mine):
        if classes == 2:
            return metrics.roc_auc_score(y, sure[mine, 1])
        return metrics.roc_auc_score(y, sure[mine], multi_class="ovr", labels=everything)

    theirs = {
        "accuracy": lambda y, mine: metrics.accuracy_score(y, told[mine]),
        "balanced_accuracy": lambda y, mine: metrics.balanced_accuracy_score(y, told[mine]),
        "f1": lambda y, mine: metrics.f1_score(y, told[mine], average="macro"),
        "auc": area,
        "log_loss": lambda y, mine: metrics.log_loss(y, sure[mine], labels=everything),
        "brier": lambda y, mine: metrics.brier_score_loss(y, sure[mine], labels=everything),
    }
    assert {*theirs, "calibration_error"} == set(MEASURES["classification"])
    for name, their in theirs.items():
        ours = MEASURES["classification"][name](given)
        np.testing.assert_allclose(ours, one_by_one(given, their), **EXACT, err_msg=name)


def test_measures_of_labels_are_scikit_learns():
    given = answered("multilabel", 4)
    sure, told = given.probabilities, given.predicted
    best = sure.argmax(axis=1)
    theirs = {
        "accuracy": lambda y, mine: np.mean(y[np.arange(len(y)), best[mine]]),
        "f1": lambda y, mine: metrics.f1_score(y, told[mine], average="macro", zero_division=0),
        "auc": lambda y, mine: metrics.roc_auc_score(y, sure[mine], average="macro"),
        "log_loss": lambda y, mine: np.mean(
            [metrics.log_loss(y[:, k], sure[mine, k], labels=[0, 1]) for k in range(4)]
        ),
        "brier": lambda y, mine: np.mean(
            [metrics.brier_score_loss(y[:, k], sure[mine, k]) for k in range(4)]
        ),
    }
    assert {*theirs, "calibration_error"} == set(MEASURES["multilabel"])
    for name, their in theirs.items():
        ours = MEASURES["multilabel"][name](given)
        np.testing.assert_allclose(ours, one_by_one(given, their), **EXACT, err_msg=name)


@pytest.mark.parametrize("outputs", [1, 3])
def test_measures_of_numbers_are_scikit_learns(outputs):
    given = answered("regression", outputs)
    told = given.scores if outputs > 1 else given.scores[:, 0]
    squares = metrics.mean_squared_error
    theirs = {
        "r2": lambda y, mine: metrics.r2_score(y.astype(float), told[mine]),
        "mae": lambda y, mine: metrics.mean_absolute_error(y.astype(float), told[mine]),
        "rmse": lambda y, mine: np.sqrt(squares(y.astype(float), told[mine])),
    }
    assert set(theirs) == set(MEASURES["regression"])
    for name, their in theirs.items():
        ours = MEASURES["regression"][name](given)
        np.testing.assert_allclose(ours, one_by_one(given, their), **EXACT, err_msg=name)


def test_the_calibration_error_is_the_gap_in_bins_of_confidence():
    given = answered("classification", 3)

    def by_hand(y, mine):
        confidence, right = given.probabilities[mine].max(axis=1), given.predicted[mine] == y
        edges = np.linspace(0, 1, BINS + 1)
        gap = 0.0
        for low, high in pairwise(edges):
            inside = (confidence > low) & (confidence <= high)
            if inside.any():
                gap += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
        return gap

    ours = MEASURES["classification"]["calibration_error"](given)
    np.testing.assert_allclose(ours, one_by_one(given, by_hand), **EXACT)


def test_a_client_with_one_class_has_no_auc_and_with_missing_classes_that_of_the_others():
    truth = np.array([1, 1, 0, 2, 2, 0])
    scores = np.array([[0, 1, 2], [0, 2, 1], [3, 1, 0], [0, 1, 5], [1, 0, 1], [0, 2, 0]], float)
    given = PredictedRows("classification", truth, scores, np.array([0, 0, 1, 1, 1, 1]), 2)
    found = MEASURES["classification"]["auc"](given)
    assert np.isnan(found[0])
    sure = given.probabilities[2:]
    areas = [metrics.roc_auc_score(truth[2:] == k, sure[:, k]) for k in (0, 2)]
    assert found[1] == pytest.approx(np.mean(areas), abs=1e-12)


def test_targets_that_are_all_the_same_have_no_r2():
    owner = np.array([0, 0, 0, 1, 2, 2])
    truth = np.array([0.1, 0.1, 0.1, 5.0, 1.0, 3.0], dtype=np.float32)
    given = PredictedRows("regression", truth, truth[:, None] + 1, owner, 3)
    found = MEASURES["regression"]["r2"](given)
    assert np.isnan(found).tolist() == [True, True, False]
    assert found[2] == 0.0


@pytest.mark.parametrize(("task", "name"), [("regression", "auc"), ("multilabel", "r2")])
def test_a_measure_of_another_task_is_refused(task, name):
    with pytest.raises(PmtlError, match=rf"no {name} for {task}: use .*(f1|mae)"):
        measures_of(task, [name])


@pytest.fixture
def uneven() -> pmtl.FederatedData:
    """Clients with one to thirty rows of three classes; the last has test rows of one class."""
    random = np.random.default_rng(4)
    client = np.repeat([f"c{k:02d}" for k in range(30)], np.arange(30) + 12)
    x = random.normal(size=(len(client), 5)).astype(np.float32)
    y = np.argmax(x[:, :3] + random.normal(size=(len(client), 3)), axis=1)
    y[client == "c29"] = 1
    return pmtl.FederatedData.from_arrays(x, y, client, outputs=3, test=0.4)


def test_evaluate_measures_what_predict_answers(uneven):
    """Through the real path: over all rows, over clients, and for each client."""
    run = pmtl.train(uneven, algorithm="pmtl", privacy={"noise": 0.01, "rounds": 3})
    scores = run.evaluate("auc+f1")["test"]["personal"]
    table = run.per_client("auc+f1+accuracy")
    personal = table["model"] == "personal"
    assert table["client"][personal].tolist() == list(uneven.clients)
    assert (table["rows"][personal] == uneven.rows("test").counts).all()
    told, sure, truth = [], [], []
    for place, client in enumerate(uneven.clients):
        mine = uneven.rows("test").of(place)
        told.append(run.predict(client, uneven.x[mine]))
        sure.append(run.predict_proba(client, uneven.x[mine]))
        truth.append(uneven.y[mine])
        by_hand = metrics.f1_score(truth[-1], told[-1], average="macro")
        assert table["f1"][personal][place] == pytest.approx(by_hand, abs=1e-12)
    assert np.isnan(table["auc"][personal][-1])
    assert scores["auc_clients"] == (~np.isnan(table["auc"][personal])).sum() < 30
    whole = metrics.roc_auc_score(np.concatenate(truth), np.concatenate(sure), multi_class="ovr")
    assert scores["auc"] == pytest.approx(whole, abs=1e-6)
    everything = metrics.f1_score(np.concatenate(truth), np.concatenate(told), average="macro")
    assert scores["f1"] == pytest.approx(everything, abs=1e-12)
    assert scores["f1_mean"] == pytest.approx(np.nanmean(table["f1"][personal]), abs=1e-12)
    worst = np.sort(table["f1"][personal])[:3].mean()
    assert scores["f1_worst_decile"] == pytest.approx(worst, abs=1e-12)
    assert scores["accuracy_mean"] == pytest.approx(table["accuracy"][personal].mean(), abs=1e-9)


def test_further_measures_are_computed_only_if_they_are_asked_for(uneven):
    run = pmtl.train(uneven, algorithm="local", privacy={"noise": 0.01, "rounds": 1})
    assert "auc" not in run.evaluate()["test"]["personal"]
    asked = pmtl.train(
        uneven, algorithm="local", privacy={"noise": 0.01, "rounds": 1}, metric="balanced_accuracy"
    )
    assert "balanced_accuracy_mean" in asked.evaluate()["test"]["personal"]
    assert "balanced_accuracy_mean" in asked.metrics[-1]["validation"]["personal"]


def test_a_measure_of_another_task_is_refused_before_anything_is_trained(uneven, tmp_path):
    with pytest.raises(PmtlError, match="no r2 for classification"):
        pmtl.train(uneven, metric="r2", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sparse_rows_of_text_are_measured_like_dense_ones(uneven):
    from scipy.sparse import csr_matrix

    model = pmtl.train(uneven, algorithm="local", privacy={"noise": 0.01, "rounds": 1}).flat_model
    weights = torch.randn(1, model.size, generator=torch.Generator().manual_seed(0))
    found = []
    for x in (uneven.x, csr_matrix(uneven.x)):
        data = pmtl.FederatedData(
            x, uneven.y, uneven.clients, uneven.splits, uneven.task, uneven.outputs
        )
        tensors = RowTensors(data, torch.device("cpu"), torch.float32)
        views = {"one": lambda clients: weights.expand(len(clients), -1)}
        found.append(evaluate(tensors, model, views, "test", custom={"all": None})["one"])
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_processes_of_a_team_measure_their_own_clients(uneven):
    """What they add up to is what one process finds; a process may have no client with rows."""
    run = pmtl.train(uneven, algorithm="pmtl", privacy={"noise": 0.01, "rounds": 1})
    tensors = RowTensors(uneven, torch.device("cpu"), torch.float32)

    def measured(clients):
        chosen = {"auc": None, "brier": None}
        found = Evaluator(tensors, run.flat_model, "test").extra_metrics(
            chosen, run.views()["personal"], np.array(clients, np.int64)
        )
        return np.stack([values for values, _, _ in found.values()])

    whole, parts = measured(range(30)), [measured(range(0, 30, 2)), measured(range(1, 30, 2))]
    np.testing.assert_allclose(parts[0] + parts[1] + measured([]), whole, rtol=1e-6)
