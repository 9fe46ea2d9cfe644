"""Training around a centre: solutions, paths, folds, and many clients as one computation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pmtl.models import build_model
from pmtl.models.linear.solve import row_losses
from pmtl.models.network import rows as rows_module
from pmtl.models.network.rows import Network
from pmtl.models.network.train import FEW, FOLDS, folds, held_out, held_out_losses, train_path

KINDS = [("classification", 3), ("regression", 2), ("multilabel", 2)]


def rows_of(task="classification", outputs=3, counts=(9, 4, 1), model="mlp:hidden=5", seed=0):
    random = torch.Generator().manual_seed(seed)
    n = max(counts)
    x = torch.randn(len(counts), n, 4, generator=random)
    if task == "classification":
        y = torch.randint(0, outputs, (len(counts), n), generator=random)
    else:
        y = torch.randn(len(counts), n, outputs, generator=random)
        y = (y > 0).float() if task == "multilabel" else y
    real = torch.arange(n) < torch.tensor(counts).unsqueeze(1)
    network = Network.of(build_model(model, (4,), outputs, task, 0), (4,))
    return network.rows(task, outputs, x, y, real)


def objective(rows, k, w, centre, penalty):
    """Equation 3 of client k, with the mean loss."""
    real = rows.mask[k] > 0
    outputs = rows.network.model.apply(w, rows.x[k][real])
    losses = row_losses(rows.task, outputs, rows.y[k][real].to(w.dtype))
    return losses.mean() + penalty / int(real.sum()) * (w - centre).square().sum() / 2


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_a_long_path_ends_where_equation_3_has_no_slope(task, outputs):
    rows = rows_of(task, outputs)
    centre = rows.network.start.expand(3, 1, -1)
    (found,) = train_path(rows, rows.mask.unsqueeze(1), centre, [3.0], 400)
    for k in range(3):
        w = found[k, 0].clone().requires_grad_()
        value = objective(rows, k, w, centre[k, 0], 3.0)
        (slope,) = torch.autograd.grad(value, w)
        with torch.no_grad():
            before = objective(rows, k, centre[k, 0], centre[k, 0], 3.0)
        assert value < before
        assert slope.norm() < 0.12


def test_weaker_penalties_go_farther_and_fit_better():
    rows = rows_of(counts=(30, 30))
    centre = rows.network.start.expand(2, 1, -1)
    tried = train_path(rows, rows.mask.unsqueeze(1), centre, [1000.0, 10.0, 0.1], 60)
    far = [float((w - centre).norm()) for w in tried]
    fit = [float(objective(rows, 0, w[0, 0], centre[0, 0], 0.0)) for w in tried]
    assert far == sorted(far)
    assert fit == sorted(fit, reverse=True)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e8])
@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_no_units_make_it_diverge(task, outputs, scale):
    rows = rows_of(task, outputs, counts=(20, 20))
    y = rows.y * scale if task == "regression" else rows.y
    rows = replace(rows, x=rows.x * scale, y=y)
    centre = rows.network.start.expand(2, 1, -1)
    for w in train_path(rows, rows.mask.unsqueeze(1), centre, [10.0, 1.0]):
        assert w.isfinite().all()
        assert ((w - centre) / rows.network.scales).abs().max() <= 0.2 * 30 + 1


def test_a_client_whose_rows_are_not_numbers_stays_at_its_centre():
    rows = rows_of(counts=(6, 6))
    x = rows.x.clone()
    x[1] = torch.nan
    centre = rows.network.start.expand(2, 1, -1)
    (found,) = train_path(replace(rows, x=x), rows.mask.unsqueeze(1), centre, [3.0])
    assert torch.equal(found[1], centre[1])
    assert not torch.equal(found[0], centre[0])


def test_many_clients_are_what_each_is_alone_and_padding_does_not_count():
    rows = rows_of(counts=(9, 4, 1))
    centre = rows.network.start.expand(3, 1, -1)
    (together,) = train_path(rows, rows.mask.unsqueeze(1), centre, [3.0])
    for k, count in enumerate((9, 4, 1)):
        cut = {name: getattr(rows, name)[k : k + 1, :count] for name in ("x", "y", "mask")}
        one = replace(rows, **cut)
        (alone,) = train_path(one, one.mask.unsqueeze(1), centre[:1], [3.0])
        assert torch.allclose(together[k], alone[0], atol=1e-5)


def test_loops_compute_what_the_client_axis_does():
    rows = rows_of(counts=(9, 4))
    centre = rows.network.start.expand(2, 1, -1)
    looping = replace(rows, network=replace(rows.network, loops=True))
    for one, other in zip(
        train_path(rows, rows.mask.unsqueeze(1), centre, [3.0, 1.0]),
        train_path(looping, rows.mask.unsqueeze(1), centre, [3.0, 1.0]),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-5)
    given = ([rows.network.start.expand(2, -1)], [3.0])
    assert torch.allclose(held_out_losses(rows, *given), held_out_losses(looping, *given), 1e-4)


def test_every_row_of_a_small_client_is_held_out_once_and_a_fifth_of_a_large_one():
    rows = rows_of(counts=(FEW + 20, 13, 1))
    out = folds(rows)
    assert out.sum(1).max() == 1
    assert held_out(rows)[:, 0].tolist() == [(FEW + 20) / FOLDS, 13, 1]
    assert not (out & (rows.mask.unsqueeze(1) == 0)).any()


def test_with_several_batches_no_batch_is_held_out_as_a_whole(monkeypatch):
    monkeypatch.setattr(rows_module, "BATCH", 10)
    monkeypatch.setattr(rows_module, "LEAST_BATCH", 10)
    rows = rows_of(counts=(50,))
    out = folds(rows)[0]
    for fold in out:
        for batch in range(5):
            assert 0 < int(fold[batch::5].sum()) < 10


def test_held_out_losses_are_those_of_refits_by_hand():
    rows = rows_of(counts=(10,))
    centre = rows.network.start.expand(1, -1)
    found = held_out_losses(rows, [centre], [10.0, 1.0])
    sums = torch.zeros(3)
    for fold in folds(rows)[0]:
        mask = rows.mask * ~fold
        fits = [
            centre.unsqueeze(1),
            *train_path(rows, mask.unsqueeze(1), centre.unsqueeze(1), [10, 1]),
        ]
        for place, w in enumerate(fits):
            outputs = rows.network.model.apply(w[0, 0], rows.x[0][fold])
            sums[place] += float(row_losses(rows.task, outputs.double(), rows.y[0][fold]).sum())
    assert torch.allclose(found[0].float(), sums / 10, rtol=1e-4)


def test_a_client_with_one_row_has_the_loss_of_its_centre():
    rows = rows_of(counts=(5, 1))
    found = held_out_losses(rows, [rows.network.start.expand(2, -1)], [10.0, 1.0])
    assert torch.allclose(found[1], found[1, :1].expand(3), rtol=1e-5)
    assert not torch.allclose(found[0], found[0, :1].expand(3), rtol=1e-3)
