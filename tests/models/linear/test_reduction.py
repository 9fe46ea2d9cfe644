"""Few of many columns and classes: the same solutions, at a fraction of the work."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pmtl.models.linear import reduction
from pmtl.models.linear.solve import ClientRows, solve

PENALTY = torch.tensor([[[0.1, *[1.0] * 23], [1.0, *[5.0] * 23]]], dtype=torch.float64)
EXACTLY = (5000, 1e-10)


def client_rows(task="classification", classes=30, seen=4):
    """5 clients with 14 rows of 24 columns, most of them 0, and other classes for each."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(5, 14, 24, generator=random, dtype=torch.float64)
    x[:, :, 4:] *= torch.rand(5, 1, 20, generator=random) < 0.3
    x[..., 0] = 1
    mask = (torch.arange(14) < torch.tensor([14, 14, 9, 5, 1]).unsqueeze(1)).double()
    y = torch.randint(0, seen, (5, 14), generator=random) + 5 * torch.arange(5).unsqueeze(1)
    hot = F.one_hot(y % classes, classes).double()
    targets = x[..., 1:3] if task == "regression" else hot
    return ClientRows(task, x * mask[..., None], targets * mask[..., None], mask)


def both(monkeypatch, rows, centre, **options):
    """The solution of the smaller problem, and of the whole one."""
    small = solve(rows, centre, PENALTY, until=EXACTLY, **options)
    monkeypatch.setattr(reduction, "MANY", 10**9)
    return small, solve(rows, centre, PENALTY, until=EXACTLY, **options)


@pytest.mark.parametrize("task", ["regression", "classification", "multilabel"])
def test_columns_that_a_client_does_not_use_stay_at_the_centre(task, monkeypatch):
    rows = client_rows(task, classes=6, seen=2)
    centre = torch.randn(1, 2, 24, rows.y.shape[2], dtype=torch.float64)
    columns = reduction.Columns.used(rows.x)
    assert columns is not None
    assert columns.index.shape[1] < 17
    small, whole = both(monkeypatch, rows, centre)
    assert torch.allclose(small, whole, atol=1e-6)
    unused = ~(rows.x != 0).any(1)
    assert unused.any()
    there = unused[:, None, :, None].expand_as(small)
    assert torch.equal(small[there], centre.expand_as(small)[there])


def test_around_zero_classes_without_rows_are_one_class(monkeypatch):
    rows, centre = client_rows(), torch.zeros(1, 2, 24, 30, dtype=torch.float64)
    small, whole = both(monkeypatch, rows, centre)
    assert torch.allclose(small, whole, atol=1e-6)
    assert small.abs().max() > 0.5


def test_around_other_weights_classes_without_rows_move_together(monkeypatch):
    random = torch.Generator().manual_seed(2)
    rows = client_rows()
    centre = 0.5 * torch.randn(1, 2, 24, 30, generator=random, dtype=torch.float64)
    small, whole = both(monkeypatch, rows, centre)
    moved = small - centre
    for client in range(5):
        without = rows.y[client].sum(0) == 0
        assert torch.allclose(moved[client][..., without], moved[client][..., without][..., :1])
    chances = [torch.softmax(rows.x.unsqueeze(1) @ weights, -1) for weights in (small, whole)]
    assert (chances[0] - chances[1]).abs().mean() < 0.002
    assert (chances[0] - torch.softmax(rows.x.unsqueeze(1) @ centre, -1)).abs().max() > 0.5


def test_a_client_is_the_same_in_any_company():
    """Also one with fewer classes and columns than the others."""
    rows, centre = client_rows(), torch.ones(1, 2, 24, 30, dtype=torch.float64)
    together = solve(rows, centre, PENALTY, until=EXACTLY)
    for client in range(5):
        parts = (part[client : client + 1] for part in (rows.x, rows.y, rows.mask))
        by_itself = solve(ClientRows(rows.task, *parts), centre, PENALTY, until=EXACTLY)
        assert torch.allclose(by_itself[0], together[client], atol=1e-7)


def test_it_can_go_on_from_what_it_found():
    rows, centre = client_rows(), torch.ones(1, 2, 24, 30, dtype=torch.float64)
    found = solve(rows, centre, PENALTY, until=EXACTLY)
    assert torch.allclose(solve(rows, centre, PENALTY, None, found, (1, 0.0)), found, atol=1e-7)
    without = rows.mask * (torch.arange(14) % 5 != 0)
    again = solve(rows, centre, PENALTY, without, found, EXACTLY)
    assert torch.allclose(again, solve(rows, centre, PENALTY, without, None, EXACTLY), atol=1e-6)
