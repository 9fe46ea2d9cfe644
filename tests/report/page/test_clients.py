"""Who gains and who loses."""

from __future__ import annotations

import numpy as np
import pytest

from pmtl.report.page.clients import client_gains

NAMES = [f"c{k}" for k in range(40)]


def losses(seed=0, m=40):
    random = np.random.default_rng(seed)
    return {name: random.gamma(2.0, size=m) for name in ("personal", "shared", "alone")}


def test_clients_are_counted_and_the_worst_tenth_is_marked():
    found = losses()
    found["personal"][7] = found["alone"][7]
    told = client_gains(NAMES, found, "test")
    gains = found["alone"] - found["personal"]
    assert (told.ours, told.other) == ("personal", "alone")
    assert (told.gain, told.lose) == ((gains > 0).sum(), (gains < 0).sum())
    assert told.gain + told.lose == 39
    worst = np.argsort(-found["personal"])[:4]
    marked = {point["client"] for point in told.points if point["group"] == "worst tenth"}
    assert marked == {f"c{k}" for k in worst}
    assert told.worst_loss == pytest.approx(found["personal"][worst].mean())
    assert told.worst_other == pytest.approx(found["alone"][worst].mean())
    assert "and 1 the same" in told.sentences()[0]


def test_points_go_from_the_largest_loss_to_the_largest_gain():
    gains = [point["gain"] for point in client_gains(NAMES, losses(), "test").points]
    assert gains == sorted(gains)
    assert len(gains) == 40


def test_clients_without_a_finite_loss_are_left_out_and_counted():
    found = losses()
    found["personal"][:3] = np.nan
    found["alone"][3] = np.inf
    told = client_gains(NAMES, found, "test")
    assert (told.clients, told.left_out) == (36, 4)
    assert {point["client"] for point in told.points} == set(NAMES[4:])
    assert any("finite loss: 4" in sentence for sentence in told.sentences())


def test_many_clients_are_sampled_evenly_and_the_page_says_so():
    names, found = [f"c{k}" for k in range(10_000)], losses(m=10_000)
    told = client_gains(names, found, "test")
    gains = found["alone"] - found["personal"]
    assert len(told.points) == 2000
    assert told.clients == 10_000
    assert told.gain == (gains > 0).sum()
    shown = [point["gain"] for point in told.points]
    assert shown[0] == pytest.approx(gains.min(), rel=0.01)
    assert shown[-1] == pytest.approx(gains.max(), rel=0.01)
    assert np.mean(shown) == pytest.approx(gains.mean(), abs=0.05)
    assert "2,000 of the 10,000 clients" in told.sentences()[-1]


def test_one_model_each_is_nothing_to_compare():
    assert client_gains(NAMES, {"shared": np.ones(40)}, "test") is None
    nothing = {"personal": np.full(40, np.nan), "shared": np.ones(40)}
    assert client_gains(NAMES, nothing, "test") is None
