"""The votes for the size of a target."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pmtl
from pmtl.data import FederatedData
from pmtl.models.linear.solve import ClientRows
from pmtl.models.linear.target import BINS, FIRST_POWER, read_size, size_votes


def clients_with(*spreads):
    """Clients with two targets each, of these deviations."""
    y = torch.tensor([[[0.0], [spread * 2**0.5]] for spread in spreads], dtype=torch.float64)
    return ClientRows("regression", torch.ones_like(y), y, torch.ones(len(spreads), 2).double())


def test_the_size_is_the_power_of_two_above_the_deviation():
    votes = size_votes(clients_with(5.0, 6.0, 7.0)).mean(0)
    assert read_size(votes.view(1, 1, BINS), 0.0).tolist() == [[8.0]]


@pytest.mark.parametrize("spread", [0.0, 2.0 ** (FIRST_POWER - 1), 2.0 ** (FIRST_POWER + BINS + 1)])
def test_a_deviation_outside_of_all_bins_has_no_vote(spread):
    votes = size_votes(clients_with(1.0, spread))
    assert votes.sum(1).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("unit", [1e-9, 1e15])
def test_personal_models_are_as_good_in_any_unit(unit):
    """Without a readable size, every client uses its own."""
    random = np.random.default_rng(0)
    client = np.repeat(np.arange(150), 20)
    x = random.normal(size=(len(client), 2))
    y = x[:, 0] + random.normal(size=len(client)) + random.normal(size=150)[client]

    def errors(target):
        scores = pmtl.train(FederatedData.from_arrays(x, target, client), privacy=2.0).evaluate()
        return {view: scores["test"][view]["rmse"] for view in ("personal", "alone")}

    usual, unusual = errors(y), errors(unit * y)
    assert unusual["alone"] / unit == pytest.approx(usual["alone"], rel=0.05)
    assert unusual["personal"] / unit < 1.05 * usual["alone"]
