"""A layout: which parameter lies where in a model's vector."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import nn

from pmtl.errors import PmtlError
from pmtl.models import FlatModel
from pmtl.models.layout import Layout, Traits


def network() -> nn.Module:
    """A frozen first layer, a body and a head."""
    module = nn.Sequential()
    module.add_module("frozen", nn.Linear(3, 4))
    module.add_module("body", nn.Linear(4, 2))
    module.add_module("head", nn.Linear(2, 5))
    for parameter in module.get_submodule("frozen").parameters():
        parameter.requires_grad_(False)
    return module


def test_names_shapes_and_places_follow_one_another():
    layout = FlatModel(network()).layout
    assert [(p.name, p.shape, p.first) for p in layout.parameters] == [
        ("body.weight", (2, 4), 0),
        ("body.bias", (2,), 8),
        ("head.weight", (5, 2), 10),
        ("head.bias", (5,), 20),
    ]
    assert layout.size == 25
    assert layout.frozen == ("frozen.weight", "frozen.bias")


def test_a_vector_is_cut_into_views():
    module = network()
    model = FlatModel(module)
    vector = model.start()
    parts = model.layout.cut(vector)
    assert all(torch.equal(parts[n], p) for n, p in module.named_parameters() if n in parts)
    parts["head.bias"].fill_(9)
    assert vector[20:].tolist() == [9] * 5


def test_a_mask_marks_the_parameters_that_fit_a_pattern():
    layout = FlatModel(network()).layout
    assert layout.mask(["head.*"]).nonzero().flatten().tolist() == list(range(10, 25))
    assert layout.mask(["*.bias", "body.*"]).sum() == 15
    with pytest.raises(PmtlError, match=r"no trained parameter 'tail\.\*'.*Known: body.bias"):
        layout.mask(["tail.*"])
    with pytest.raises(PmtlError, match="no trained parameter 'frozen"):
        layout.mask(["frozen.weight"])


def test_it_is_immutable_and_equal_for_equal_models():
    layout = FlatModel(network()).layout
    assert layout == FlatModel(network()).layout
    assert layout != Layout(layout.parameters, (), layout.traits)
    with pytest.raises(FrozenInstanceError):
        layout.frozen = ()  # type: ignore[misc]
    assert layout.traits == Traits(random_forward=False, looks_up=False)
