"""One client's training is the algorithm called by hand; padding and neighbours are nothing."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from pmtl.algorithms import ALGORITHMS, build_algorithm
from pmtl.client.step import train_client
from pmtl.models import Batch, build_model

#: Algorithms that take steps; exact ones are in tests of their own.
BY_STEPS = [name for name, kind in ALGORITHMS.items() if not kind.exact]

TASK, LR = "classification", 0.3


class Client:
    """A client with three batches, the second of them short, and a step without a real row."""

    def __init__(self, algorithm):
        generator = torch.Generator().manual_seed(1)
        self.model = build_model("mlp:hidden=5", (3,), 4, TASK, 0)
        self.algorithm = build_algorithm(algorithm).bind(self.model.layout)
        self.model.to(torch.device("cpu"), torch.float64)
        self.x = torch.randn(4, 6, 3, generator=generator, dtype=torch.float64)
        self.y = torch.randint(0, 4, (4, 6), generator=generator)
        self.mask = torch.arange(6) < torch.tensor([6, 2, 0, 6])[:, None]
        self.shared = self.model.start()
        own = self.algorithm.start(self.shared)
        self.own = own + 0.1 * torch.randn(len(own), generator=generator, dtype=torch.float64)

    def train(self, x=None, on_stage=None):
        batches = zip(self.x if x is None else x, self.y, self.mask, strict=True)
        return train_client(
            self.algorithm, self.model, TASK, self.own, self.shared, batches, LR, on_stage
        )


@pytest.mark.parametrize("algorithm", BY_STEPS)
def test_it_is_the_algorithm_called_by_hand(algorithm):
    client = Client(algorithm)
    state = client.algorithm.begin(client.own, client.shared)
    losses = []
    for x, y, mask in zip(client.x, client.y, client.mask, strict=True):
        told = []

        def gradient(w, x=x[mask], y=y[mask], told=told):
            w = w.clone().requires_grad_()
            outputs = client.model.apply(w, x)
            loss = Batch(TASK, lambda w: outputs, y, torch.ones(len(y)).bool()).loss(outputs)
            told.append(loss.item())
            return torch.autograd.grad(loss, w)[0]

        if mask.any():
            state = client.algorithm.step(state, client.shared, gradient, LR)
            losses.append(told[-1])
    trained = client.train()
    upload = client.algorithm.upload(state, client.own, client.shared)
    assert torch.allclose(trained.kept, client.algorithm.keep(state), rtol=0, atol=1e-12)
    assert torch.allclose(trained.upload, upload, rtol=0, atol=1e-12)
    assert trained.loss == pytest.approx(np.mean(losses), abs=1e-12)


def test_padding_changes_not_one_bit_even_if_it_is_nan():
    client = Client("pmtl")
    trained = client.train()
    padded = client.train(torch.where(client.mask[..., None], client.x, torch.nan))
    assert torch.equal(trained.kept, padded.kept)
    assert torch.equal(trained.upload, padded.upload)
    assert trained.loss == padded.loss


def test_a_client_without_batches_keeps_what_it_owns():
    client = Client("pmtl")
    trained = train_client(client.algorithm, client.model, TASK, client.own, client.shared, [], LR)
    assert torch.equal(trained.kept, client.own)
    assert not trained.upload.any()
    assert trained.loss == 0


def test_what_came_in_is_left_as_it_was():
    client = Client("ditto")
    own, shared = client.own.clone(), client.shared.clone()
    client.train()
    assert torch.equal(client.own, own)
    assert torch.equal(client.shared, shared)


def test_the_model_is_in_training_mode():
    client = Client("pmtl")
    client.model.module.eval()
    client.train()
    assert client.model.module.training


def test_stages_are_told_in_order():
    stages = []
    Client("pmtl").train(on_stage=stages.append)
    assert stages == ["begin", "step 1", "step 2", "step 3", "upload", "keep"]


def test_a_site_needs_no_engine():
    check = (
        "import sys, pmtl.client.step; "
        "print([m for m in sys.modules if m.startswith(('pmtl.engines', 'pmtl.simulation'))])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
