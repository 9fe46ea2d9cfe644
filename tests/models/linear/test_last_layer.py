"""The linear part of a model: which models have one, and the rows that it reads."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pmtl.models import build_model
from pmtl.models.linear.last_layer import last_layer

PIXELS = (784,)


class Frozen(nn.Module):
    """Fixed features, a trained head, and something after it."""

    def __init__(self, bias=True, after=None, dropout=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 7), nn.Tanh()).requires_grad_(False)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(7, 3, bias=bias)
        self.after = after or nn.Identity()

    def forward(self, x):
        return self.after(self.head(self.drop(self.body(x))))


class Sequence(nn.Module):
    """A head that reads several places of a row."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 3)

    def forward(self, x):
        return self.head(x.unsqueeze(-1)).mean(1)


class Unused(nn.Module):
    """A head that is not called, but used as a matrix."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return x @ self.head.weight.T + self.head.bias


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.head(x[:, :3]))


def found(factory, shape=(5,), outputs=3, task="classification", frozen=None):
    model = build_model(factory, shape, outputs, task, 0, frozen=frozen)
    return model, last_layer(model, shape)


@pytest.mark.parametrize(
    ("factory", "shape", "columns", "factor"),
    [
        ("logistic", (5,), 5, 1.0),
        ("logistic", (2, 3), 6, 1.0),
        ("hog", PIXELS, None, None),
        (Frozen, (5,), 7, 1.0),
        (lambda: nn.Linear(5, 3), (5,), 5, 1.0),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (2, 3), 6, 1.0),
    ],
)
def test_the_model_is_the_layer_on_its_features(factory, shape, columns, factor):
    model, layer = found(factory, shape)
    assert layer is not None
    assert layer.columns == (columns or layer.layer.in_features)
    assert layer.factor == (factor or math.sqrt(layer.columns))
    random = torch.Generator().manual_seed(1)
    x = torch.rand(4, *shape, generator=random)
    weights = torch.randn(model.size, generator=random)
    slopes, bias = weights[: 3 * layer.columns].view(3, -1), weights[3 * layer.columns :]
    features = layer.features(x)
    assert features.shape == (4, layer.columns)
    expected = model.apply(weights, x)
    assert expected.abs().max() > 0.1
    assert torch.allclose(features @ slopes.T + bias, expected, atol=1e-4)


def test_features_of_hog_have_norm_one_and_their_factor_brings_them_to_size_one():
    _, layer = found("hog", PIXELS)
    x = torch.rand(6, *PIXELS, generator=torch.Generator().manual_seed(0))
    features = layer.features(x)
    assert torch.allclose(features.norm(dim=1), torch.ones(6), atol=1e-2)
    size = (features * layer.factor).square().mean(1).sqrt()
    assert torch.allclose(size, torch.ones(6), atol=1e-2)


def test_a_network_is_linear_once_all_but_its_last_layer_is_frozen():
    assert found("mlp:hidden=4")[1] is None
    model, layer = found("mlp:hidden=4", frozen="1.*")
    assert layer is not None
    assert (layer.columns, model.size) == (4, 4 * 3 + 3)
    assert found("mlp:hidden=4", frozen="3.*")[1] is None, "a frozen layer follows"


@pytest.mark.parametrize(
    "factory",
    [
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)),
        lambda: Frozen(bias=False),
        lambda: Frozen(after=nn.LogSoftmax(dim=1)),
        lambda: Frozen(after=nn.Tanh()),
        lambda: nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3)),
        Sequence,
        Unused,
        Twice,
    ],
    ids=["two", "no bias", "softmax", "tanh", "norm", "several places", "not called", "twice"],
)
def test_a_model_that_is_not_one_trained_linear_layer_has_no_linear_part(factory):
    assert found(factory)[1] is None


def test_a_frozen_bias_is_no_trained_layer():
    assert found("logistic", frozen="linear.bias")[1] is None


def test_looking_does_not_change_the_model_or_the_random_numbers():
    model, _ = found(Frozen)
    before, state = model.start().clone(), torch.random.get_rng_state()
    assert last_layer(model, (5,)) is not None
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(model.start(), before)
    assert not model.module.head._forward_pre_hooks


def test_rows_have_a_column_of_ones_and_classes_are_zeros_and_ones():
    _, layer = found("logistic", (2,))
    inputs = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    real = torch.tensor([[True, True], [True, False]])
    rows = layer.rows("classification", 3, inputs, torch.tensor([[0, 2], [1, 1]]), real)
    assert rows.x.tolist() == [[[1, 1, 2], [1, 3, 4]], [[1, 5, 6], [0, 0, 0]]]
    assert rows.y.tolist() == [[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 0, 0]]]
    assert rows.mask.tolist() == [[1, 1], [1, 0]]
    assert (rows.x.dtype, rows.counts.tolist()) == (torch.float64, [2, 1])


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1)])
def test_one_number_needs_no_axis_of_its_own(shape):
    _, layer = found("linear", (2,), 1, "regression")
    targets = torch.arange(6.0).view(shape)
    rows = layer.rows("regression", 1, torch.ones(2, 3, 2), targets, torch.ones(2, 3).bool())
    assert rows.y[..., 0].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("factory", ["linear", Frozen])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_whatever_is_in_the_padding_becomes_zero(factory, value):
    _, layer = found(factory, task="regression")
    inputs = torch.full((1, 3, 5), value)
    targets = torch.full((1, 3, 3), value)
    inputs[0, 0], targets[0, 0] = 0.5, 2.0
    rows = layer.rows("regression", 3, inputs, targets, torch.tensor([[True, False, False]]))
    assert rows.x[:, 1:].abs().sum() == rows.y[:, 1:].abs().sum() == 0
    assert rows.x.isfinite().all()
    assert rows.y[0, 0].tolist() == [2, 2, 2]


def test_only_public_weights_on_fixed_features_are_a_start():
    """Columns themselves are scaled by each client, so that public weights would not fit them."""

    def start(model, names, shape=(5,)):
        flat = build_model(model, shape, 3, "classification", 0)
        flat.public = frozenset(names)
        found = last_layer(flat, shape)
        assert found is not None
        return flat, found.start

    flat, found = start(lambda: Frozen(), ["head.weight", "head.bias", "body.0.weight"])
    assert found is not None
    assert torch.equal(found[1:].T.float(), flat.module.head.weight)
    assert torch.equal(found[0].float(), flat.module.head.bias)
    assert start(lambda: Frozen(), ["head.weight"])[1] is None, "only a part of it"
    assert start(lambda: Frozen(), ["body.0.weight"])[1] is None
    assert start("logistic", ["layer.weight", "layer.bias", "weight", "bias"])[1] is None
