"""Sparse rows on their own columns: the numbers of dense training, without its passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from pmtl.algorithms import ALGORITHMS, PMTL, Algorithm, build_algorithm
from pmtl.algorithms.clustered import ClusteredPMTL
from pmtl.algorithms.related import RelatedPMTL
from pmtl.data import FederatedData
from pmtl.engines.axis import rounded_up
from pmtl.engines.sparse import Block, SparseTrainer
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, RowTensors, evaluate, simulate

#: Algorithms with a closed form; others get dense batches. Exact ones are in tests of their own.
CLOSED_FORM = [
    name
    for name, kind in ALGORITHMS.items()
    if kind.zero_gradient_steps is not Algorithm.zero_gradient_steps
]

D, C, ROUNDS = 40, 3, 3
SIZES = (6, 14, 9, 25, 5, 11)
M = len(SIZES)
CLOSE = {"rtol": 0, "atol": 1e-13}


def table(task="classification", seed=3):
    """Rows with a handful of words each; one row is empty, and so are all rows of client 4."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.repeat(np.arange(M), SIZES))
    x = np.where(rng.random((len(owner), D)) < 0.06, rng.normal(size=(len(owner), D)), 0)
    x[owner == 4] = 0
    x[7] = 0
    y = {
        "classification": rng.integers(0, C, len(owner)),
        "multilabel": (rng.random((len(owner), C)) < 0.4).astype(np.uint8),
        "regression": rng.normal(size=(len(owner), C)).astype(np.float32),
    }[task]
    return x.astype(np.float32), y, np.array([f"c{k}" for k in owner])


def algorithm_for(name):
    if name == "clustered":
        return ClusteredPMTL(clusters={f"c{k}": str(k % 2) for k in range(M)})
    if name == "related":
        return RelatedPMTL(omega=np.diag([2.0, *[1.0] * (M - 1)]) - 1 / M)
    return build_algorithm(name)


def federation(algorithm="pmtl", task="classification", stored="sparse", **changes):
    x, y, owner = table(task)
    data = FederatedData.from_arrays(
        sparse.csr_matrix(x) if stored == "sparse" else x, y, owner, task=task, outputs=C
    )
    plan = PrivacyPlan(M, 4, "poisson", 0.4, 0.0, ROUNDS, 1e-3)
    model = build_model(changes.pop("model", "auto"), data.input_shape, C, task, 0)
    local = changes.pop("local", LocalTraining(epochs=2, batch=4, lr=0.3))
    changes.setdefault("dtype", torch.float64)
    return simulate(data, model, algorithm, plan, local, 0, **changes)


def run(made):
    progress = made.start()
    return progress, list(made.rounds(progress))


