"""Counts of parameters without torch are those of the models."""

from __future__ import annotations

import pytest

from pmtl.errors import PmtlError
from pmtl.models import MODELS, build_model
from pmtl.planning.sizes import parts_of

CASES = [
    ("logistic", (7,), 3),
    ("auto", (7,), 3),
    ("linear", (7,), 1),
    ("mlp", (5,), 2),
    ("mlp:hidden=9,layers=3", (5,), 4),
    ("femnist_cnn", (784,), 62),
    ("celeba_cnn", (3, 84, 84), 2),
    ("hog", (784,), 10),
    ("hog:cells=2,bins=4", (784,), 10),
]


@pytest.mark.parametrize(("spec", "shape", "classes"), CASES)
def test_parts_are_those_of_the_model(spec, shape, classes):
    columns = 1
    for size in shape:
        columns *= size
    task = "regression" if spec == "linear" else "classification"
    model = build_model(spec, shape, classes, task, seed=0)
    parts = parts_of(spec, columns, classes)
    sizes = {name: p.numel() for name, p in model.module.named_parameters()}
    assert parts.all == sum(sizes.values()) == model.size
    assert parts.biases == sum(n for name, n in sizes.items() if name.endswith("bias"))
    last = list(sizes)[-1].rpartition(".")[0]
    assert parts.head == sum(n for name, n in sizes.items() if name.rpartition(".")[0] == last)


def test_many_layers_are_counted_at_once():
    assert parts_of("mlp:hidden=2,layers=1000000000", 3, 1).all == 8 + 6 * (10**9 - 1) + 3


def test_every_model_of_the_library_is_counted():
    assert set(MODELS) <= {spec.partition(":")[0] for spec, *_ in CASES}


def test_second_moments_are_those_of_one_target():
    """p = 7 weights with the intercept: p(p + 1)/2 of XᵀX and p of Xᵀy."""
    assert parts_of("linear", 6, 1).moments == 28 + 7
    assert parts_of("logistic", 6, 2).moments == 28 + 7
    assert parts_of("logistic", 6, 3).moments is None
    assert parts_of("mlp", 6, 1).moments is None


@pytest.mark.parametrize(
    ("spec", "columns", "classes", "words"),
    [
        ("logistc", 3, 2, "Did you mean 'logistic'"),
        ("my.module:Net", 3, 2, "give their number with --parameters"),
        ("mlp:hiden=3", 3, 2, "Did you mean 'hidden'"),
        ("mlp:hidden=0", 3, 2, "hidden ≥ 1"),
        (f"mlp:hidden={10**400}", 3, 2, "number of hidden units"),
        (f"mlp:layers={10**400}", 3, 2, "number of layers"),
        (f"hog:bins={10**400}", 49, 2, "number of bins"),
        ("femnist_cnn", 100, 62, "784 pixels"),
        ("hog", 50, 2, "square images"),
        ("linear", 0, 1, "number of columns"),
        ("linear", 3, -1, "number of classes"),
    ],
)
def test_mistakes_are_sentences(spec, columns, classes, words):
    with pytest.raises(PmtlError, match=words):
        parts_of(spec, columns, classes)
