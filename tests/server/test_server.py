"""The server: state, messages, what it keeps beside the billboard."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmtl.algorithms import FedAdam, FedAvg, Local
from pmtl.errors import PmtlError
from pmtl.messages import UPLOAD
from pmtl.privacy.plan import PrivacyPlan
from pmtl.server import Server

NAMES = ("a", "b", "c", "d")
PLAN = PrivacyPlan(4, 4, "full", 1.0, 0.1, 3, 1e-3)


def silent(round, shape):
    return torch.zeros(shape, dtype=torch.float64)


def test_a_round_adds_the_average_of_what_sites_send():
    server = Server(NAMES, FedAvg(), PLAN, 0, noise=silent)
    state = server.start(torch.zeros(2))
    tally = server.open(state)
    for client in sorted(tally.cohort):
        message = server.message(state, client)
        assert (message.round, message.shared.tolist()) == (0, [0.0, 0.0])
        server.receive(tally, client, 0, {UPLOAD: np.array([0.2, client * 0.1])})
    server.publish(tally, state)
    assert state.round == 1
    assert torch.allclose(state.shared, torch.tensor([[0.2, 0.15]]))


def test_a_message_is_a_copy():
    server = Server(NAMES, FedAvg(), PLAN, 0)
    state = server.start(torch.zeros(2))
    server.message(state, 0).shared[:] = 5
    assert state.shared.tolist() == [[0.0, 0.0]]


def test_the_algorithms_server_keeps_what_it_needs():
    server = Server(NAMES, FedAdam(beta1=0.5), PLAN, 0, noise=silent)
    state = server.start(torch.zeros(2))
    assert set(state.memory) == {"m", "v"}
    tally = server.open(state)
    server.add(tally, np.arange(4), torch.full((4, 2), 0.4))
    server.publish(tally, state)
    assert torch.allclose(state.memory["m"], torch.full((1, 2), 0.2, dtype=torch.float64))


def test_everybody_trains_where_nothing_is_shared():
    plan = PrivacyPlan(4, 1, "poisson", 1.0, 0.1, 3, 1e-3)
    assert Server(NAMES, Local(), plan, 0).draw(0).tolist() == [0, 1, 2, 3]


def test_production_needs_a_charge_and_the_plans_number_of_clients():
    with pytest.raises(PmtlError, match="every release is charged"):
        Server(NAMES, FedAvg(), PLAN, None)
    with pytest.raises(PmtlError, match="for 4 clients, but the data has 3"):
        Server(NAMES[:3], FedAvg(), PLAN, 0)


def test_a_round_is_charged_before_it_is_published_and_only_once():
    charged = []
    server = Server(NAMES, FedAvg(), PLAN, None, charge=charged.append)
    state = server.start(torch.zeros(2))
    tally = server.open(state)
    server.publish(tally, state)
    assert charged == [0]
    with pytest.raises(PmtlError, match="published already"):
        server.publish(tally, state)
    assert charged == [0]


def test_an_upload_from_outside_the_cohort_is_dropped():
    plan = PrivacyPlan(4, 2, "fixed", 1.0, 0.1, 3, 1e-3)
    server = Server(NAMES, FedAvg(), plan, 0, noise=silent)
    state = server.start(torch.zeros(2))
    tally = server.open(state)
    assert len(tally.cohort) == 2
    for client in range(4):
        server.receive(tally, client, 0, {UPLOAD: np.array([0.5, 0.0])})
    server.publish(tally, state)
    assert torch.allclose(state.shared, torch.tensor([[0.5, 0.0]])), "two uploads, divided by two"


def test_productions_cohort_is_drawn_once_a_round():
    plan = PrivacyPlan(4, 2, "poisson", 1.0, 0.1, 3, 1e-3)
    server = Server(NAMES, FedAvg(), plan, None, charge=lambda round: None)
    state = server.start(torch.zeros(2))
    tally = server.open(state)
    again = {frozenset(server.draw(0).tolist()) for _ in range(200)}
    assert again - {tally.cohort}, "another draw tosses other coins, so a round must keep its own"
