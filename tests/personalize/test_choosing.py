"""Clients choose for themselves: the rule, its order, and what it is worth."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, pstdev

import numpy as np
import plain
import pytest
import torch

from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.personalize.choosing import (
    ALONE,
    FRESH,
    LAMS,
    Best,
    candidates,
    choose,
)
from pmtl.personalize.methods import METHODS
from pmtl.personalize.tuning import Tuner, Workspace
from pmtl.simulation import LocalTraining, RowTensors
from pmtl.simulation.evaluation import Evaluator, evaluate

LOCAL = LocalTraining(steps=4, batch=6, lr=0.2)
VIEWS = ("shared", "personal")


def views_of(start, anchor):
    return {"shared": lambda some: anchor[some], "personal": lambda some: start[some]}


class TestTheList:
    def test_its_order_is_the_documented_one(self):
        names = [candidate.name for candidate in candidates(VIEWS, LOCAL)]
        assert names[:3] == ["local steps=100", "local steps=20", "local steps=4"]
        assert names[3:5] == ["shared", "personal"]
        assert names[5:9] == [
            "vanilla-shared steps=4",
            "vanilla-shared steps=20",
            "mean-shared steps=4 λ=0.1",
            "mean-shared steps=20 λ=0.1",
        ]
        assert len(set(names)) == len(names) == 2 + 2 * (2 + 3 * 4) + len(ALONE)
        firsts = [name.partition("-")[0] for name in names[5:19]]
        assert list(dict.fromkeys(firsts)) == list(METHODS)

    def test_epochs_a_start_and_a_lambda_narrow_it(self):
        few = candidates(VIEWS, LocalTraining(epochs=2), ["shared"], dict.fromkeys(LAMS, (0.5,)))
        names = [candidate.name for candidate in few]
        assert "kl-shared epochs=10 λ=0.5" in names
        assert not any("-personal" in name for name in names)
        assert few[0].local.epochs == 50

    def test_training_alone_may_have_steps_of_its_own(self):
        own = LocalTraining(epochs=3, lr=2.0)
        made = candidates(VIEWS, LOCAL, alone=(4, 1), alone_with=own)
        alone = [c.local for c in made if c.name.startswith("local")]
        assert alone == [replace(own, epochs=12), own]
        others = {c.local.lr for c in made if c.local and not c.name.startswith("local")}
        assert others == {LOCAL.lr}

    def test_without_a_shared_model_only_what_needs_none_is_tried(self):
        kinds = {c.name.split()[0] for c in candidates(("personal",), LOCAL)}
        assert kinds == {"personal", "vanilla-personal", "local"}


def distances(data, flat, weights, client) -> list[float]:
    """Spelled out: how far the answers to a client's validation rows are from the truth."""
    found = []
    for row in data.rows("validation").of(client):
        x, y = data.gather(np.array([row]))
        answer = flat.apply(weights, torch.from_numpy(x).to(weights.dtype))[0]
        truth = torch.tensor(y[0], dtype=weights.dtype)
        if data.task == "classification":
            answer, truth = answer.softmax(0), torch.eye(len(answer), dtype=weights.dtype)[y[0]]
        elif data.task == "multilabel":
            answer = answer.sigmoid()
        found.append(float(((answer - truth) ** 2).sum()))
    return found


def sure_gain(alone: list[float], mine: list[float]) -> float:
    """Spelled out: the mean gain less its standard error."""
    gains = [a - b for a, b in zip(alone, mine, strict=True)]
    return mean(gains) - pstdev(gains) / len(gains) ** 0.5


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_all_clients_have_the_best_candidate_by_the_documented_rule(task):
    data = plain.federation(task, validation=0.3)
    tensors, flat, start, anchor = plain.pieces(data)
    offered = candidates(VIEWS, LOCAL, ["personal"], dict.fromkeys(LAMS, (1.0,)))
    views = views_of(start, anchor)
    chosen = choose(Workspace(data, tensors, flat, 3), offered, views, default="personal")

    reading = {**views, FRESH: lambda some: flat.start().expand(len(some), -1)}
    clients = np.arange(data.m)
    table, models = [], []
    for candidate in offered:
        weights = reading[candidate.start](clients)
        if candidate.method is not None:
            tuner = Tuner(Workspace(data, tensors, flat, 3), candidate.method, candidate.local)
            weights = tuner(clients, weights, anchor)
        table.append([distances(data, flat, weights[k], k) for k in clients])
        models.append(weights)
    validated = np.flatnonzero(data.rows("validation").counts > 0)
    assert len(validated) >= 5
    for k in validated:
        best = max(range(len(offered)), key=lambda n: sure_gain(table[0][k], table[n][k]))
        assert chosen.picks[k] == best
        assert torch.allclose(chosen.store.vectors[k], models[best][k], atol=1e-12)
    assert len(set(chosen.picks.tolist())) > 1
    assert chosen.picks[validated].any()


