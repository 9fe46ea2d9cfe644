"""The exact solver: against other solvers, closed forms, refits by hand, and zero gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from pmtl.models.linear.solve import ROUGH, ClientRows, held_out_losses, row_losses, solve

TASKS = ("regression", "classification", "multilabel")
#: The task, and how many outputs: numbers, two classes, four classes, three labels.
KINDS = [("regression", 2), ("classification", 2), ("classification", 4), ("multilabel", 3)]
#: Far beyond what training needs, so that only the last digits are left.
FINELY = (20_000, 1e-12)


def rows_of(task, outputs, n=12, d=4, clients=3, seed=0, size=1.0):
    """Random rows; the first column is 1."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(clients, n, d)) * size
    x[:, :, 0] = 1
    if task == "classification":
        y = np.eye(outputs)[random.integers(0, outputs, (clients, n))]
    elif task == "multilabel":
        y = random.integers(0, 2, (clients, n, outputs)).astype(float)
    else:
        y = x @ random.normal(size=(clients, d, outputs)) + random.normal(
            size=(clients, n, outputs)
        )
    return ClientRows(
        task, *(torch.tensor(part) for part in (x, y)), torch.ones(clients, n).double()
    )


def table(d, outputs, clients=3, seed=1):
    """Centres [K, G, d, outputs] and penalties [K, G, d] of three problems."""
    random = np.random.default_rng(seed)
    centre = torch.tensor(random.normal(size=(clients, 3, d, outputs)))
    penalty = torch.tensor(np.exp(random.normal(size=(clients, 3, d))))
    return centre, penalty


def objective(task, w, x, y, centre, penalty):
    """The function that `solve` minimises, for one client and one problem, in NumPy."""
    outputs = x @ w
    if task == "regression":
        loss = ((outputs - y) ** 2).sum() / 2
    elif task == "classification":
        top = outputs.max(1, keepdims=True)
        loss = (top[:, 0] + np.log(np.exp(outputs - top).sum(1)) - (outputs * y).sum(1)).sum()
    else:
        loss = (np.logaddexp(0, outputs) - outputs * y).sum()
    return loss + (penalty[:, None] * (w - centre) ** 2).sum() / 2


def one(rows, client, *others):
    parts = (rows.x[client], rows.y[client], *(other[client] for other in others))
    return [part.numpy() for part in parts]


def gradient(rows, w, centre, penalty, mask=None):
    """∇ of the objective of every problem [K, G, d, outputs], by torch's own differentiation."""
    w = w.clone().requires_grad_()
    outputs = torch.einsum("knd,kgdo->kgno", rows.x, w)
    mask = (rows.mask if mask is None else mask).unsqueeze(1)
    loss = (row_losses(rows.task, outputs, rows.y.unsqueeze(1)) * mask).sum()
    loss = loss + (penalty.unsqueeze(-1) * (w - centre).square()).sum() / 2
    return torch.autograd.grad(loss, w)[0]


@pytest.mark.parametrize(("task", "outputs"), KINDS)
@pytest.mark.parametrize("d", [4, 20])
def test_it_finds_what_a_general_optimiser_finds(task, outputs, d):
    rows = rows_of(task, outputs, d=d)
    centre, penalty = table(d, outputs)
    found = solve(rows, centre, penalty)
    for client in range(3):
        x, y, centres, penalties = one(rows, client, centre, penalty)
        for g in range(3):

            def value(flat, g=g, x=x, y=y, centres=centres, penalties=penalties):
                return objective(task, flat.reshape(d, outputs), x, y, centres[g], penalties[g])

            best = minimize(value, centres[g].ravel(), method="BFGS", options={"gtol": 1e-6})
            assert np.allclose(found[client, g].numpy().ravel(), best.x, atol=2e-4)