class TestTheSameNumbers:
    """As with the same rows in a dense array, where batches are made dense and every coordinate
    takes every step."""

    def compare(self, **options):
        one, other = federation(**options), federation(**options, stored="dense")
        assert one.sites.sparse is not None
        assert other.sites.sparse is None
        (a, first), (b, second) = run(one), run(other)
        assert not torch.equal(a.shared, one.start().shared) or not one.algorithm.shares
        assert torch.allclose(a.shared, b.shared, **CLOSE)
        assert torch.allclose(a.store.vectors, b.store.vectors, **CLOSE)
        for report, like in zip(first, second, strict=True):
            assert report.train_loss == pytest.approx(like.train_loss, abs=1e-12)
            assert report.clipped == like.clipped

    @pytest.mark.parametrize("name", CLOSED_FORM)
    def test_of_every_algorithm(self, name):
        self.compare(algorithm=algorithm_for(name))

    @pytest.mark.parametrize("task", ["multilabel", "regression"])
    def test_of_every_task(self, task):
        self.compare(algorithm=build_algorithm("pmtl:lam=0.7"), task=task)

    @pytest.mark.parametrize("local", [LocalTraining(steps=5, batch=3), LocalTraining(batch=0)])
    def test_of_steps_and_whole_batches(self, local):
        self.compare(algorithm=build_algorithm("ditto"), local=local)

    def test_of_cohorts_in_pieces(self, monkeypatch):
        monkeypatch.setattr("pmtl.engines.choose.SPARSE_FLOATS", 1)
        self.compare(algorithm=PMTL())

    def test_as_of_the_engine_debug_which_makes_batches_dense(self):
        made = federation(algorithm=PMTL(), engine="debug")
        assert made.sites.sparse is None
        (a, _), (b, _) = run(made), run(federation(algorithm=PMTL()))
        assert torch.allclose(a.store.vectors, b.store.vectors, **CLOSE)

    @pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
    def test_in_evaluation(self, task):
        scores = []
        for stored in ("sparse", "dense"):
            made = federation(algorithm=PMTL(), task=task, stored=stored)
            progress, _ = run(made)
            views = made.views(progress)
            scores.append(evaluate(made.sites.tensors, made.model, views, "test"))
        for view in ("personal", "shared"):
            assert scores[0][view] == pytest.approx(scores[1][view], abs=1e-12)

    def test_in_single_precision_nearly(self):
        ends = [
            run(federation(PMTL(lam=2.0), stored=stored, dtype=torch.float32))[0]
            for stored in ("sparse", "dense")
        ]
        assert torch.allclose(ends[0].store.vectors, ends[1].store.vectors, rtol=0, atol=1e-6)


class TestTheCost:
    def test_no_step_sees_a_whole_vector_and_the_rest_is_done_once(self, monkeypatch):
        seen, rested = [], []
        step, rest = PMTL.step, PMTL.zero_gradient_steps

        def watched_step(self, w, shared, gradient, lr):
            seen.append(w.shape[-1])
            return step(self, w, shared, gradient, lr)

        def watched_rest(self, w, shared, lr, steps):
            rested.append(w.shape[-1])
            return rest(self, w, shared, lr, steps)

        made = federation(algorithm=PMTL(), local=LocalTraining(steps=6, batch=1))
        monkeypatch.setattr(PMTL, "step", watched_step)
        monkeypatch.setattr(PMTL, "zero_gradient_steps", watched_rest)
        _, reports = run(made)
        assert all(report.cohort for report in reports)
        assert len(seen) == 6 * ROUNDS
        assert max(seen) <= 0.75 * C * (D + 1)
        assert rested == [C * (D + 1)] * ROUNDS

    def test_rows_are_never_made_dense(self, monkeypatch):
        made = federation(algorithm=PMTL())

        def dense(*_):
            raise AssertionError("rows were made dense")

        monkeypatch.setattr(FederatedData, "gather", dense)
        monkeypatch.setattr(RowTensors, "rows", dense)
        progress, _ = run(made)
        assert evaluate(made.sites.tensors, made.model, made.views(progress), "test")

    @given(st.integers(1, 20_000))
    @settings(max_examples=200, derandomize=True)
    def test_widths_are_not_much_too_large(self, width):
        assert width <= rounded_up(width) <= 1.25 * width
        assert rounded_up(rounded_up(width)) == rounded_up(width)

    def test_widths_are_few(self):
        assert len({rounded_up(width) for width in range(1, 20_001)}) < 60


@dataclass(frozen=True)
class Decaying(PMTL):
    """Another step, and a rest that was inherited with the name."""

    def step(self, w, shared, gradient, lr):
        return super().step(w, shared, gradient, lr) * 0.99


@dataclass(frozen=True)
class Silent(PMTL):
    def zero_gradient_steps(self, w, shared, lr, steps):
        return None


@dataclass(frozen=True)
class Longer(PMTL):
    """It owns a number more than its model has."""

    def start(self, shared):
        return torch.cat([shared, shared[:1]])

    def step(self, w, shared, gradient, lr):
        return torch.cat([super().step(w[:-1], shared, gradient, lr), w[-1:]])

    def upload(self, w, own, shared):
        return w[:-1] - own[:-1]

    def predict(self, own, shared):
        return own[:-1]


