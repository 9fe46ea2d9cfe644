"""Fine-tuning minimises what it says: against plain autograd, client by client."""

from __future__ import annotations

import numpy as np
import plain
import pytest
import torch
from scipy import sparse

from pmtl.errors import PmtlError
from pmtl.personalize.fisher import Fisher
from pmtl.personalize.methods import METHODS, build_method
from pmtl.personalize.tuning import Tuner, Workspace, tune
from pmtl.simulation import LocalTraining, RowTensors
from pmtl.streams import subseed

TASKS = ("classification", "multilabel", "regression")
LOCAL = LocalTraining(steps=7, batch=5, lr=0.05)
REGULARISED = ("mean", "kl", "ewc")
CLOSE = {"rtol": 0, "atol": 1e-12}


def method_of(name, lam=0.7):
    return build_method(name, None if name == "vanilla" else lam)


def run(data, tensors, flat, start, anchor, name, lam=0.7, local=LOCAL, **options):
    method = method_of(name, lam)
    first, around = (lambda some: start[some]), (lambda some: anchor[some])
    space = Workspace(data, tensors, flat, 3, **options)
    return tune(space, method, first, around, local).vectors


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("engine", ["axis", "threads"])
def test_the_same_numbers_as_plain_autograd_for_each_client(name, task, engine):
    data = plain.federation(task)
    tensors, flat, start, anchor = plain.pieces(data)
    tuner = Tuner(Workspace(data, tensors, flat, 3), method_of(name), LOCAL)
    clients = np.arange(data.m)
    index, real = tuner.work.batches.draw(clients, 0)
    seed = subseed(3, "finetune")
    fisher = Fisher(data, tensors, flat, seed)(clients, anchor) if name == "ewc" else None
    expected = plain.tuned(name, 0.7, data, flat, start, anchor, fisher, index, real, LOCAL.lr)
    mine = run(data, tensors, flat, start, anchor, name, engine=engine)
    assert torch.allclose(mine, expected, **CLOSE)
    assert (mine - start).norm(dim=1).min() > 1e-2


def test_epochs_give_larger_clients_more_steps():
    data = plain.federation()
    tensors, flat, start, anchor = plain.pieces(data)
    local = LocalTraining(epochs=2, batch=5, lr=0.05)
    index, real = Tuner(
        Workspace(data, tensors, flat, 3), method_of("kl"), local
    ).work.batches.draw(np.arange(data.m), 0)
    steps = real.any(axis=2).sum(axis=1)
    assert steps.tolist() == (2 * -(-data.rows("train").counts // 5)).tolist()
    expected = plain.tuned("kl", 0.7, data, flat, start, anchor, None, index, real, local.lr)
    mine = run(data, tensors, flat, start, anchor, "kl", local=local)
    assert torch.allclose(mine, expected, **CLOSE)


@pytest.mark.parametrize("name", REGULARISED)
def test_lambda_zero_is_vanilla_and_every_lambda_counts(name):
    data = plain.federation()
    pieces = plain.pieces(data)
    vanilla = run(data, *pieces, "vanilla")
    assert torch.allclose(run(data, *pieces, name, 0.0), vanilla, **CLOSE)
    weak, strong = run(data, *pieces, name, 0.5), run(data, *pieces, name, 1.0)
    for one, other in ((weak, vanilla), (strong, vanilla), (strong, weak)):
        assert (one - other).norm(dim=1).min() > 1e-3


@pytest.mark.parametrize("name", REGULARISED)
def test_a_large_lambda_keeps_near_the_published_model(name):
    """In weights or, for kl, in answers; the step is small enough for the pull not to overshoot."""
    data = plain.federation()
    tensors, flat, _, anchor = plain.pieces(data, "logistic")
    local = LocalTraining(steps=150, batch=0, lr=5e-3)
    free = run(data, tensors, flat, anchor, anchor, "vanilla", local=local)
    held = run(data, tensors, flat, anchor, anchor, name, 100.0, local=local)
    rows = torch.from_numpy(data.gather(data.rows("train").of(4))[0]).double()

    def moved(weights):
        if name == "kl":
            return (
                plain.answers(flat, weights[4], rows).softmax(-1)
                - plain.answers(flat, anchor[4], rows).softmax(-1)
            ).norm()
        return (weights[4] - anchor[4]).norm()

    assert moved(held) < 0.2 * moved(free)
    assert moved(free) > 0.05


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_sparse_rows_stay_sparse_and_give_the_same_numbers(name, task):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(sum(plain.SIZES), 40)) * (rng.random((sum(plain.SIZES), 40)) < 0.06)
    x = x.astype(np.float32)
    dense = plain.federation(task, x=x)
    rows = plain.federation(task, x=sparse.csr_matrix(x))
    _, flat, start, anchor = plain.pieces(dense, "auto")
    results = []
    for data in (dense, rows):
        tensors = RowTensors(data, plain.CPU, torch.float64)
        tuner = Tuner(Workspace(data, tensors, flat, 3), method_of(name), LOCAL)
        assert (tuner.work.sparse is not None) == (data is rows)
        results.append(run(data, tensors, flat, start, anchor, name))
    assert torch.allclose(*results, **CLOSE)
    assert (results[0] - start).norm(dim=1).min() > 1e-2


def test_no_result_depends_on_other_clients():
    data = plain.federation()
    tensors, flat, start, anchor = plain.pieces(data)
    tuner = Tuner(Workspace(data, tensors, flat, 3), method_of("ewc"), LOCAL)
    clients = np.arange(data.m)
    together = tuner(clients, start, anchor)
    for some in ([0], [5, 2], [1, 4]):
        assert torch.allclose(tuner(np.array(some), start[some], anchor[some]), together[some])


def test_pieces_and_a_file_change_nothing(monkeypatch):
    data = plain.federation()
    pieces = plain.pieces(data)
    whole = run(data, *pieces, "ewc")
    floats = Tuner(Workspace(data, *pieces[:2], 3), method_of("ewc"), LOCAL).work.client_floats
    monkeypatch.setattr("pmtl.engines.choose.CHUNK_FLOATS", 4 * floats)
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "1")
    assert len(Tuner(Workspace(data, *pieces[:2], 3), method_of("ewc"), LOCAL).pieces()) == 2
    assert torch.allclose(run(data, *pieces, "ewc"), whole, **CLOSE)