@pytest.mark.parametrize("d", [4, 12, 20])
def test_numbers_have_a_closed_form(d):
    """W = c + (XᵀX + diag(κ))⁻¹ Xᵀ(Y − Xc)."""
    rows = rows_of("regression", 2, d=d)
    centre, penalty = table(d, 2)
    found = solve(rows, centre, penalty)
    for client in range(3):
        x, y, centres, penalties = one(rows, client, centre, penalty)
        for g in range(3):
            matrix = x.T @ x + np.diag(penalties[g])
            expected = centres[g] + np.linalg.solve(matrix, x.T @ (y - x @ centres[g]))
            assert np.allclose(found[client, g], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_more_columns_than_rows_give_the_same_as_fewer(task, outputs):
    """Columns of zeros change nothing, but make d > n, which is solved with n × n matrices."""
    rows = rows_of(task, outputs, n=8, d=5)
    centre, penalty = table(5, outputs)
    primal = solve(rows, centre, penalty, until=FINELY)
    wide = ClientRows(task, torch.nn.functional.pad(rows.x, (0, 9)), rows.y, rows.mask)
    far = torch.nn.functional.pad(centre, (0, 0, 0, 9), value=0.7)
    dual = solve(wide, far, torch.nn.functional.pad(penalty, (0, 9), value=2.0), until=FINELY)
    assert torch.allclose(dual[:, :, :5], primal, rtol=1e-7, atol=1e-9)
    assert torch.allclose(dual[:, :, 5:], torch.tensor(0.7).double()), "only the penalty acts"


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_padding_changes_nothing(task, outputs):
    rows = rows_of(task, outputs)
    centre, penalty = table(4, outputs)
    more = torch.nn.functional.pad
    padded = ClientRows(
        task, more(rows.x, (0, 0, 0, 5)), more(rows.y, (0, 0, 0, 5)), more(rows.mask, (0, 5))
    )
    expected = solve(rows, centre, penalty, until=FINELY)
    assert torch.allclose(solve(padded, centre, penalty, until=FINELY), expected, atol=1e-9)
    some, others = held_out_losses(rows, centre, penalty), held_out_losses(padded, centre, penalty)
    for part, same in zip(some, others, strict=True):
        assert torch.allclose(part, same, atol=1e-9)


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_rows_that_are_masked_are_as_if_they_were_not_there(task, outputs):
    rows = rows_of(task, outputs)
    centre, penalty = table(4, outputs)
    mask = rows.mask.clone()
    mask[:, ::3] = 0
    without = solve(rows, centre, penalty, mask, until=FINELY)
    kept = ClientRows(task, *(part[:, mask[0] > 0] for part in (rows.x, rows.y, rows.mask)))
    assert torch.allclose(without, solve(kept, centre, penalty, until=FINELY), atol=1e-9)
    assert not torch.allclose(without, solve(rows, centre, penalty), atol=1e-3)


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_every_client_and_every_penalty_is_its_own_problem(task, outputs):
    rows = rows_of(task, outputs)
    centre, penalty = table(4, outputs)
    whole = solve(rows, centre, penalty, until=FINELY)
    for client in range(3):
        mine = slice(client, client + 1)
        own = ClientRows(task, rows.x[mine], rows.y[mine], rows.mask[mine])
        for g in range(3):
            cell = centre[mine, g : g + 1], penalty[mine, g : g + 1]
            alone = solve(own, *cell, until=FINELY)[0, 0]
            assert torch.allclose(whole[client, g], alone, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_a_table_for_all_clients_is_read_by_each(task):
    rows = rows_of(task, 2)
    centre, penalty = table(4, 2, clients=1)
    each = solve(rows, centre.expand(3, -1, -1, -1), penalty.expand(3, -1, -1))
    assert torch.allclose(solve(rows, centre, penalty), each, atol=1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_the_end_does_not_depend_on_the_start(task):
    rows = rows_of(task, 3)
    centre, penalty = table(4, 3)
    start = 3 * torch.ones(3, 3, 4, 3).double()
    found = solve(rows, centre, penalty, start=start, until=FINELY)
    assert torch.allclose(found, solve(rows, centre, penalty, until=FINELY), atol=1e-8)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 12),
    d=st.integers(1, 9),
    penalties=st.lists(st.floats(-2, 3), min_size=2, max_size=2),
    size=st.sampled_from([0.01, 1.0, 30.0]),
    separable=st.booleans(),
    seed=st.integers(0, 9),
)
def test_the_gradient_is_zero_at_the_end(kind, n, d, penalties, size, separable, seed):
    """For penalties from 0.01 to 1000, features up to 30 and classes that a plane separates."""
    task, outputs = kind
    rows = rows_of(task, outputs, n, d, seed=seed, size=size)
    if separable and task != "regression":
        first = (rows.x[:, :, -1:] > 0).double()
        y = torch.zeros_like(rows.y)
        y[:, :, :1], y[:, :, 1:2] = first, 1 - first
        rows = ClientRows(task, rows.x, y, rows.mask)
    penalty = (10 ** torch.tensor(penalties).double())[None, :, None].expand(1, 2, d).contiguous()
    centre = torch.zeros(1, 2, d, outputs).double()
    found = solve(rows, centre, penalty)
    assert found.isfinite().all()
    there = gradient(rows, found, centre, penalty).abs().amax((2, 3))
    begun = gradient(rows, torch.zeros_like(found), centre, penalty).abs().amax((2, 3))
    assert (there <= 1e-3 * begun + 1e-9).all()
    assert torch.isfinite(held_out_losses(rows, centre, penalty)[1]).all()


@pytest.mark.parametrize(("task", "outputs"), KINDS)
@pytest.mark.parametrize("size", [1e4, 1e8, 1e15, 1e30])
@pytest.mark.parametrize("n", [3, 12])
def test_large_columns_that_are_alike_give_finite_weights(task, outputs, size, n):
    rows = rows_of(task, outputs, n=n)
    rows.x[:, :, 1:] = size * rows.x[:, :, 1:2]
    centre, penalty = table(4, outputs)
    for found in (solve(rows, centre, penalty), *held_out_losses(rows, centre, penalty)):
        assert found.isfinite().all()


# ---- losses on rows that were left out ----


def without(rows, out):
    """The rows but those for which `out` [n] is true."""
    return ClientRows(rows.task, *(part[:, ~out] for part in (rows.x, rows.y, rows.mask)))


@pytest.mark.parametrize("d", [3, 12])
def test_leaving_each_row_out_in_closed_form_is_as_many_refits(d):
    rows = rows_of("regression", 2, n=7, d=d)
    centre, penalty = table(d, 2)
    weights, losses, _ = held_out_losses(rows, centre, penalty)
    assert torch.allclose(weights, solve(rows, centre, penalty))
    refits = torch.zeros(3, 3).double()
    for left in range(7):
        fitted = solve(without(rows, torch.arange(7) == left), centre, penalty)
        outputs = torch.einsum("kd,kgdo->kgo", rows.x[:, left], fitted)
        refits += (outputs - rows.y[:, left].unsqueeze(1)).square().sum(-1) / 2 / 7
    assert torch.allclose(losses, refits, rtol=1e-8)


@pytest.mark.parametrize(("task", "outputs"), KINDS[1:])
@pytest.mark.parametrize("n", [3, 5, 12])
def test_folds_are_refits(task, outputs, n):
    """Every fifth row is left out together, whatever the number of rows."""
    rows = rows_of(task, outputs, n=n)
    centre, penalty = table(4, outputs)
    _, losses, _ = held_out_losses(rows, centre, penalty)
    refits = torch.zeros(3, 3).double()
    for fold in range(min(5, n)):
        out = torch.arange(n) % 5 == fold
        fitted = solve(without(rows, out), centre, penalty, until=FINELY)
        outputs_there = torch.einsum("knd,kgdo->kgno", rows.x[:, out], fitted)
        refits += row_losses(task, outputs_there, rows.y[:, out].unsqueeze(1)).sum(2) / n
    # The folds are solved roughly: weights are right to about ROUGH[1].
    assert torch.allclose(losses, refits, atol=5 * ROUGH[1])


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_the_only_row_of_a_client_is_judged_by_the_centre(task, outputs):
    rows = rows_of(task, outputs, n=1)
    centre, penalty = table(4, outputs)
    _, losses, _ = held_out_losses(rows, centre, penalty)
    at_centre = torch.einsum("kd,kgdo->kgo", rows.x[:, 0], centre)
    expected = row_losses(task, at_centre, rows.y[:, :1])
    assert torch.allclose(losses, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_a_client_without_rows_has_the_centre_and_no_loss(task, outputs):
    rows = rows_of(task, outputs, n=2)
    nothing = ClientRows(task, *(torch.zeros_like(part) for part in (rows.x, rows.y, rows.mask)))
    centre, penalty = table(4, outputs)
    weights, losses, _ = held_out_losses(nothing, centre, penalty)
    assert torch.allclose(weights, centre)
    assert torch.equal(losses, torch.zeros(3, 3).double())


@pytest.mark.parametrize("task", TASKS)
def test_losses_are_the_usual_ones(task):
    """Cross-entropy, its sum over labels, and half the squared error."""
    rows, outputs = rows_of(task, 3), torch.randn(3, 12, 3, generator=_seeded()).double()
    function = torch.nn.functional
    if task == "classification":
        flat, classes = outputs.flatten(0, 1), rows.y.argmax(-1).flatten()
        expected = function.cross_entropy(flat, classes, reduction="none").view(3, 12)
    elif task == "multilabel":
        entropy = function.binary_cross_entropy_with_logits(outputs, rows.y, reduction="none")
        expected = entropy.sum(-1)
    else:
        expected = function.mse_loss(outputs, rows.y, reduction="none").sum(-1) / 2
    assert torch.allclose(row_losses(task, outputs, rows.y), expected)


def _seeded():
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_clients_with_many_rows_hold_out_one_fold_whoever_else_is_there(task, outputs, monkeypatch):
    """It says of how many rows a loss is; numbers always leave out each row."""
    monkeypatch.setattr("pmtl.models.linear.solve.FEW_ROWS", 7)
    rows = rows_of(task, outputs, n=12)
    rows.mask[1, 7:], rows.x[1, 7:], rows.y[1, 7:] = 0, 0, 0  # The second client has few rows.
    centre, penalty = table(4, outputs)
    _, losses, held = held_out_losses(rows, centre, penalty)
    assert held.tolist() == ([12, 7, 12] if task == "regression" else [3, 7, 3])
    small = ClientRows(task, rows.x[1:2, :7], rows.y[1:2, :7], rows.mask[1:2, :7])
    _, by_itself, _ = held_out_losses(small, centre[1:2], penalty[1:2])
    assert torch.allclose(losses[1], by_itself[0], atol=5 * ROUGH[1])
