"""A client's index never reaches another client's table."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional

from pmtl.algorithms import PMTL
from pmtl.engines.base import TensorBatches
from pmtl.engines.choose import build_trainer
from pmtl.models import build_model

WORDS, WIDTH, CLIENTS = 6, 4, 5


class Layer(nn.Module):
    def __init__(self, outputs=2):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x):
        return self.head(self.look_up(x.abs().long()).mean(dim=1))

    def look_up(self, index):
        return self.table(index)


class Function(Layer):
    """The same without the layer that could be looked for."""

    def __init__(self, outputs=2):
        super().__init__(outputs)
        self.table = nn.ParameterList([self.table.weight])

    def look_up(self, index):
        return functional.embedding(index, self.table[0])


def models():
    return pytest.mark.parametrize("kind", [Layer, Function])


def built(kind):
    return build_model(kind, (3,), 2, "classification", 0)


@models()
@pytest.mark.parametrize("index", [WORDS, WORDS + 2, 2 * WORDS + 1, 10**6])
def test_an_index_outside_of_its_table_touches_nobody_else(kind, index):
    """By itself, vmap would read and move the next client's rows."""
    model = built(kind)
    weights = torch.randn(CLIENTS, model.size, generator=torch.Generator().manual_seed(0))
    codes = torch.randint(0, WORDS, (CLIENTS, 7, 3), generator=torch.Generator().manual_seed(1))

    def gradients(codes, weights):
        loss = lambda w, x: model.apply(w, x).square().sum()  # noqa: E731
        return vmap(grad(loss))(weights, codes.float())

    honest = gradients(codes, weights)
    codes[2, 4, 1] = index
    ill = gradients(codes, weights)
    others = [0, 1, 3, 4]
    assert torch.equal(ill[others], honest[others])
    assert not torch.isfinite(ill[2]).all()
    # Nor does the client with the bad index read the others: theirs may be anything.
    weights[others] += 1.0
    assert torch.equal(torch.nan_to_num(gradients(codes, weights)[2]), torch.nan_to_num(ill[2]))


@models()
def test_a_bad_index_in_training_moves_no_other_clients_model(kind):
    """Through the engine that trains all clients in one computation, on its own copy of the model:
    client 2's index moved client 3's vector when the copy forgot that the model looks rows up."""
    model = built(kind)
    start = torch.randn(CLIENTS, model.size, generator=torch.Generator().manual_seed(0))
    codes = torch.randint(0, WORDS, (CLIENTS, 7, 3), generator=torch.Generator().manual_seed(1))
    targets = torch.zeros(CLIENTS, 7, dtype=torch.int64)

    def trained(codes):
        inputs, answers = (
            part.unsqueeze(1).expand(-1, 3, *part.shape[1:]) for part in (codes.float(), targets)
        )
        batches = TensorBatches(inputs, answers, np.ones((CLIENTS, 3, 7), dtype=bool))
        trainer = build_trainer("axis", False, PMTL(), model, "classification")
        return trainer.train(start, start[:1].expand(CLIENTS, -1), batches, 0.1).kept

    honest = trained(codes)
    codes[2, 4, 1] = WORDS + 2
    ill = trained(codes)
    others = [0, 1, 3, 4]
    assert torch.equal(ill[others], honest[others])
    assert not torch.isfinite(ill[2]).all()


@models()
def test_indices_inside_of_the_table_are_looked_up_as_ever(kind):
    model = built(kind)
    assert model.traits.looks_up
    x = torch.randint(0, WORDS, (8, 3)).float()
    assert torch.equal(model.apply(model.start(), x), model.module(x))


def test_a_model_without_tables_is_left_alone():
    assert not build_model("mlp", (3,), 2, "classification", 0).traits.looks_up