def test_what_fails_for_one_client_stays_with_it():
    """In production; the others come out as if nothing had happened, and it keeps its start."""
    data = plain.federation()
    tensors, flat, start, anchor = plain.pieces(data)
    whole = run(data, tensors, flat, start, anchor, "vanilla")

    def around(some):
        if 3 in some:
            raise ValueError("client 3")
        return anchor[some]

    def tuned(isolate):
        method, first = method_of("vanilla"), (lambda some: start[some])
        space = Workspace(data, tensors, flat, 3, isolate=isolate)
        return tune(space, method, first, around, LOCAL).vectors

    mine = tuned(isolate=True)
    others = [0, 1, 2, 4, 5]
    assert torch.equal(mine[3], start[3])
    assert torch.allclose(mine[others], whole[others], **CLOSE)
    with pytest.raises(ValueError, match="client 3"):
        tuned(isolate=False)


class TestFisher:
    def test_it_is_the_closed_form_of_logistic_regression(self):
        """E over the model's labels: F = mean over rows of p(1−p)·x², and p(1−p) for intercepts.
        One label a row is drawn, so it holds on average over seeds, here within five standard
        errors in each of the coordinates."""
        data = plain.federation()
        tensors, flat, _, anchor = plain.pieces(data, "logistic")
        clients, seeds = np.arange(data.m), 300
        drawn = torch.stack([Fisher(data, tensors, flat, s)(clients, anchor) for s in range(seeds)])
        for k in clients:
            rows = torch.from_numpy(data.gather(data.rows("train").of(k))[0]).double()
            p = plain.answers(flat, anchor[k], rows).softmax(-1)
            variance = p * (1 - p)
            weights = (variance[:, :, None] * rows[:, None] ** 2).mean(0)
            exact = torch.cat([weights.flatten(), variance.mean(0)])
            error = drawn[:, k].std(dim=0) / seeds**0.5
            assert ((drawn[:, k].mean(dim=0) - exact).abs() <= 5 * error + 1e-12).all()

    def test_of_regression_it_is_the_squared_jacobian(self):
        data = plain.federation("regression")
        tensors, flat, _, anchor = plain.pieces(data, "linear")
        seeds = 300
        one = np.array([2])
        drawn = torch.cat([Fisher(data, tensors, flat, s)(one, anchor[one]) for s in range(seeds)])
        rows = torch.from_numpy(data.gather(data.rows("train").of(2))[0]).double()
        exact = torch.cat([(rows**2).mean(0).repeat(plain.C), torch.ones(plain.C)])
        assert ((drawn.mean(0) - exact).abs() <= 5 * drawn.std(0) / seeds**0.5).all()

    @pytest.mark.parametrize("task", TASKS)
    def test_row_by_row_is_the_outer_product(self, task):
        data = plain.federation(task)
        tensors, flat, _, anchor = plain.pieces(data, "auto")
        other = plain.pieces(data, plain.layers)[1]
        clients = np.arange(data.m)
        one = Fisher(data, tensors, flat, 5)(clients, anchor)
        assert torch.allclose(Fisher(data, tensors, other, 5)(clients, anchor), one, **CLOSE)
        assert one.min() >= 0
        assert one.max() > 0.01

    def test_in_pieces_of_a_row_it_is_the_same(self, monkeypatch):
        data = plain.federation()
        tensors, flat, _, anchor = plain.pieces(data)
        clients = np.arange(data.m)
        whole = Fisher(data, tensors, flat, 5)(clients, anchor)
        monkeypatch.setattr("pmtl.personalize.fisher.CPU_FLOATS", 1)
        assert torch.allclose(Fisher(data, tensors, flat, 5)(clients, anchor), whole, **CLOSE)

    def test_it_is_the_clients_own_in_any_federation(self):
        data = plain.federation()
        tensors, flat, _, anchor = plain.pieces(data)
        fewer = data.select(["c2", "c5"])
        alone = Fisher(fewer, RowTensors(fewer, plain.CPU, torch.float64), flat, 5)
        whole = Fisher(data, tensors, flat, 5)(np.arange(data.m), anchor)
        assert torch.allclose(alone(np.arange(2), anchor[[2, 5]]), whole[[2, 5]], **CLOSE)

    def test_another_seed_draws_other_labels(self):
        data = plain.federation()
        tensors, flat, _, anchor = plain.pieces(data)
        one, other = (Fisher(data, tensors, flat, s)(np.arange(data.m), anchor) for s in (1, 2))
        assert not torch.allclose(one, other)


def test_what_cannot_be_is_refused_in_a_sentence():
    with pytest.raises(PmtlError, match="Did you mean 'vanilla'"):
        build_method("vanila")
    with pytest.raises(PmtlError, match=r"not negative, but -1\.0"):
        build_method("ewc", -1.0)
    with pytest.raises(PmtlError, match="has no λ"):
        build_method("vanilla", 1.0)
