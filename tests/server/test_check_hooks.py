"""What an algorithm tells the server is tried before a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmtl.algorithms import ALGORITHMS, FedAvg, Pooling
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.server.check_hooks import bound, check_hooks

CLIENTS = ("ann", "bob", "cid")


@pytest.fixture
def model():
    return build_model("logistic", (3,), 2, "classification", seed=0)


def _with(hook, value):
    """An algorithm with one function that returns this value."""
    return type("Own", (FedAvg,), {hook: lambda self, *given: value})()


#: Those with files of their own, and exact ones, are tried in tests/runs/test_training.py.
PLAIN = [
    name
    for name, kind in ALGORITHMS.items()
    if not kind.exact and name not in ("related", "clustered")
]


@pytest.mark.parametrize("name", PLAIN)
def test_the_librarys_algorithms_pass(model, name):
    device, dtype = torch.device("cpu"), torch.float32
    check_hooks(bound(ALGORITHMS[name](), model.layout, device, dtype), model, CLIENTS)


@pytest.mark.parametrize(
    ("hook", "value", "sentence"),
    [
        (
            "blocks",
            [0, 0, 0],
            "3 whole numbers that are not negative, but returned a list",
        ),
        ("blocks", np.zeros(2, dtype=int), r"but returned an ndarray of shape \(2,\)"),
        ("blocks", np.zeros(3), "a NumPy array of 3 whole numbers"),
        ("blocks", np.array([0, -1, 0]), "a NumPy array of 3 whole numbers"),
        ("billboard", 0, "a Billboard, but returned 0"),
        ("billboard_size", 8.0, "a whole number, but returned 8.0"),
        ("billboard_size", True, "a whole number, but returned True"),
        ("billboard_start", torch.zeros(7), r"of shape \(8,\), but .* a Tensor of shape \(7,\)"),
        ("published", torch.zeros(8), r"of shape \(1, 8\), but .* a Tensor of shape \(8,\)"),
        ("upload_size", -1, "a whole number or None, but returned -1"),
        ("server_start", {"memory": 0.0}, "a dictionary of tensors, but returned a dict"),
        ("target_spans", ["wide"], "a list of numbers or None, but returned a list"),
    ],
)
def test_a_value_that_the_server_cannot_use_is_refused(model, hook, value, sentence):
    with pytest.raises(
        PmtlError, match=f"{hook} of the algorithm 'fedavg' must return .*{sentence}"
    ):
        check_hooks(_with(hook, value), model, CLIENTS)


@pytest.mark.parametrize("hook", ["blocks", "billboard", "billboard_start"])
def test_of_an_exact_algorithm_a_part_is_tried(model, hook):
    own = type("Own", (Pooling,), {hook: lambda self, *given: None})()
    with pytest.raises(PmtlError, match=f"{hook} of the algorithm 'pooling' must return"):
        check_hooks(own, model, CLIENTS)


@pytest.mark.parametrize("hook", ["bind", "to"])
def test_an_algorithm_that_is_lost_on_the_way_is_refused(model, hook):
    with pytest.raises(PmtlError, match=f"{hook} of the algorithm 'fedavg' must return an algor"):
        bound(_with(hook, None), model.layout, torch.device("cpu"), torch.float32)