def test_clients_without_a_sure_gain_train_alone_and_none_takes_nan():
    rows = np.array([2, 2, 1, 0, 2, 2])
    best = Best(torch.zeros(6, 2), np.full(6, 9), rows)
    places = np.flatnonzero(rows)
    nan = np.nan
    offers = [
        (0, [0.5, 0.5, 0.5, 0.5, 0.7, nan, 0.1, nan, nan]),
        (1, [0.1, 0.9, 0.4, 0.5, 0.7, 9.0, 9.0, nan, nan]),
        (2, [0.0, 0.2, 0.3, 0.5, 0.6, nan, 0.0, nan, 0.0]),
        (3, [0.0, 0.2, 0.4, 0.4, 0.6, 8.0, 8.0, nan, nan]),
    ]
    for number, squares in offers:
        best.offer(places, number, torch.full((5, 2), number + 1.0), np.array(squares))
    # A clear gain; a mean gain of .1 with a standard error of .1 against one of .1 with none; one
    # row, a tie; no rows; the first blew up; all blew up.
    assert best.picks.tolist() == [2, 3, 2, 9, 3, 9]
    assert best.weights[:, 0].tolist() == [3.0, 4.0, 3.0, 0.0, 4.0, 0.0]


@pytest.mark.parametrize("astray", [np.nan, np.inf, 1e20])
def test_a_first_candidate_that_went_astray_does_not_blind_the_others(astray):
    """Everything gains upon it; the best of the others is still found."""
    best = Best(torch.zeros(1, 1), np.array([9]), np.array([3]))
    offers = [(astray, 1.0, astray), (2.0, 2.0, 2.0), (0.0, 0.1, 0.0), (1.0, 0.9, 1.0)]
    for number, squares in enumerate(offers):
        best.offer(np.array([0]), number, torch.full((1, 1), number + 1.0), np.array(squares))
    assert best.picks.tolist() == [2]


def test_some_of_the_clients_may_be_missing_from_an_offer():
    """In production, what fails for one client's rows stays with that client."""
    rows = np.array([1, 3, 2])
    best = Best(torch.zeros(3, 1), np.full(3, 9), rows)
    best.offer(np.array([0, 2]), 0, torch.ones(2, 1), np.array([0.5, 0.5, 0.5]))
    best.offer(np.array([1]), 0, torch.ones(1, 1), np.array([0.9, 0.9, 0.9]))
    best.offer(np.array([1, 2]), 1, torch.full((2, 1), 2.0), np.array([0.8, 0.8, 0.8, 0.6, 0.6]))
    assert best.picks.tolist() == [0, 1, 0]


def test_weights_that_blew_up_score_nothing():
    """torch's argmax of NaN is a class, which may happen to be right."""
    data = plain.federation(validation=0.3)
    tensors, flat, start, _ = plain.pieces(data)
    clients = np.flatnonzero(data.rows("validation").counts > 0)
    weights = start[clients].clone()
    weights[1] = float("nan")
    squares = Evaluator(tensors, flat, "validation").row_squares(weights, clients)
    owner = np.repeat(clients, data.rows("validation").counts[clients])
    assert np.isnan(squares[owner == clients[1]]).all()
    assert np.isfinite(squares[owner != clients[1]]).all()


def test_squares_of_many_rows_are_those_of_each_row(monkeypatch):
    data = plain.federation(validation=0.4)
    tensors, flat, start, _ = plain.pieces(data)
    clients = np.arange(data.m)
    monkeypatch.setattr("pmtl.simulation.evaluation.MOST_ROWS", 2)  # Several pieces of one client.
    squares = Evaluator(tensors, flat, "validation").row_squares(start, clients)
    each = [distances(data, flat, start[k], k) for k in clients]
    assert max(map(len, each)) > 4
    assert np.allclose(squares, np.concatenate(each))


