"""Pooling on federations of all tasks, on unusual ones, and beside training alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pooling_data import TASKS, federation
from weights import personal

import pmtl
from pmtl.algorithms import Pooling, Sizes
from pmtl.data import FederatedData
from pmtl.models.linear.solve import ClientRows

# ---- unusual federations ----


@pytest.mark.parametrize("epsilon", [0.1, 2.0, math.inf])
@pytest.mark.parametrize(("task", "outputs"), TASKS)
def test_every_task_gives_finite_models(task, outputs, epsilon):
    data = federation(m=30, task=task, outputs=outputs)
    run = pmtl.train(data, algorithm="pooling", privacy={"epsilon": epsilon})
    assert personal(run).shape == (30, 4 * outputs)
    assert personal(run).isfinite().all()
    assert run.views()["alone"](np.arange(30)).isfinite().all()
    assert all(np.isfinite(losses).all() for losses in run.client_losses("test").values())


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("epsilon", [0.5, 1e4])
def test_unusual_clients_get_finite_models(task, epsilon):
    """A constant target, one row, a constant column, and huge values in test rows."""
    random = np.random.default_rng(3)
    client = np.concatenate([[0], np.repeat(np.arange(1, 40), 10)])
    x = random.normal(size=(len(client), 3))
    y = x[:, 0] * 5 + 100 + random.normal(size=len(client))
    y = y if task == "regression" else (y > 100).astype(np.int64)
    y[(client > 0) & (client < 8)] = 1
    x[(client >= 8) & (client < 16), 1] = 7.0
    x[:, 2] = 3.0
    split = np.where(np.arange(len(client)) % 5 == 4, "test", "train")
    x[(split == "test") & (client >= 8)] *= 1e12
    names = np.array([f"c{k}" for k in client])
    data = FederatedData.from_arrays(x, y, names, split, validation=0, task=task)
    run = pmtl.train(data, algorithm="pooling", privacy=epsilon)
    assert personal(run).isfinite().all()
    losses = run.client_losses("test")
    there = data.rows("test").counts > 0
    assert np.isfinite(losses["personal"][there]).all()
    assert np.nanmax(losses["personal"]) < 1e6
    for name in ("c0", "c3", "c9", "c30"):
        assert np.isfinite(run.predict(name, x[:9])).all()


# ---- insurance ----


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize(("task", "outputs"), [("regression", 1), ("classification", 2)])
@pytest.mark.parametrize("m", [pytest.param(60, marks=pytest.mark.thorough), 300])
def test_it_does_not_lose_to_training_alone(task, outputs, m, epsilon):
    """By more than two standard errors, paired over clients and seeds."""
    differences = []
    for seed in range(3):
        data = federation(m, 16, task=task, outputs=outputs, seed=seed)
        run = pmtl.train(data, algorithm="pooling", privacy=epsilon, seed=seed)
        losses = run.client_losses("test")
        differences.append(losses["personal"] - losses["alone"])
    lost = np.concatenate(differences)
    assert lost.mean() <= 2 * lost.std() / math.sqrt(len(lost))
    if epsilon == 8 and m == 300:
        assert lost.mean() < -2 * lost.std() / math.sqrt(len(lost)), "it should win here"


def test_the_unit_of_words_does_not_matter():
    """A client alone has the same chances whatever number stands for a word that is there."""
    random = np.random.default_rng(0)
    words = (random.random((3, 12, 8)) < 0.2).astype(float)
    y = torch.tensor(np.eye(3)[random.integers(0, 3, (3, 12))])
    chances = []
    for unit in (1.0, 0.2):
        x = torch.tensor(np.concatenate([np.ones((3, 12, 1)), unit * words], 2))
        rows = ClientRows("classification", x, y, torch.ones(3, 12).double(), words=True)
        method = Pooling().resolve(Sizes("classification", 3, 9, True), 100.0)
        board = method.billboard_start(torch.zeros(1).double()).expand(3, -1)
        slopes, intercepts = method.finish(rows, board).chunk(2, dim=1)[1].split([24, 3], dim=1)
        logits = x[..., 1:] @ slopes.view(3, 3, 8).transpose(1, 2) + intercepts.unsqueeze(1)
        chances.append(torch.softmax(logits, 2))
    assert torch.allclose(*chances, atol=1e-3)
    assert float(chances[0].std()) > 0.01, "nothing was learned"
