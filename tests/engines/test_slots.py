"""In production a client's slot depends on its own number and rows only."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pmtl.algorithms import PMTL
from pmtl.client.batches import power_of_two
from pmtl.engines.choose import slot_count
from pmtl.engines.slots import assign_slots, axis_is_safe
from pmtl.models import FlatModel, build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, simulate

CPU, CARD = torch.device("cpu"), torch.device("cuda")
WIDTHS = {1: 4, 2: 8, 3: 1}


def where(clients, shapes):
    """Each client's array: its shape, how many slots it has, and the client's slot."""
    found = {}
    for shape, who, filled in assign_slots(clients, shapes, lambda shape: WIDTHS[shape[0]]):
        assert len(who) == len(filled) == WIDTHS[shape[0]]
        for slot in np.flatnonzero(filled).tolist():
            client = int(clients[who[slot]])
            assert client not in found
            found[client] = (shape, len(who), slot)
        assert {*who.tolist()} == {*who[filled].tolist()}
    return found


@given(st.sets(st.integers(0, 60), min_size=1), st.sets(st.integers(0, 60)))
def test_a_clients_place_does_not_depend_on_other_clients(some, others):
    """Its array has the same shape, the same number of slots and the client at the same one."""
    own = 1 + np.arange(61) % 3  # Every client's own shape.
    few, many = (np.array(sorted(group)) for group in (some, some | others))
    alone, together = (where(group, own[group][:, None]) for group in (few, many))
    assert set(alone) == some
    assert set(together) == some | others
    assert alone.items() <= together.items()


@given(st.lists(st.integers(0, 60), min_size=1, unique=True))
def test_clients_that_share_no_array_have_no_empty_places(clients):
    group = np.array(clients)
    shapes = np.ones((len(group), 2), dtype=np.int64)
    ((shape, who, filled),) = assign_slots(group, shapes, lambda shape: None)
    assert shape == (1, 1)
    assert filled.all()
    assert sorted(who.tolist()) == list(range(len(group)))


def test_numbers_are_rounded_up_to_powers_of_two():
    numbers = np.array([0, 1, 2, 3, 32, 33, 60_000])
    assert power_of_two(numbers).tolist() == [1, 1, 2, 4, 32, 64, 65_536]
    assert power_of_two(numbers, 32).tolist() == [32, 32, 32, 32, 32, 64, 65_536]


@pytest.mark.parametrize(
    ("clients", "cohort", "floats", "width"),
    [(500, 500, 1, 512), (20, 20, 1, 32), (10_000, 10, 1, 64), (1, 1, 1, 1), (500, 500, 2**22, 2)],
)
def test_a_width_follows_from_public_numbers(clients, cohort, floats, width):
    assert slot_count(clients, cohort, CPU, floats) == width


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x)


def test_only_models_that_are_known_to_allow_it_share_an_array():
    safe = build_model("mlp", (3,), 2, "classification", 0)
    stack = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    curved = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    looking = FlatModel(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)))
    hooked = FlatModel(nn.Sequential(nn.Linear(3, 2)))
    hooked.module[0].register_forward_hook(lambda layer, given, answer: answer.sin())
    assert [axis_is_safe(model, CPU) for model in (safe, stack)] == [True, True]
    assert axis_is_safe(curved, CARD)
    for model in (curved, looking, hooked, FlatModel(Own())):
        assert not axis_is_safe(model, CPU)
    for model in (looking, hooked, FlatModel(Own())):
        assert not axis_is_safe(model, CARD)


@pytest.mark.parametrize("engine", ["auto", "axis", "threads"])
def test_a_model_of_the_users_own_is_computed_one_client_at_a_time(engine, small):
    def slots(model):
        made = simulate(
            small,
            build_model(model, small.input_shape, small.outputs, small.task, 0),
            PMTL(),
            PrivacyPlan(small.m, small.m, "full", 1.0, 1.0, 2, 1e-3),
            LocalTraining(steps=1),
            None,
            charge=lambda round: None,
            engine=engine,
        )
        assert not made.sites.compile
        return made.sites._width_of((10, 1, 0)), made.sites.engine

    assert slots(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))) == (
        (1, "axis") if engine == "axis" else (None, "threads")
    )
    shared, chosen = slots("mlp")
    assert shared == (None if chosen == "threads" else 16)
