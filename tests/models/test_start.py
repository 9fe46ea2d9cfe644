"""A public start, and parts that are not trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pmtl.errors import PmtlError
from pmtl.models import build_model, start_warnings

SIZES = ((4,), 3, "classification", 0)


def weights(hidden=5):
    torch.manual_seed(3)
    shapes = {"1.weight": (hidden, 4), "1.bias": (hidden,), "3.weight": (3, hidden), "3.bias": (3,)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def test_it_is_matched_by_name():
    given = weights()
    model = build_model("mlp:hidden=5", *SIZES, init=given)
    for name, value in model.layout.cut(model.start()).items():
        assert torch.equal(value, given[name])
    assert start_warnings(model.module, given) == []


def test_what_it_lacks_begins_as_without_it_and_both_sides_are_named():
    given = {"1.weight": weights()["1.weight"].double(), "decoder.weight": torch.zeros(2)}
    model = build_model("mlp:hidden=5", *SIZES, init=given)
    plain = build_model("mlp:hidden=5", *SIZES)
    assert torch.equal(model.start()[20:], plain.start()[20:])
    assert torch.equal(model.start()[:20], given["1.weight"].float().flatten())
    missing, unused = start_warnings(model.module, given)
    assert "nothing for 3 of the 4 tensors of the model: '1.bias', '3.weight', '3.bias'." in missing
    assert "no place for 1 of the 2 tensors of the start: 'decoder.weight'." in unused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "none of its tensors has the name.*the start has no tensors"),
        ({"weights": torch.zeros(1, 43)}, "none of its tensors has the name.*1.weight.*weights"),
        ({"1.bias": torch.zeros(6)}, r"'1.bias' has the shape \(6,\).*needs \(5,\)"),
        ({"1.bias": torch.zeros(5, dtype=torch.int64)}, "is of type torch.int64"),
        ({"1.bias": torch.full((5,), 1e300, dtype=torch.float64)}, "'1.bias' is too large"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(given, words):
    with pytest.raises(PmtlError, match=words):
        build_model("mlp:hidden=5", *SIZES, init=given)


def test_frozen_parameters_are_not_in_the_vector():
    model = build_model("mlp:hidden=5", *SIZES, init=weights(), frozen="1.*+3.bias")
    assert [part.name for part in model.layout.parameters] == ["3.weight"]
    assert model.layout.frozen == ("1.weight", "1.bias", "3.bias")
    assert torch.equal(model.with_weights(torch.zeros(15))[1].bias, weights()["1.bias"])


@pytest.mark.parametrize("frozen", ["encoder.*", "1.*+", ""])
def test_a_pattern_that_matches_nothing_is_refused(frozen):
    with pytest.raises(PmtlError, match="There is no parameter"):
        build_model("mlp:hidden=5", *SIZES, frozen=frozen)


def test_something_has_to_be_trained():
    with pytest.raises(PmtlError, match="nothing to train"):
        build_model("mlp:hidden=5", *SIZES, frozen="*")


def test_a_module_that_a_factory_keeps_is_not_changed():
    kept = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    before = kept[1].weight.clone()
    build_model(lambda: kept, *SIZES, init=weights(), frozen="1.*")
    assert torch.equal(kept[1].weight, before)
    assert kept[1].weight.requires_grad
