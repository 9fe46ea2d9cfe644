"""In production, a client for whom an algorithm fails, or returns a wrong shape or type, counts as
zero or has the shared model. Nobody else notices, and only the owner is told."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from weights import personal, shared

import pmtl
from pmtl.algorithms import Algorithm
from pmtl.models import build_model
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan
from pmtl.runs.folder import RunFolder
from pmtl.simulation import LocalTraining, Sites, simulate
from pmtl.simulation.evaluation import Evaluator

#: Own vectors that are longer than this are those of the first client.
FAR = 20.0
PLAN = {"epsilon": 2.0, "rounds": 2}
PUBLIC = {"metrics.csv", "metrics.jsonl", "plan.json", "privacy.json", "privacy.txt"}


@dataclass(frozen=True)
class Plain(Algorithm):
    """Own steps from zeros; answers with the shared vector and half of its own."""

    name: ClassVar[str] = "plain"

    def start(self, shared):
        return torch.zeros_like(shared)

    def begin(self, own, shared):
        return shared

    def step(self, w, shared, gradient, lr):
        return w - lr * gradient(w)

    def upload(self, w, own, shared):
        return w - shared

    def keep(self, w):
        return w

    def predict(self, own, shared):
        return shared + 0.5 * own


@dataclass(frozen=True)
class Factored(Plain):
    """Its `predict` fails for a long vector."""

    name: ClassVar[str] = "factored"

    def predict(self, own, shared):
        scale = torch.linalg.cholesky(torch.eye(1) * (FAR - own.norm()))
        return super().predict(own, shared) + 0 * scale[0, 0]


WRONG = {
    "shorter": lambda sent: sent[:-1],
    "a row": lambda sent: sent[None],
    "complex": lambda sent: sent.to(torch.complex64),
    "on another device": lambda sent: sent.to("meta"),
    "no vector": lambda sent: sent.sum(),
    "a failure": lambda sent: sent.reshape(-1, 10**6),
    "the end of the program": lambda sent: sys.exit(0),
    "no Exception": lambda sent: ends(asyncio.CancelledError()),
}


def ends(error):
    raise error


@dataclass(frozen=True)
class Misshapen(Plain):
    """What it uploads for a long vector is wrong."""

    name: ClassVar[str] = "misshapen"
    how: str = "shorter"

    def upload(self, w, own, shared):
        sent = super().upload(w, own, shared)
        return WRONG[self.how](sent) if w.norm() > FAR else sent


@pytest.fixture
def far(small):
    """The first client's rows are far from all others', and contradict each other: a third of its
    targets are another class for the same features, so its gradient is large at every model."""
    x, y = small.x.copy(), small.y.copy()
    mine = np.concatenate([rows.of(0) for rows in small.splits.values()])
    x[mine] = 1000 * x[mine[0]]
    for rows in small.splits.values():
        y[rows.of(0)] = np.arange(len(rows.of(0))) % 3 == 0
    splits = np.empty(len(x), dtype="<U10")
    client = np.empty(len(x), dtype=object)
    for name, rows in small.splits.items():
        for number, label in enumerate(small.clients):
            splits[rows.of(number)], client[rows.of(number)] = name, label
    return pmtl.FederatedData.from_arrays(x, y, client.astype(str), splits)


def produce(data, tmp_path, algorithm, **options):
    ledger = tmp_path / "ledger.db"
    Ledger.create(ledger, data.clients).close()
    values = {"privacy": PLAN, "local": {"steps": 2, "lr": 0.1, "batch": 0}}
    return pmtl.train(
        data, algorithm=algorithm, out=tmp_path / "run", mode="production", ledger=ledger,
        **{**values, **options},
    )  # fmt: skip


def check_result(run, path, some=all):
    """All files are there; the first client has the shared model, and all others their own (or
    some of them, where a client may choose the shared one)."""
    assert {file.name for file in (path / "public").iterdir()} >= PUBLIC
    different = ~torch.isclose(personal(run), shared(run)).all(dim=1)
    assert not different[0]
    assert some(different[1:].tolist())
    assert torch.equal(personal(pmtl.load_run(path)), personal(run))
    told = (path / "private/notes.txt").read_text()
    assert told.count(f"client {run.clients[0]!r} could not be given a model of its own") == 1
    assert "It has the shared model" in told


def test_a_client_whose_predict_fails_has_the_shared_model(far, tmp_path):
    check_result(produce(far, tmp_path, Factored()), tmp_path / "run")


def test_it_is_so_after_resuming_too(far, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_result", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            produce(far, tmp_path, Factored(), evaluate_every=0)
    run = pmtl.resume(tmp_path / "run", data=far, algorithm=Factored())
    check_result(run, tmp_path / "run")


@pytest.fixture
def unfinished(monkeypatch):
    """`finish` fails for the first client."""
    finish = Sites.finish_clients

    def failing(sites, clients, shared):
        if 0 in clients:
            raise ValueError("only with this client's data")
        return finish(sites, clients, shared)

    monkeypatch.setattr(Sites, "finish_clients", failing)


@pytest.mark.parametrize(
    ("model", "algorithm"), [("logistic", "pooling"), ("mlp:hidden=3", "anchored")]
)
def test_a_client_whose_finish_fails_has_the_shared_model(
    model, algorithm, small, tmp_path, unfinished, monkeypatch
):
    measure, measured = Evaluator.client_metrics, []

    def measuring(evaluator, weights, clients, *rest):
        measured.append(weights(np.zeros(1, dtype=np.int64))[0])
        return measure(evaluator, weights, clients, *rest)

    monkeypatch.setattr(Evaluator, "client_metrics", measuring)
    run = produce(small, tmp_path, algorithm, model=model, privacy=1000.0, local=None)
    check_result(run, tmp_path / "run", any)
    alone = pmtl.load_run(tmp_path / "run").views()["alone"](np.arange(small.m))
    assert alone.isfinite().all()
    assert (~alone.any(dim=1)).tolist() == [True] + [False] * (small.m - 1)
    # Released metrics are of the same models.
    assert len(measured) == 2
    assert all(torch.equal(weights, shared(run)[0]) for weights in measured)


def test_it_is_so_after_resuming_an_exact_algorithm(small, tmp_path, monkeypatch, unfinished):
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_result", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            produce(small, tmp_path, "pooling", privacy=1000.0, local=None)
    check_result(pmtl.resume(tmp_path / "run", data=small), tmp_path / "run")


def simulated(data, algorithm):
    """A production run; returns it, its state, the uploads of each round, and what the owner is
    told."""
    plan = PrivacyPlan(data.m, data.m, "full", 1.0, 0.1, 1, 1e-3)
    model = build_model("logistic", data.input_shape, data.outputs, data.task, 0)
    local = LocalTraining(steps=2, lr=0.1, batch=0)
    made = simulate(
        data, model, algorithm, plan, local, None, charge=lambda round: None, engine="threads"
    )
    told, uploads, add = [], {}, made.server.gate.add
    made.notify_owner = told.append

    def adding(tally, clients, sent):
        uploads.update(zip(clients.tolist(), sent, strict=True))
        add(tally, clients, sent)

    made.server.gate.add = adding
    state = made.start()
    list(made.rounds(state))
    return made, state, uploads, told


def test_the_others_weights_are_the_same_bits(far):
    made, state, _, told = simulated(far, Factored())
    weights = made.final_views(state)["personal"]
    order = np.array([3, 0, 7, 1, 0])
    found = weights(order)
    for place in (0, 2, 3):
        assert torch.equal(found[place], made.predictors(state, order[place : place + 1])[0])
    assert torch.equal(found[1], state.shared[0])
    assert torch.equal(found[4], state.shared[0])
    assert len(told) == 1


@pytest.mark.parametrize("how", WRONG)
def test_an_upload_of_another_shape_or_type_counts_as_zero(how, far):
    _, _, uploads, told = simulated(far, Misshapen(how=how))
    assert sorted(uploads) == list(range(1, far.m))
    assert len(told) == 1
    assert f"client {far.clients[0]!r} could not be trained" in told[0]


def test_ctrl_c_is_nobodys_failure(far, monkeypatch):
    monkeypatch.setitem(WRONG, "Ctrl-C", lambda sent: ends(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        simulated(far, Misshapen(how="Ctrl-C"))


def test_wide_uploads_count_as_they_would_beside_narrow_ones(far):
    """Joining them would make all of them wide."""

    @dataclass(frozen=True)
    class Wide(Plain):
        name: ClassVar[str] = "wide"

        def upload(self, w, own, shared):
            sent = super().upload(w, own, shared)
            return sent.double() if w.norm() > FAR else sent

    _, _, uploads, told = simulated(far, Wide())
    assert told == []
    assert {sent.dtype for sent in uploads.values()} == {torch.float32}
