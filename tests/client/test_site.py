"""One client's site."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pmtl.algorithms import PMTL, FedAvg
from pmtl.client.batches import LocalTraining
from pmtl.client.site import Site
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.messages import UPLOAD, RoundMessage
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import simulate

LOCAL = LocalTraining(steps=2, batch=4)


def data_of(*clients: str, rows: int = 6) -> FederatedData:
    rng = np.random.default_rng(1)
    client = np.repeat(clients, rows)
    x = rng.normal(size=(len(client), 3)).astype(np.float32)
    y = rng.integers(0, 2, len(client))
    split = np.full(len(client), "train")
    return FederatedData.from_arrays(
        x, y, client, split, task="classification", outputs=2, validation=0
    )


def site_of(algorithm, clip_norm=0.5, **changes) -> Site:
    data = data_of("mine")
    model = build_model("logistic", data.input_shape, 2, data.task, 0)
    return Site(data, model, algorithm, LOCAL, clip_norm, 0, **changes)


def test_it_uploads_how_far_it_moved_and_keeps_its_own():
    site = site_of(PMTL(lam=0.1), clip_norm=100.0)
    before = site.own.clone()
    upload = site.answer(RoundMessage(0, before.numpy()))
    assert set(upload) == {UPLOAD}
    assert np.allclose(upload[UPLOAD], (site.own - before).numpy())
    assert np.linalg.norm(upload[UPLOAD]) > 0
    assert torch.equal(site.weights(before), site.own)


def test_what_leaves_is_clipped():
    site = site_of(FedAvg(), clip_norm=1e-3)
    upload = site.answer(RoundMessage(0, site.model.start().numpy()))[UPLOAD]
    assert 0.99e-3 < np.linalg.norm(upload) <= 1e-3


def test_a_round_that_fails_leaves_its_vector_alone():
    class Fails(PMTL):
        def upload(self, w, own, shared):
            if bool((shared == 1).all()):
                raise RuntimeError("no upload")
            return super().upload(w, own, shared)

    site = site_of(Fails())
    before = site.own.clone()
    with pytest.raises(RuntimeError, match="no upload"):
        site.answer(RoundMessage(0, before.numpy() + 1))
    assert torch.equal(site.own, before)


def test_it_begins_where_it_is_told():
    start = torch.full((8,), 0.25)
    assert torch.equal(site_of(PMTL(), start=start).own, start)


def test_it_holds_the_rows_of_one_client():
    data = data_of("mine", "yours")
    model = build_model("logistic", data.input_shape, 2, data.task, 0)
    with pytest.raises(PmtlError, match="rows of one client, but this data has 2"):
        Site(data, model, PMTL(), LOCAL, 0.5, 0)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan")])
def test_its_clip_norm_is_checked(clip_norm):
    with pytest.raises(PmtlError, match="clip norm must be greater than 0"):
        site_of(PMTL(), clip_norm=clip_norm)


@pytest.mark.parametrize(
    "shared", [np.zeros(1), np.zeros(9), np.full(8, np.nan), np.full(8, np.inf)]
)
def test_a_message_that_would_spoil_its_vector_is_refused(shared):
    site = site_of(PMTL())
    before = site.own.clone()
    with pytest.raises(PmtlError, match="8 finite parameters"):
        site.answer(RoundMessage(0, shared))
    assert torch.equal(site.own, before)


def test_a_round_is_answered_once():
    site = site_of(PMTL())
    site.answer(RoundMessage(3, site.model.start().numpy()))
    before = site.own.clone()
    for round in (3, 2, -5):
        with pytest.raises(PmtlError, match="round 3 was answered already"):
            site.answer(RoundMessage(round, site.model.start().numpy()))
    assert torch.equal(site.own, before)


def dropping(input_shape, outputs):
    return nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.5), nn.Linear(16, outputs))


@pytest.mark.parametrize("engine", ["debug", "threads"])
def test_its_dropout_masks_are_those_of_the_simulation(engine):
    """They follow from the client's name, not from its place among others."""
    data = data_of("a", "b", "c")
    model = build_model(dropping, data.input_shape, 2, data.task, 0)
    plan = PrivacyPlan(3, 3, "full", 0.5, 0.1, 2, 0.01)
    many = simulate(data, model, PMTL(lam=0.1), plan, LOCAL, 0, engine=engine).sites
    shared = model.start().expand(3, -1)
    trained = many.train_clients(np.arange(3), shared.clone(), shared, 1, LOCAL.lr_at(1))
    for k, name in enumerate(data.clients):
        mine = data.rows("train").of(k)
        alone = FederatedData.from_arrays(
            data.x[mine], data.y[mine], np.repeat(name, len(mine)), np.full(len(mine), "train"),
            task="classification", outputs=2, validation=0,
        )  # fmt: skip
        site = Site(alone, model, PMTL(lam=0.1), LOCAL, 0.5, 0)
        site.answer(RoundMessage(1, shared[k].numpy()))
        assert torch.equal(site.own, trained.kept[k])
    assert not torch.equal(trained.kept[0], trained.kept[1])
