"""A network as an exact algorithm reads it, and answers in other units."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pmtl.models import build_model
from pmtl.models.network.rows import BATCH, LEAST_BATCH, Network, in_target_units, last_places


class Squared(nn.Module):
    """Its answers are not those of its last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) ** 2


class TwoHeads(nn.Module):
    """The layer that is listed last does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.answers(x)


@pytest.mark.parametrize("model", ["mlp:hidden=5", "mlp:hidden=3,layers=2", "linear"])
def test_other_units_are_other_weights_of_the_last_layer(model):
    flat = build_model(model, (4,), 2, "regression", 0)
    last = last_places(flat, (4,))
    w, x = torch.randn(3, flat.size), torch.randn(6, 4)
    size, level = torch.tensor([[2.0, 30.0]] * 3), torch.tensor([[-5.0, 1e3]] * 3)
    changed = in_target_units(w, last, size, level)
    for before, after in zip(w, changed, strict=True):
        expected = flat.apply(before, x) * size[0] + level[0]
        assert torch.allclose(flat.apply(after, x), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("module", [Squared, TwoHeads])
def test_a_last_layer_that_does_not_answer_is_not_scaled(module):
    flat = build_model(lambda input_shape, outputs: module(), (4,), 2, "regression", 0)
    assert last_places(flat, (4,)) is None


def test_a_last_layer_without_a_trained_bias_is_not_scaled():
    frozen = build_model("mlp:hidden=5", (4,), 2, "regression", 0, frozen="3.bias")
    assert last_places(frozen, (4,)) is None


def test_steps_have_fewer_rows_for_larger_networks():
    small = Network.of(build_model("mlp", (4,), 2, "classification", 0), (4,))
    large = Network.of(build_model("femnist_cnn", (784,), 62, "classification", 0), (784,))
    assert (small.batch, small.heavy, small.loops) == (BATCH, False, False)
    assert (large.batch, large.heavy, large.loops) == (LEAST_BATCH, True, True)


def test_parameters_that_start_at_zero_have_a_size():
    flat = build_model("logistic", (4,), 3, "classification", 0)
    assert (Network.of(flat, (4,)).scales > 0).all()


def test_padding_is_zeros_whatever_it_holds():
    flat = build_model("mlp:hidden=3", (4,), 2, "classification", 0)
    x = torch.full((1, 2, 4), torch.nan)
    x[0, 0] = 1.0
    real = torch.tensor([[True, False]])
    rows = Network.of(flat, (4,)).rows("classification", 2, x, torch.ones(1, 2).long(), real)
    assert rows.x.isfinite().all()
    assert rows.y[0].tolist() == [[0, 1], [0, 0]]
