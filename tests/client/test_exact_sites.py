"""Sites of an exact algorithm, each with its own rows only, give what the simulation gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmtl.algorithms.default.exact import Sizes
from pmtl.algorithms.default.pooling import Pooling
from pmtl.client.batches import LocalTraining
from pmtl.client.site import Site
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.messages import UPLOAD, RoundMessage, from_bytes, to_bytes
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release
from pmtl.server import Server
from pmtl.simulation import simulate

ROWS = (6, 9, 1, 14, 3, 8, 5, 21)
KINDS = [("regression", 1), ("regression", 2), ("classification", 3), ("multilabel", 2)]


def tables(task, outputs):
    """(x, y) of each client."""
    random = np.random.default_rng(4)
    made = []
    for rows in ROWS:
        x = random.normal(size=(rows, 3)).astype(np.float32)
        y = 40 + x[:, :1] + random.normal(size=(rows, outputs))
        if task == "classification":
            y = random.integers(0, outputs, rows)
        if task == "multilabel":
            y = random.integers(0, 2, (rows, outputs)).astype(np.float32)
        made.append((x, y))
    return made


def federation(task, outputs, parts):
    names = np.concatenate([[f"c{k}"] * len(y) for k, (_, y) in parts.items()])
    x, y = (np.concatenate([part[n] for part in parts.values()]) for n in (0, 1))
    given = {"task": task, "outputs": outputs if task != "regression" else None}
    y = y[:, 0] if task == "regression" and outputs == 1 else y
    split = np.full(len(names), "train")
    return FederatedData.from_arrays(x, y, names, split, validation=0, **given)


def noise(round, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(round), dtype=torch.float64)


def model_for(data):
    return build_model("auto", data.input_shape, data.outputs, data.task, 0)


def prepared(task, outputs):
    made = dict(enumerate(tables(task, outputs)))
    data = federation(task, outputs, made)
    method = Pooling(target="release").resolve(Sizes(task, outputs, 4, True), 200.0)
    method = method.with_noise(0.03)
    plan = PrivacyPlan(data.m, data.m, "full", 1.0, 0.03, method.releases, 0.01)
    sites = []
    for number, part in made.items():
        own = federation(task, outputs, {number: part})
        sites.append(Site(own, model_for(own), method, LocalTraining(), 1.0, 0))
    return data, method, plan, sites


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_a_server_and_its_sites_give_what_the_simulation_gives(task, outputs, monkeypatch):
    data, method, plan, sites = prepared(task, outputs)
    server = Server(data.clients, method, plan, None, noise=noise, charge=lambda round: None)
    state = server.start(model_for(data).start())
    sent, boards = {}, []
    while state.round < plan.rounds:
        tally = server.open(state)
        assert len(tally.cohort) == data.m
        for client, site in enumerate(sites):
            message = RoundMessage.from_bytes(server.message(state, client).to_bytes())
            upload = from_bytes(to_bytes(site.answer(message)))
            assert np.linalg.norm(upload[UPLOAD].astype(np.float64)) <= 1
            sent[state.round, client] = upload[UPLOAD]
            server.receive(tally, client, state.round, upload)
        server.publish(tally, state)
        boards.append(state.shared.clone())
    for client, site in enumerate(sites):
        site.finish(server.message(state, client))

    received = {}
    add = Release.add

    def watching(gate, tally, clients, uploads):
        for client, row in zip(clients.tolist(), uploads, strict=True):
            received[tally.round, client] = row.numpy()
        add(gate, tally, clients, uploads)

    monkeypatch.setattr(Release, "add", watching)
    simulation = simulate(
        data, model_for(data), method, plan, LocalTraining(), None, noise=noise,
        charge=lambda round: None,
    )  # fmt: skip
    progress = simulation.start()
    for _, board in zip(simulation.rounds(progress), boards, strict=True):
        assert torch.allclose(progress.shared, board, rtol=1e-6, atol=1e-7)
    assert set(received) == set(sent)
    for key, upload in sent.items():
        found = received[key] / max(1.0, np.linalg.norm(received[key]))
        assert np.allclose(found, upload, rtol=1e-6, atol=1e-7), key
    owned = progress.store.gather(np.arange(data.m))
    assert torch.allclose(torch.stack([site.own for site in sites]), owned, rtol=1e-6, atol=1e-7)
    read = progress.shared[0]
    weights = torch.stack([site.weights(read) for site in sites])
    personal = simulation.predictors(progress, np.arange(data.m))
    assert torch.allclose(weights, personal, rtol=1e-6, atol=1e-7)
    assert weights.abs().max() > 0


def test_a_site_keeps_its_vector_until_it_has_finished():
    data, method, _, sites = prepared("regression", 1)
    board = method.billboard_start(model_for(data).start())
    before = sites[0].own.clone()
    sites[0].answer(RoundMessage(0, board.numpy()))
    assert torch.equal(sites[0].own, before)
    sites[0].finish(RoundMessage(13, board.numpy()))
    assert not torch.equal(sites[0].own, before)


@pytest.mark.parametrize("bad", [np.zeros(3), np.full(20, np.nan)])
def test_a_board_that_would_spoil_its_vector_is_refused(bad):
    _, _, _, sites = prepared("regression", 1)
    for act in (sites[0].answer, sites[0].finish):
        with pytest.raises(PmtlError, match="must have 20 finite parameters"):
            act(RoundMessage(0, bad))


def test_a_site_without_training_rows_answers_with_zeros():
    x, y = tables("regression", 1)[0]
    names, split = np.full(len(y), "c0"), np.full(len(y), "test")
    own = FederatedData.from_arrays(x, y[:, 0], names, split, validation=0, bad_rows="drop")
    method = Pooling(target="release").resolve(Sizes("regression", 1, 4, True), 200.0)
    site = Site(own, model_for(own), method, LocalTraining(), 1.0, 0)
    board = method.billboard_start(model_for(own).start()).numpy()
    for round in range(method.releases):
        assert not site.answer(RoundMessage(round, board))[UPLOAD].any()
    site.finish(RoundMessage(method.releases, board))
    assert site.own.isfinite().all()


def test_a_site_with_another_model_is_refused():
    x, y = tables("regression", 1)[0]
    own = federation("regression", 1, {0: (x, y)})
    method = Pooling().resolve(Sizes("regression", 1, 4, True), 200.0)
    network = build_model("mlp:hidden=3", own.input_shape, 1, "regression", 0)
    site = Site(own, network, method, LocalTraining(), 1.0, 0)
    with pytest.raises(PmtlError, match="needs a linear model"):
        site.answer(RoundMessage(0, method.billboard_start(network.start()).numpy()))