def test_a_client_without_validation_rows_takes_the_default():
    data = plain.federation(validation=0.01)  # only clients with five rows or more get one
    empty = np.flatnonzero(data.rows("validation").counts == 0)
    assert empty.tolist() == [0]
    tensors, flat, start, anchor = plain.pieces(data)
    offered = candidates(VIEWS, LOCAL)[:6]
    space = Workspace(data, tensors, flat)
    for default, weights in (("personal", start), ("shared", anchor)):
        chosen = choose(space, offered, views_of(start, anchor), default=default)
        assert offered[chosen.picks[0]].name == default
        assert torch.equal(chosen.store.vectors[0], weights[0])


def test_no_validation_rows_at_all_is_a_sentence():
    data = plain.federation(validation=0)
    tensors, flat, start, anchor = plain.pieces(data)
    with pytest.raises(PmtlError, match=r"validation=0\.1"):
        choose(
            *(Workspace(data, tensors, flat), candidates(VIEWS, LOCAL), views_of(start, anchor)),
            default="personal",
        )


def test_pieces_change_nothing(monkeypatch):
    data = plain.federation(validation=0.3)
    tensors, flat, start, anchor = plain.pieces(data)
    offered = candidates(VIEWS, LOCAL, ["personal"], dict.fromkeys(LAMS, (1.0,)))[:10]
    space = Workspace(data, tensors, flat)
    whole = choose(space, offered, views_of(start, anchor), default="personal")
    floats = Tuner(space, offered[0].method, LOCAL).work.client_floats
    monkeypatch.setattr("pmtl.engines.choose.CHUNK_FLOATS", 4 * floats)
    parts = choose(space, offered, views_of(start, anchor), default="personal")
    assert np.array_equal(parts.picks, whole.picks)
    assert torch.allclose(parts.store.vectors, whole.store.vectors, atol=1e-12)


class TestWhatItIsWorth:
    """Sixty clients with forty validation and forty test rows; a share of right answers over 2,400
    test rows has a standard deviation of one percent."""

    ROWS = 100

    def federation(self):
        rng = np.random.default_rng(0)
        m, d = 60, 8
        common = rng.normal(size=(d,))
        own = common + 0.5 * rng.normal(size=(m, d))
        owner = np.repeat(np.arange(m), self.ROWS)
        x = rng.normal(size=(len(owner), d)).astype(np.float32)
        y = ((x * own[owner]).sum(axis=1) + 0.3 * rng.normal(size=len(owner)) > 0).astype(int)
        data = FederatedData.from_arrays(x, y, owner, outputs=2, validation=0.4, test=0.4)
        flat = build_model("logistic", data.input_shape, 2, data.task, 0)
        vector = torch.zeros(2, d + 1)
        vector[0, :d], vector[1, :d] = torch.from_numpy(-common), torch.from_numpy(common)
        useful = torch.cat([vector[:, :d].flatten(), torch.zeros(2)]).expand(m, -1)
        return data, RowTensors(data, plain.CPU, torch.float32), flat, useful

    def accuracy(self, data, tensors, flat, weights):
        scores = evaluate(tensors, flat, {"it": lambda some: weights[some]}, "test")
        return scores["it"]["accuracy"]

    def compare(self, shared):
        data, tensors, flat, _ = self.federation()
        local = LocalTraining(steps=3, batch=10, lr=0.3)
        offered = candidates(VIEWS, local, ["shared"], dict.fromkeys(LAMS, (1.0,)))
        space = Workspace(data, tensors, flat)
        chosen = choose(space, offered, views_of(shared, shared), default="personal")
        clients = np.arange(data.m)
        alone = max(
            self.accuracy(
                data, tensors, flat,
                Tuner(space, one.method, one.local)(
                    clients, flat.start().expand(data.m, -1), shared
                ),
            )
            for one in offered
            if one.start == FRESH
        )  # fmt: skip
        mine = self.accuracy(data, tensors, flat, chosen.store.vectors)
        return mine, alone, [offered[pick].start for pick in chosen.picks]

    def test_drowned_in_noise_the_shared_model_does_no_harm(self):
        data, _, flat, _ = self.federation()
        noise = 30 * torch.randn(flat.size, generator=torch.Generator().manual_seed(1))
        mine, alone, starts = self.compare(noise.expand(data.m, -1))
        assert mine > alone - 0.02
        assert starts.count(FRESH) > 0.8 * len(starts)

    def test_a_useful_shared_model_is_used(self):
        *_, useful = self.federation()
        mine, alone, starts = self.compare(useful)
        assert mine > alone + 0.02
        # Who is not sure of a gain trains alone, and still every third client is sure.
        assert starts.count("shared") > len(starts) / 3
