"""The summary and its warnings."""

from __future__ import annotations

import json

import numpy as np
from scipy import sparse

from pmtl.data import FederatedData, describe, synthetic


def federation(sizes, **changes):
    n = sum(sizes)
    columns = {
        "x": np.ones((n, 2), dtype=np.float32),
        "y": np.arange(n) % 2,
        "client": np.repeat(np.arange(len(sizes)), sizes),
    }
    return FederatedData.from_arrays(**{**columns, **changes})


def warned(data, words):
    return [warning for warning in describe(data)["warnings"] if words in warning]


def test_numbers_are_those_of_the_data():
    summary = describe(federation([5, 10, 30]))
    assert json.loads(json.dumps(summary)) == summary
    assert summary["clients"] == 3
    assert summary["samples"] == 45
    assert summary["samples_per_client"] == {"min": 5, "median": 10.0, "max": 30}
    assert summary["features"] == [2]
    assert summary["classes"] == 2
    assert summary["storage"] == "dense"
    assert summary["splits"] == {"train": 31, "validation": 5, "test": 9}
    assert describe(federation([5], y=np.eye(5)))["outputs"] == 5
    assert describe(federation([5], y=np.arange(5) / 2))["outputs"] == 1
    thin = describe(federation([4], x=sparse.csr_matrix(np.eye(4))))
    assert (thin["storage"], thin["density"]) == ("sparse", 0.25)


def test_a_healthy_federation_has_no_warnings():
    assert describe(synthetic(clients=150, samples=100))["warnings"] == []


def test_every_warning_has_its_cause():
    assert warned(federation([5, 5]), "only 2 clients")
    assert warned(federation([2, 9]), "1 of 2 clients has no test rows")
    assert warned(federation([4, 4]), "2 of 2 clients have no validation rows")
    assert warned(federation([6, 6], y=[0] * 6 + [0, 1] * 3), "1 of 2 clients has only one class")
    assert warned(federation([6], y=[1, 5] * 3), "Only 2 of the 6 classes")
    assert warned(federation([6], y=[0.0, 1.0] * 3), "say task=classification")
    assert not warned(federation([6], y=[0.0, 0.5, 1.0] * 2), "say task=classification")
    assert warned(federation([10, 10, 700]), "very unequal")
    assert not warned(federation([10, 10, 70]), "very unequal")
    assert warned(federation([6], x=np.ones((6, 2), dtype=np.uint8)), "divided by 255")
    assert not warned(federation([6], x=np.full((6, 2), 9, dtype=np.uint8)), "divided by 255")
