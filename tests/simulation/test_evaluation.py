"""Metrics are what a recount with NumPy gives, row by row and client by client."""

import numpy as np
import pytest
import torch

from pmtl.data import FederatedData
from pmtl.models import build_model
from pmtl.simulation import RowTensors, evaluate

M = 23


@pytest.fixture(params=["whole", "in pieces"])
def pieces(request, monkeypatch):
    """Every recount is made twice: at once, and cut into small pieces."""
    if request.param == "in pieces":
        monkeypatch.setattr("pmtl.simulation.evaluation.MOST_ROWS", 7)
        monkeypatch.setattr("pmtl.simulation.evaluation.MOST_FLOATS", 400)


def counts():
    """From none to more rows than are evaluated at once; client 4 has no rows to test on."""
    sizes = np.random.default_rng(1).integers(1, 30, M)
    sizes[4], sizes[9] = 0, 300
    return sizes


def federation(y_of, **options):
    """One training row for every client and `counts()` test rows, in mixed order."""
    rng = np.random.default_rng(0)
    owner = np.concatenate([np.arange(M), np.repeat(np.arange(M), counts())])
    split = np.where(np.arange(len(owner)) < M, "train", "test")
    order = rng.permutation(len(owner))
    x = rng.normal(size=(len(owner), 3)).astype(np.float32)
    y = y_of(rng, len(owner))
    return FederatedData.from_arrays(x, y, owner[order], split[order], validation=0.0, **options)


def judge(data, model_name="logistic", split="test"):
    """Metrics of one random model per client, and (x, y, outputs) of every client by NumPy."""
    model = build_model(model_name, data.input_shape, data.outputs, data.task, 0)
    model.to(torch.device("cpu"), torch.float64)
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(M, model.size, generator=generator, dtype=torch.float64)
    tensors = RowTensors(data, torch.device("cpu"), torch.float64)
    views = {"personal": lambda clients: weights[torch.from_numpy(clients)]}
    metrics = evaluate(tensors, model, views, split)
    answers = []
    for k in range(M):
        x, y = data.gather(data.rows(split).of(k))
        w = weights[k].numpy()
        matrix, bias = w[: -data.outputs].reshape(data.outputs, -1), w[-data.outputs :]
        answers.append((x.astype(np.float64) @ matrix.T + bias, y))
    return metrics["personal"] if metrics else None, answers


def three_views(per_row, lower_is_worse=True):
    """Over rows, over clients, and over the three worst of the 22 clients that have rows."""
    present = [rows for rows in per_row if len(rows)]
    clients = sorted(float(np.mean(rows)) for rows in present)
    assert len(clients) == 22
    worst = clients[:3] if lower_is_worse else clients[-3:]
    return np.concatenate(present).mean(), np.mean(clients), np.mean(worst)


def test_classification(pieces):
    data = federation(lambda rng, n: rng.integers(0, 4, n), outputs=4)
    metrics, answers = judge(data)
    right = [scores.argmax(axis=1) == y for scores, y in answers]
    total, mean, worst = three_views(right)
    assert metrics["accuracy"] == pytest.approx(total, abs=1e-12)
    assert metrics["accuracy_mean"] == pytest.approx(mean, abs=1e-12)
    assert metrics["accuracy_worst_decile"] == pytest.approx(worst, abs=1e-12)
    assert len({round(value, 6) for value in (total, mean, worst)}) == 3
    losses = [
        np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y] for scores, y in answers
    ]
    assert metrics["loss"] == pytest.approx(np.concatenate(losses).mean())
    assert set(metrics) == {"loss", "accuracy", "accuracy_mean", "accuracy_worst_decile"}


def test_regression(pieces):
    data = federation(lambda rng, n: rng.normal(size=(n, 2)).astype(np.float32))
    metrics, answers = judge(data, "linear")
    errors = [scores - y for scores, y in answers]
    squares = [(e**2).mean(axis=1) for e in errors]
    # Root mean square errors: over all rows, and of every client.
    assert metrics["rmse"] == pytest.approx(np.concatenate(squares).mean() ** 0.5)
    clients = np.sort([s.mean() ** 0.5 for s in squares if len(s)])
    assert metrics["rmse_mean"] == pytest.approx(clients.mean())
    assert metrics["rmse_worst_decile"] == pytest.approx(clients[-3:].mean())
    total, mean, worst = three_views([abs(e).mean(axis=1) for e in errors], lower_is_worse=False)
    assert metrics["mae"] == pytest.approx(total)
    assert metrics["mae_mean"] == pytest.approx(mean)
    assert metrics["mae_worst_decile"] == pytest.approx(worst)
    assert metrics["loss"] == pytest.approx(np.concatenate(squares).mean() * 2)
    assert len(clients) == 22


def test_several_labels(pieces):
    data = federation(lambda rng, n: (rng.random((n, 9)) < 0.25).astype(np.uint8))
    assert data.task == "multilabel"
    metrics, answers = judge(data)
    hit, recall, losses = [], [], []
    for scores, y in answers:
        ranked = np.argsort(-scores, axis=1)
        hit.append(y[np.arange(len(y)), ranked[:, 0]].astype(float))
        found = np.take_along_axis(y, ranked[:, :5], axis=1).sum(axis=1)
        recall.append(found / np.maximum(y.sum(axis=1), 1))
        losses.append((np.log1p(np.exp(scores)) - scores * y).sum(axis=1))
    assert any((y.sum(axis=1) == 0).any() for _, y in answers)
    for name, per_row in (("accuracy", hit), ("recall_at_5", recall)):
        total, mean, worst = three_views(per_row)
        assert metrics[name] == pytest.approx(total, abs=1e-12)
        assert metrics[f"{name}_mean"] == pytest.approx(mean, abs=1e-12)
        assert metrics[f"{name}_worst_decile"] == pytest.approx(worst, abs=1e-12)
    assert metrics["loss"] == pytest.approx(np.concatenate(losses).mean())


def test_one_regression_target_in_one_column():
    """Targets [rows] against outputs [rows, 1]: no table of everything against everything."""
    data = federation(lambda rng, n: rng.normal(size=n).astype(np.float32))
    metrics, answers = judge(data, "linear")
    errors = np.concatenate([scores[:, 0] - y for scores, y in answers])
    assert metrics["rmse"] == pytest.approx((errors**2).mean() ** 0.5)
    assert metrics["mae"] == pytest.approx(abs(errors).mean())


def test_a_split_without_rows_has_no_metrics():
    data = federation(lambda rng, n: rng.integers(0, 4, n), outputs=4)
    assert data.rows("validation").counts.sum() == 0
    assert judge(data, split="validation")[0] is None


def test_clients_without_rows_are_left_out_and_ten_clients_have_one_worst():
    owner = np.repeat(np.arange(11), 2)
    split = ["train", "test"] * 10 + ["train", "train"]  # the last client tests on nothing
    y = np.array([0, 1] + [0, 0] * 10)  # the first client's test row is the only one of class 1
    data = FederatedData.from_arrays(np.zeros((22, 1)), y, owner, split, validation=0.0)
    model = build_model("logistic", data.input_shape, data.outputs, data.task, 0)
    tensors = RowTensors(data, torch.device("cpu"), torch.float32)
    always_zero = torch.tensor([[0.0, 0.0, 1.0, -1.0]])
    views = {"shared": lambda clients: always_zero.expand(len(clients), -1)}
    metrics = evaluate(tensors, model, views, "test")["shared"]
    assert metrics["accuracy"] == metrics["accuracy_mean"] == pytest.approx(0.9)
    assert metrics["accuracy_worst_decile"] == 0
