"""Layers computed another way give the same answers and the same derivatives."""

import copy
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap

from pmtl.models import FlatModel, build_model
from pmtl.models.layout import Traits
from pmtl.models.lowering import (
    ChannelsLastConv2d,
    PatchConv2d,
    TilePool2d,
    floats_per_row,
    has_convolutions,
    lowered,
)

WAYS = ["patches", "channels_last"]


def twin(module, way):
    return lowered(FlatModel(module), way).module


def answers(module, x):
    """The output and the derivatives of a curved function of it, by input and parameters."""
    x = x.clone().requires_grad_()
    out = module(x)
    return out, *torch.autograd.grad((out.sin() * out).sum(), [x, *module.parameters()])


def first_layer(module, x):
    """The same, but for the input, which needs no derivative."""
    out = module(x)
    return out, *torch.autograd.grad((out.sin() * out).sum(), list(module.parameters()))


def assert_same(one, two):
    for a, b in zip(one, two, strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    channels=st.integers(1, 3),
    kernel=pairs,
    stride=pairs,
    dilation=pairs,
    padding=st.one_of(
        st.tuples(st.integers(0, 2), st.integers(0, 2)), st.sampled_from(["same", "valid"])
    ),
    mode=st.sampled_from(["zeros", "reflect", "circular"]),
    bias=st.booleans(),
)
def test_any_convolution(way, channels, kernel, stride, dilation, padding, mode, bias):
    if padding == "same":
        stride = (1, 1)
    torch.manual_seed(0)
    layer = nn.Conv2d(
        channels, 4, kernel, stride, padding, dilation, bias=bias, padding_mode=mode
    ).double()
    x = noise(2, channels, 11, 9)
    other = twin(layer, way)
    assert type(other) in (PatchConv2d, ChannelsLastConv2d)
    assert_same(answers(layer, x), answers(other, x))
    assert_same(first_layer(layer, x), first_layer(other, x))


def test_many_filters_at_once():
    """Over a client axis, where every client has filters of its own."""
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, (3, 2), (2, 1), 1, (1, 2)).double()
    other = twin(layer, "patches")
    weights = {
        name: noise(4, *p.shape, seed=k) for k, (name, p) in enumerate(layer.named_parameters())
    }
    x = noise(4, 5, 2, 8, 9)

    def slopes(module):
        def loss(w, x):
            return functional_call(module, w, (x.tanh(),)).sin().sum()

        return vmap(grad(loss, argnums=(0, 1)))(weights, x)

    (one, by_x), (two, also_by_x) = slopes(layer), slopes(other)
    assert_same([*one.values(), by_x], [*two.values(), also_by_x])


@pytest.mark.parametrize("tile", [2, 3, (2, 1), (1, 3)])
@pytest.mark.parametrize("size", [(6, 6), (7, 8), (11, 10)])
def test_pooling_over_tiles(tile, size):
    layer = nn.MaxPool2d(tile)
    other = twin(nn.Sequential(nn.Conv2d(1, 1, 1), layer), "patches")[1]
    assert type(other) is TilePool2d
    x = noise(2, 3, *size)
    assert_same(answers(layer, x), answers(other, x))
    rows = x.unsqueeze(0).repeat(4, 1, 1, 1, 1) * noise(4, 1, 1, 1, 1)

    def slope(module):
        return vmap(grad(lambda x: (module(x) ** 2).sum()))(rows)

    assert torch.allclose(slope(layer), slope(other), rtol=0, atol=1e-12)


def test_among_equals_the_first_wins_and_not_a_number_wins_over_all():
    layer = nn.MaxPool2d(2)
    other = copy.deepcopy(layer)
    other.__class__ = TilePool2d
    # Few different values: most tiles have a tie.
    x = torch.randint(0, 3, (4, 2, 8, 8), generator=torch.Generator().manual_seed(0)).double()
    assert_same(answers(layer, x), answers(other, x))
    x[0, 0, ::3, ::3] = float("nan")
    assert torch.equal(layer(x).isnan(), other(x).isnan())
    assert torch.equal(layer(x).nan_to_num(-1), other(x).nan_to_num(-1))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv1d(4, 4, 3),
        nn.ConvTranspose2d(4, 4, 3),
        type("Own", (nn.Conv2d,), {})(4, 4, 3),
        nn.MaxPool2d(3, 2),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, dilation=2),
    ],
)
def test_what_is_not_understood_exactly_is_left_alone(layer):
    module = nn.Sequential(nn.Linear(1, 1), layer)
    for way in WAYS:
        assert type(twin(module, way)[1]) is type(layer)


def test_a_single_image_without_a_batch_is_still_an_image():
    layer = nn.Conv2d(2, 3, 3).double()
    x = noise(2, 6, 6)
    for way in WAYS:
        assert torch.allclose(twin(layer, way)(x), layer(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_the_flat_vector_means_the_same_and_the_model_is_left_as_it_was(way):
    model = build_model("femnist_cnn", (784,), 5, "classification", 0)
    other = lowered(model, way)
    assert type(model.module.conv1) is nn.Conv2d
    assert other.name == model.name
    assert torch.equal(other.start(), model.start())
    assert list(other.layout.cut(other.start())) == list(model.layout.cut(model.start()))
    x = torch.rand(2, 784, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(
        other.apply(model.start(), x), model.apply(model.start(), x), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("way", ["patches", "channels_last"])
@pytest.mark.parametrize("traits", [Traits(True, False), Traits(False, True)])
def test_a_copy_carries_all_traits_and_nobody_can_change_them(way, traits):
    """Those, too, that cannot be seen from the layers."""
    model = FlatModel(nn.Linear(2, 2), "plain", traits)
    assert lowered(model, way).traits is traits
    with pytest.raises(FrozenInstanceError):
        traits.looks_up = False


def test_relu_after_pooling_is_relu_before_it():
    """The library's network against the usual way to write it, bit for bit."""
    model = build_model("femnist_cnn", (784,), 5, "classification", 0).module

    def usual(x):
        x = torch.max_pool2d(torch.relu(model.conv1(x.reshape(-1, 1, 28, 28))), 2)
        x = torch.max_pool2d(torch.relu(model.conv2(x)), 2)
        return model.head(x.flatten(1))

    x = torch.rand(3, 784, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    parameters = list(model.parameters())
    for one, two in zip(
        torch.autograd.grad(usual(x).square().sum(), parameters),
        torch.autograd.grad(model(x).square().sum(), parameters),
        strict=True,
    ):
        assert torch.equal(one, two)


def test_convolutions_are_seen_and_what_layers_hold_is_counted():
    cnn = build_model("femnist_cnn", (784,), 62, "classification", 0)
    line = build_model("logistic", (784,), 62, "classification", 0)
    assert has_convolutions(cnn.module)
    assert not has_convolutions(line.module)
    assert floats_per_row(line, (784,)) == 62
    # Answers of convolution, pooling and head, and 25 or 800 floats for every place of a filter.
    layers = 32 * 576 + 32 * 144 + 64 * 64 + 64 * 16 + 62
    assert floats_per_row(cnn, (784,)) == layers + 25 * 576 + 800 * 64
    assert not cnn.module.conv1._forward_hooks
