"""Newton's method finds what small steps find, and never goes uphill."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from pmtl.models.linear import newton
from pmtl.models.linear.solve import ClientRows, solve

TASKS = ["classification", "multilabel"]


def problem(task, scale=1.0, seed=0):
    """Five clients with up to 12 rows, of 4 columns; the last client has one class only."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 12, 4, generator=random, dtype=torch.float64) * scale
    x[:, :, 0] = 1
    mask = torch.ones(5, 12, dtype=torch.float64)
    mask[1, 7:] = 0
    y = (torch.rand(5, 12, 2, generator=random) < 0.5).double()
    y[4] = 1
    if task == "classification":
        y = torch.cat([1 - y[..., :1], y[..., :1]], 2)
    used = mask.unsqueeze(2)
    centre = torch.randn(5, 3, 4, 2, generator=random, dtype=torch.float64)
    penalty = torch.tensor([0.1, 2.0, 300.0]).double()[None, :, None].expand(1, 3, 4)
    return ClientRows(task, x * used, y * used, mask), centre, penalty


@pytest.mark.parametrize("task", TASKS)
def test_it_finds_what_a_library_finds(task):
    rows, centre, penalty = problem(task)
    found = solve(rows, centre, penalty)
    for client in range(5):
        for cell in range(3):
            x, y = rows.x[client].numpy(), rows.y[client].numpy()
            c, k = centre[client, cell].numpy(), float(penalty[0, cell, 0])
            real = rows.mask[client].numpy() > 0

            def value(flat, x=x[real], y=y[real], c=c, k=k):
                w = flat.reshape(4, 2)
                z = x @ w
                if task == "classification":
                    loss = np.logaddexp(z[:, 0], z[:, 1]) - (y * z).sum(1)
                else:
                    loss = (np.logaddexp(0, z) - y * z).sum(1)
                return loss.sum() + k * ((w - c) ** 2).sum() / 2

            best = minimize(value, c.ravel(), method="BFGS", options={"gtol": 1e-7})
            assert np.allclose(found[client, cell].numpy().ravel(), best.x, atol=2e-4)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_it_agrees_with_steps_of_bounded_curvature(task, scale, monkeypatch):
    rows, centre, penalty = problem(task, scale)
    found = solve(rows, centre, penalty)
    assert found.isfinite().all()
    monkeypatch.setattr(newton, "FEW", 0)
    steps = solve(rows, centre, penalty, start=found, until=(20_000, 1e-9))
    assert torch.allclose(found, steps, atol=1e-3)


def test_steps_are_halved_where_newton_would_go_too_far():
    """From far away on the flat part of the loss, Newton's first step is far too long."""
    rows, centre, _ = problem("multilabel")
    penalty = torch.full((1, 3, 4), 1e-3, dtype=torch.float64)
    start = torch.full_like(centre, 30.0)
    found = solve(rows, centre, penalty, start=start)
    assert torch.allclose(found, solve(rows, centre, penalty), atol=1e-3)


def test_a_client_does_not_depend_on_the_others():
    rows, centre, penalty = problem("classification")
    found = solve(rows, centre, penalty)
    one = ClientRows(rows.task, rows.x[2:3], rows.y[2:3], rows.mask[2:3])
    assert torch.allclose(solve(one, centre[2:3], penalty), found[2:3], atol=1e-6)
