"""A cohort trained as one computation is every client trained alone; padding is nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import vmap

from pmtl.algorithms import build_algorithm
from pmtl.data import FederatedData
from pmtl.engines.axis import AxisTrainer
from pmtl.engines.base import TensorBatches
from pmtl.engines.loops import DebugTrainer, ThreadsTrainer
from pmtl.models import Batch, FlatModel, build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, simulate

SHARING = ["pmtl:lam=0.4", "fedavg", "fedprox:mu=0.4", "ditto:lam=0.4", "ppsgd:alpha=0.5", "local"]
SIZES = (4, 11, 7, 2, 16)
K, BATCH, STEPS = len(SIZES), 6, 3

engines = pytest.mark.parametrize("engine", [AxisTrainer, ThreadsTrainer, DebugTrainer])


class Cohort:
    """Five clients with batches of their own, some short, some missing."""

    def __init__(self, algorithm, engine=AxisTrainer):
        generator = torch.Generator().manual_seed(1)
        model = build_model("mlp:hidden=5", (3,), 4, "classification", 0)
        self.model = model.to(torch.device("cpu"), torch.float64)
        self.algorithm = build_algorithm(algorithm)
        self.trainer = engine(self.algorithm, self.model, "classification")
        shape = (K, STEPS, BATCH)
        self.x = torch.randn(*shape, 3, generator=generator, dtype=torch.float64)
        self.y = torch.randint(0, 4, shape, generator=generator)
        drawn = (torch.arange(STEPS * BATCH) < torch.tensor(SIZES)[:, None]).view(shape)
        self.mask = drawn
        noise = torch.randn(K, self.model.size, generator=generator, dtype=torch.float64)
        self.shared = self.model.start() + 0.1 * noise
        self.own = vmap(self.algorithm.start)(self.shared)
        self.own = self.own + 0.1 * torch.randn(
            self.own.shape, generator=generator, dtype=torch.float64
        )

    def train(self, clients=slice(None), x=None, y=None, mask=None):
        x = self.x[clients] if x is None else x
        y = self.y[clients] if y is None else y
        mask = self.mask[clients] if mask is None else mask
        return self.trainer.train(
            self.own[clients], self.shared[clients], TensorBatches(x, y, mask.numpy()), 0.3
        )


def parts(trained):
    return trained.kept, trained.uploads, trained.losses


@engines
@pytest.mark.parametrize("algorithm", SHARING)
def test_training_many_together_is_training_each_alone(algorithm, engine):
    cohort = Cohort(algorithm, engine)
    together = cohort.train()
    for k in range(K):
        alone = cohort.train(slice(k, k + 1))
        for one, many in zip(parts(alone), parts(together), strict=True):
            assert torch.allclose(one[0], many[k], rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", SHARING)
def test_training_is_the_algorithm_called_by_hand_for_one_client(algorithm):
    """What a real site would do with its own rows, without padding, without vmap."""
    cohort = Cohort(algorithm)
    together = cohort.train()
    for k in range(K):
        own, shared = cohort.own[k], cohort.shared[k]
        state, losses = cohort.algorithm.begin(own, shared), []
        for step in range(STEPS):
            real = cohort.mask[k, step]
            if not real.any():
                continue
            x, y = cohort.x[k, step][real], cohort.y[k, step][real]

            def gradient(w, x=x, y=y, losses=losses):
                w = w.clone().requires_grad_()
                loss = nn.functional.cross_entropy(cohort.model.apply(w, x), y)
                losses.append(loss.item())
                return torch.autograd.grad(loss, w)[0]

            state = cohort.algorithm.step(state, shared, gradient, 0.3)
        assert torch.allclose(together.kept[k], cohort.algorithm.keep(state), rtol=0, atol=1e-12)
        upload = cohort.algorithm.upload(state, own, shared)
        assert torch.allclose(together.uploads[k], upload, rtol=0, atol=1e-12)
        # Ditto asks for two gradients a step; the reported loss is the personal model's.
        reported = losses[1::2] if algorithm.startswith("ditto") else losses
        assert float(together.losses[k]) == pytest.approx(np.mean(reported), abs=1e-12)


@engines
@pytest.mark.parametrize("algorithm", SHARING)
def test_steps_of_padding_change_not_one_bit(algorithm, engine):
    cohort = Cohort(algorithm, engine)
    extra = torch.full((K, 2, BATCH, 3), 1e6, dtype=torch.float64)
    answers = torch.zeros((K, 2, BATCH), dtype=torch.int64)
    none = torch.zeros((K, 2, BATCH), dtype=torch.bool)
    longer = cohort.train(
        x=torch.cat([cohort.x, extra], dim=1),
        y=torch.cat([cohort.y, answers], dim=1),
        mask=torch.cat([cohort.mask, none], dim=1),
    )
    for one, two in zip(parts(cohort.train()), parts(longer), strict=True):
        assert torch.equal(one, two)


@engines
@pytest.mark.parametrize("algorithm", SHARING)
def test_what_stands_in_padded_rows_does_not_matter(algorithm, engine):
    cohort = Cohort(algorithm, engine)
    garbage = torch.where(cohort.mask[..., None], cohort.x, 1e3)
    answers = torch.where(cohort.mask, cohort.y, 3 - cohort.y)
    other = cohort.train(x=garbage, y=answers)
    for one, two in zip(parts(cohort.train()), parts(other), strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-12)


@engines
def test_a_client_without_a_single_real_row_moves_nowhere(engine):
    cohort = Cohort("pmtl", engine)
    mask = cohort.mask.clone()
    mask[2] = False
    trained = cohort.train(mask=mask)
    assert torch.equal(trained.kept[2], cohort.own[2])
    assert not trained.uploads[2].any()
    assert trained.losses[2] == 0


def test_the_mean_is_over_real_rows_only():
    outputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 0])
    mask = torch.tensor([True, True, False, False])
    expected = nn.functional.cross_entropy(outputs[:2], targets[:2]).item()
    batch = Batch("classification", lambda weights: outputs, targets, mask)
    assert batch.loss(outputs).item() == pytest.approx(expected, abs=1e-15)
    assert replace(batch, mask=torch.zeros(4, dtype=torch.bool)).loss(outputs) == 0


@engines
def test_the_cohort_is_left_as_it_was(engine):
    cohort = Cohort("ditto", engine)
    before = cohort.own.clone(), cohort.shared.clone()
    cohort.train()
    assert torch.equal(cohort.own, before[0])
    assert torch.equal(cohort.shared, before[1])


class TestDropout:
    def federation(self, seed=0):
        rng = np.random.default_rng(0)
        owner = np.repeat(list("abcd"), 12)
        data = FederatedData.from_arrays(rng.normal(size=(48, 4)), rng.integers(0, 2, 48), owner)
        plan = PrivacyPlan(4, 4, "full", 1.0, 0.0, 3, 1e-3)

        def factory(input_shape, outputs):
            return nn.Sequential(
                nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, outputs)
            )

        model = build_model(factory, data.input_shape, data.outputs, data.task, 0)
        return simulate(data, model, build_algorithm("pmtl"), plan, LocalTraining(epochs=1), seed)

    def trained(self, seed=0):
        federation = self.federation(seed)
        progress = federation.start()
        for _ in federation.rounds(progress):
            pass
        return federation, progress

    def test_it_is_seen_and_a_model_without_it_is_not_mistaken(self):
        assert self.federation().model.traits.random_forward
        assert not FlatModel(nn.Linear(2, 2)).traits.random_forward

    def test_a_run_is_reproducible_and_leaves_the_global_generator_alone(self):
        torch.manual_seed(1)
        _, one = self.trained()
        torch.manual_seed(2)
        state = torch.random.get_rng_state()
        _, two = self.trained()
        assert torch.equal(torch.random.get_rng_state(), state)
        assert torch.equal(one.shared, two.shared)
        assert torch.equal(one.store.vectors, two.store.vectors)

    def test_units_are_dropped_at_random_in_training_and_kept_in_answers(self):
        federation, progress = self.trained()
        x = torch.ones(200, 4)
        federation.model.module.train()
        assert federation.model.apply(progress.shared[0], x).std(dim=0).max() > 0
        federation.model.module.eval()
        answers = federation.model.apply(progress.shared[0], x)
        assert torch.allclose(answers, answers[:1].expand_as(answers), rtol=0, atol=1e-6)

    def test_clients_and_rounds_do_not_share_their_masks(self):
        """Four clients with the same rows: alike without dropout, different with it."""
        federation = self.federation()
        x = torch.ones(4, 1, 3, 4)
        y = torch.zeros(4, 1, 3, dtype=torch.int64)
        shared = federation.model.start().repeat(4, 1)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            batches = TensorBatches(x, y, np.ones((4, 1, 3), dtype=bool))
            kept = federation.sites.trainer.train(shared, shared, batches, 0.1).kept
        assert len({tuple(row.tolist()) for row in kept}) == 4
