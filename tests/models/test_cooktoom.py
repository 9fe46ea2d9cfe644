"""Fewer products give the same convolution, the same derivatives, and few more rounding errors."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import grad

from pmtl.models import FlatModel, build_model, cooktoom, lowered


def draw(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


def directly(x, weight, bias):
    return F.conv2d(x, weight, bias)


def with_fewer(x, weight, bias):
    return cooktoom.convolve(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


def answers(way, x, weight, bias):
    """The images, and the derivatives of a curved function of them."""
    given_ = [part.clone().requires_grad_() for part in (x, weight, bias) if part is not None]
    out = way(*given_) if bias is not None else way(*given_, None)
    return out.detach(), *torch.autograd.grad((out.sin() * out).sum(), given_)


def farthest(one, two):
    return [
        float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(one, two, strict=True)
    ]


@given(
    images=st.integers(1, 4),
    channels=st.integers(1, 3),
    filters=st.integers(1, 4),
    high=st.sampled_from([3, 4, 5]),
    wide=st.integers(1, 5),
    rows=st.integers(1, 13),
    columns=st.integers(1, 6),
    bias=st.booleans(),
    block=st.sampled_from([1, 700, 2**19]),
)
def test_any_shape_is_the_same_convolution(
    images, channels, filters, high, wide, rows, columns, bias, block
):
    x = draw(images, channels, rows + high - 1, columns + wide - 1)
    weight = draw(filters, channels, high, wide, seed=1)
    offset = draw(filters, seed=2) if bias else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooktoom, "_BLOCK_FLOATS", block)
        found = answers(with_fewer, x, weight, offset)
    wanted = answers(directly, x, weight, offset)
    for one, two in zip(found, wanted, strict=True):
        assert one.shape == two.shape
        assert torch.allclose(one, two, rtol=0, atol=1e-9)


@pytest.mark.parametrize("high", [3, 4, 5])
def test_rounding_errors_are_a_few_times_those_of_adding_up(high):
    """On the sizes it is used for; ten times would be a digit."""
    x, weight, bias = draw(10, 32, 12, 12), draw(64, 32, high, 5, seed=1) / 28, draw(64, seed=2)
    exact = answers(directly, x, weight, bias)
    single = [part.float() for part in (x, weight, bias)]
    ours = farthest(answers(with_fewer, *single), exact)
    theirs = farthest(answers(directly, *single), exact)
    assert max(ours) < 1e-5
    assert all(one < 8 * other for one, other in zip(ours, theirs, strict=True))


def test_the_products_are_fewer():
    """Five rows of a filter on eight rows of an image: 2·8 products for 8·5."""
    by = cooktoom.transforms(5, 12, torch.float64)
    assert by.inputs.shape == (2 * 8, 12)
    assert by.filters.shape == (8, 5)
    assert by.outputs.shape == (4, 8)
    assert by.tiles == 2


def test_an_input_that_is_given_needs_no_derivative():
    x, weight = draw(2, 3, 9, 9), draw(4, 3, 3, 3, seed=1).requires_grad_()
    found = torch.autograd.grad(with_fewer(x, weight, None).square().sum(), weight)[0]
    wanted = torch.autograd.grad(directly(x, weight, None).square().sum(), weight)[0]
    assert torch.allclose(found, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rows", [7, 8])
def test_a_slope_that_lies_anyhow_in_memory(rows):
    """That of a sum is one number read many times; another is turned around."""
    x, weight = draw(2, 3, rows + 2, 9), draw(4, 3, 3, 3, seed=1).requires_grad_()
    turned = draw(7, rows, 4, 2, seed=3).permute(3, 2, 1, 0)
    for of in (torch.Tensor.sum, lambda out: (out * turned).sum()):
        found = torch.autograd.grad(of(with_fewer(x, weight, None)), weight)[0]
        wanted = torch.autograd.grad(of(directly(x, weight, None)), weight)[0]
        assert torch.allclose(found, wanted, rtol=0, atol=1e-9)


def test_derivatives_of_derivatives():
    """As a penalty on a gradient asks for them, by autograd and by torch.func."""
    x, weight, bias = draw(2, 3, 9, 9), draw(4, 3, 3, 3, seed=1), draw(4, seed=2)

    def penalty(way):
        def loss(w):
            return way(x, w, bias).tanh().square().sum()

        return lambda w: grad(loss)(w).square().sum()

    def by_autograd(way):
        w = weight.clone().requires_grad_()
        (slope,) = torch.autograd.grad(way(x, w, bias).tanh().square().sum(), w, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), w)[0]

    wanted = grad(penalty(directly))(weight)
    assert torch.allclose(grad(penalty(with_fewer))(weight), wanted, rtol=1e-9, atol=1e-9)
    assert torch.allclose(by_autograd(with_fewer), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("input", "weight", "pays"),
    [
        ((10, 32, 12, 12), (64, 32, 5, 5), True),  # FEMNIST's second layer
        ((10, 128, 10, 10), (128, 128, 3, 3), True),
        ((10, 1, 28, 28), (32, 1, 5, 5), False),  # its first
        ((10, 32, 44, 44), (32, 32, 3, 3), False),  # CelebA's
        ((10, 32, 12, 12), (64, 32, 2, 5), False),
        ((10, 32, 12, 12), (64, 32, 7, 5), False),  # would lose digits
        ((10, 32, 5, 12), (64, 32, 5, 5), False),  # one row of four
        ((10, 32, 4, 12), (64, 32, 5, 5), False),  # none at all
    ],
)
def test_where_it_pays(input, weight, pays):
    assert cooktoom.pays(input, weight) == pays


class TestLayers:
    def used(self, monkeypatch, layer, x, atol=1e-9):
        seen = []
        convolve = cooktoom.convolve
        monkeypatch.setattr(
            cooktoom, "convolve", lambda *given: seen.append(given[1].shape) or convolve(*given)
        )
        other = lowered(FlatModel(layer), "channels_last").module
        assert torch.allclose(other(x), layer(x), rtol=0, atol=atol)
        return seen

    @pytest.mark.parametrize("padding", [0, 2, "same", "valid"])
    @pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
    def test_padding_is_put_around_it(self, monkeypatch, padding, mode):
        layer = nn.Conv2d(32, 64, 5, padding=padding, padding_mode=mode).double()
        assert self.used(monkeypatch, layer, draw(2, 32, 12, 12)) == [(64, 32, 5, 5)]

    @pytest.mark.parametrize("other", [{"stride": 2}, {"dilation": 2}, {"groups": 2}])
    def test_other_convolutions_are_left_to_the_library(self, monkeypatch, other):
        layer = nn.Conv2d(32, 64, 5, **other).double()
        assert self.used(monkeypatch, layer, draw(2, 32, 24, 24)) == []

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_left_to_the_library(self, monkeypatch, dtype):
        layer = nn.Conv2d(32, 64, 5)
        x = draw(2, 32, 12, 12, dtype=torch.float32)
        with torch.autocast("cpu", dtype):
            assert self.used(monkeypatch, layer, x, atol=0.05) == []
        assert not cooktoom.suits(x.to(dtype), layer.weight.to(dtype))
        assert not cooktoom.suits(x[:0], layer.weight)

    def test_the_papers_network_has_one_such_layer(self, monkeypatch):
        model = build_model("femnist_cnn", (784,), 62, "classification", 0).module.double()
        assert self.used(monkeypatch, model, draw(3, 784)) == [(64, 32, 5, 5)]