class TestWhoIsTrainedSo:
    @pytest.mark.parametrize("algorithm", [Decaying(), Silent(), Longer()])
    def test_an_algorithm_whose_rest_is_not_known_takes_every_step(self, algorithm):
        assert federation(algorithm=PMTL()).sites.sparse is not None
        assert federation(algorithm=algorithm).sites.sparse is None

    def test_other_models_take_dense_batches(self):
        made = federation(algorithm=PMTL(), model="mlp:hidden=4")
        assert made.sites.sparse is None
        run(made)

    def test_a_linear_model_that_is_partly_frozen_does_too(self):
        made = federation(algorithm=PMTL())
        model = build_model("logistic", (D,), C, "classification", 0)
        assert SparseTrainer.fits(made.algorithm, model, made.sites.tensors)
        model.module.linear.bias.requires_grad_(False)
        frozen = type(model)(model.module)
        assert not SparseTrainer.fits(made.algorithm, frozen, made.sites.tensors)


class TestBlock:
    def block(self, real=None):
        made = federation(algorithm=PMTL())
        index, drawn = made.sites.batches.draw(np.arange(M), 0)
        return made, index, Block(made.sites.tensors, index, drawn if real is None else real)

    def test_its_rows_are_the_dense_ones_on_its_columns(self):
        made, index, block = self.block()
        _, real = made.sites.batches.draw(np.arange(M), 0)
        for step in range(index.shape[1]):
            inputs, targets = block.rows(step)
            dense, answers = made.sites.tensors.rows(index[:, step])
            assert torch.equal(targets, answers)
            dense = dense * torch.from_numpy(real[:, step])[..., None]
            for k in range(M):
                # Every row is whole on the block's columns, and zero on the others.
                columns = block.columns[k]
                again = torch.zeros_like(dense[k]).index_add_(1, columns, inputs[k])
                assert torch.equal(again, dense[k])

    def test_what_is_put_back_is_what_was_taken_and_the_others_are_left_alone(self):
        _, _, block = self.block()
        size = C * (D + 1)
        vectors = torch.randn(M, size, generator=torch.Generator().manual_seed(0))
        part = block.take(vectors, D, C)
        assert part.shape == (M, C * (block.width + 1))
        after = vectors.clone()
        block.put(after, part, D, C)
        assert torch.equal(after, vectors)
        block.put(after, part + 1, D, C)
        for k in range(M):
            touched = torch.zeros(C, D, dtype=torch.bool)
            touched[:, block.columns[k]] = True
            expected = vectors[k, : C * D].view(C, D) + touched
            assert torch.equal(after[k, : C * D].view(C, D), expected)
            assert torch.equal(after[k, C * D :], vectors[k, C * D :] + 1)

    def test_without_a_real_row_it_still_has_a_column(self):
        made, index, _ = self.block()
        block = Block(made.sites.tensors, index, np.zeros(index.shape, dtype=bool))
        assert block.width == 1
        assert not block.rows(0)[0].any()

    @pytest.mark.parametrize("algorithm", ["local", "ppsgd", "pmtl"])
    def test_training_leaves_what_it_was_given_as_it_was(self, algorithm):
        made = federation(algorithm=build_algorithm(algorithm))
        index, real = made.sites.batches.draw(np.arange(M), 0)
        random = torch.Generator().manual_seed(1)
        own, shared = torch.randn(2, M, made.model.size, generator=random, dtype=torch.float64)
        before = own.clone(), shared.clone()
        trained = made.sites.sparse.train(own, shared, index, real, 0.3)
        assert torch.equal(own, before[0])
        assert torch.equal(shared, before[1])
        assert not torch.equal(trained.kept, own)

    def test_the_global_generator_is_not_moved(self):
        state = torch.random.get_rng_state()
        run(federation(algorithm=PMTL()))
        assert torch.equal(torch.random.get_rng_state(), state)
