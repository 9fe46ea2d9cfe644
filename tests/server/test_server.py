"""The server: state, messages, what it keeps beside the billboard."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmtl.algorithms import ClusteredPMTL, FedAdam, FedAvg, Local
from pmtl.errors import PmtlError
from pmtl.messages import UPLOAD
from pmtl.privacy.grid import Grid
from pmtl.privacy.noise import seeded_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.server import Server
from pmtl.streams import name_keys

NAMES = ("a", "b", "c", "d")
PLAN = PrivacyPlan(4, 4, "full", 1.0, 0.1, 3, 1e-3)


def silent(round, shape):
    return torch.zeros(shape, dtype=torch.float64)


def test_a_round_adds_the_average_of_what_sites_send():
    server = Server(NAMES, FedAvg(), PLAN, 0, noise=silent)
    state = server.start(torch.zeros(2))
    tally = server.open(state)
    for client in server.cohort(state.round).tolist():
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
    assert Server(NAMES, Local(), plan, 0).cohort(0).tolist() == [0, 1, 2, 3]


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


def test_a_round_that_cannot_be_charged_publishes_nothing():
    def refuse(round):
        raise PmtlError("the ledger is full")

    server = Server(NAMES, FedAdam(), PLAN, None, charge=refuse)
    state = server.start(torch.zeros(2))
    memory = {name: kept.clone() for name, kept in state.memory.items()}
    tally = server.open(state)
    server.add(tally, np.arange(4), torch.ones(4, 2))
    with pytest.raises(PmtlError, match="ledger is full"):
        server.publish(tally, state)
    assert (state.round, state.shared.tolist()) == (0, [[0.0, 0.0]])
    assert all(torch.equal(state.memory[name], kept) for name, kept in memory.items())


def test_a_site_is_told_its_own_part_of_the_billboard():
    clusters = ClusteredPMTL(clusters={"a": "one", "b": "two", "c": "two", "d": "one"})
    server = Server(NAMES, clusters, PLAN, 0)
    state = server.start(torch.zeros(1))
    state.shared = torch.tensor([[1.0], [2.0]])
    assert [server.message(state, client).shared.tolist() for client in range(4)] == [
        [1],
        [2],
        [2],
        [1],
    ]


def test_cohorts_are_those_of_the_plans_sampler():
    plan = PrivacyPlan(4, 2, "poisson", 1.0, 0.1, 8, 1e-3)
    server = Server(NAMES, FedAvg(), plan, 5)
    drawn = plan.sampler(5, name_keys(NAMES))
    cohorts = [server.cohort(round).tolist() for round in range(8)]
    assert cohorts == [drawn.draw(round).tolist() for round in range(8)]
    assert len({tuple(cohort) for cohort in cohorts}) > 1


def test_a_hardened_server_publishes_whole_steps_of_its_grid():
    server = Server(NAMES, FedAvg(), PLAN, 0, source=seeded_source(3, ""), hardened=True)
    state = server.start(torch.zeros(50, dtype=torch.float64))
    server.publish(server.open(state), state)
    steps = state.shared * PLAN.cohort / Grid.of(PLAN).step
    assert steps.abs().max() > 0
    assert torch.equal(steps, steps.round())
