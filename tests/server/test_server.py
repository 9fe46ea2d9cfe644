"""The server: state, messages, what it keeps beside the billboard."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmtl.algorithms import ClusteredPMTL, FedAdam, FedAvg, Local
from pmtl.errors import PmtlError
from pmtl.messages import UPLOAD, to_bytes
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
    server.gate.add(tally, np.arange(4), torch.full((4, 2), 0.4))
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
    with pytest.raises(PmtlError, match="Round 0 cannot be published: the next one is 1"):
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


def test_a_round_that_cannot_be_charged_publishes_nothing():
    def refuse(round):
        raise PmtlError("the ledger is full")

    server = Server(NAMES, FedAdam(), PLAN, None, charge=refuse)
    state = server.start(torch.zeros(2))
    memory = {name: kept.clone() for name, kept in state.memory.items()}
    tally = server.open(state)
    server.gate.add(tally, np.arange(4), torch.ones(4, 2))
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
    cohorts = [server.draw(round).tolist() for round in range(8)]
    assert cohorts == [drawn.draw(round).tolist() for round in range(8)]
    assert len({tuple(cohort) for cohort in cohorts}) > 1


def test_a_hardened_server_publishes_whole_steps_of_its_grid():
    server = Server(NAMES, FedAvg(), PLAN, 0, source=seeded_source(3, ""), hardened=True)
    state = server.start(torch.zeros(50, dtype=torch.float64))
    server.publish(server.open(state), state)
    steps = state.shared * PLAN.cohort / Grid.of(PLAN).step
    assert steps.abs().max() > 0
    assert torch.equal(steps, steps.round())


def test_a_plan_pays_for_its_rounds_in_their_order_and_for_no_more():
    charged = []
    server = Server(NAMES, FedAvg(), PLAN, None, charge=charged.append)
    state = server.start(torch.zeros(2))
    later = server.gate.open(1, state.shared)
    with pytest.raises(PmtlError, match="Round 1 cannot be published: the next one is 0"):
        server.publish(later, state)
    for _ in range(PLAN.rounds):
        server.publish(server.open(state), state)
    beyond = server.gate.open(PLAN.rounds, state.shared)
    with pytest.raises(PmtlError, match="pays for rounds 0 to 2"):
        server.publish(beyond, state)
    assert charged == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 100])
def test_bytes_that_are_no_upload_count_as_zero(content):
    server = Server(NAMES, FedAvg(), PLAN, 0, noise=silent)
    state = server.start(torch.zeros(2))
    tally = server.open(state)
    server.receive(tally, 0, 0, content)
    server.receive(tally, 1, 0, to_bytes({UPLOAD: np.array([0.8, 0.0])}))
    server.publish(tally, state)
    assert torch.allclose(state.shared, torch.tensor([[0.2, 0.0]]))


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (
            lambda shared, update, memory: (update[:, :1], memory),
            "must return a billboard of shape",
        ),
        (lambda shared, update, memory: (shared, {"m": 1}), "must return a billboard"),
        (lambda shared, update, memory: shared, "failed: ValueError|failed: "),
        (lambda shared, update, memory: 1 / 0, "failed: ZeroDivisionError"),
    ],
)
def test_a_wrong_server_step_is_found_before_anything_is_spent(returned, sentence):
    class Mine(FedAvg):
        def server_step(self, shared, update, memory):
            return returned(shared, update, memory)

    server = Server(NAMES, Mine(), PLAN, 0)
    with pytest.raises(PmtlError, match=sentence):
        server.dry_run(server.start(torch.zeros(2)))
