"""One column: which settings it may have, and which features it becomes."""

from __future__ import annotations

import datetime

import pytest

from pmtl.data.schema import Column
from pmtl.errors import PublicError


def test_every_kind_becomes_its_features():
    features = {
        "n": Column("n", missing="indicator").features,
        "b": Column("b", "boolean", missing="fill").features,
        "d": Column("d", "date", parts=["month", "weekday"]).features,
        "c": Column("c", "category", categories=["x", "y"], unknown="other").features,
        "m": Column("m", "category", categories=["x"], missing="indicator").features,
        "h": Column("h", "category", hash=2).features,
        "t": Column("t", "text", hash=2, missing="indicator").features,
        "k": Column("k", None, "client").features,
    }
    assert features == {
        "n": ("n", "n is missing"),
        "b": ("b",),
        "d": ("d", "d month sin", "d month cos", "d weekday sin", "d weekday cos"),
        "c": ("c=x", "c=y", "c is other"),
        "m": ("m=x", "m is missing"),
        "h": ("h#0", "h#1"),
        "t": ("t#0", "t#1", "t is missing"),
        "k": (),
    }


def test_ranges_follow_from_bounds_and_from_the_encoding():
    assert Column("n", low=0, high=9, missing="indicator").ranges == ((0.0, 9.0), (0.0, 1.0))
    assert Column("n").ranges == (None,)
    assert Column("b", "boolean").ranges == ((0.0, 1.0),)
    assert Column("d", "date", parts=["month"]).ranges == (None, (-1.0, 1.0), (-1.0, 1.0))
    dated = Column("d", "date", low=datetime.date(2000, 1, 2), high=datetime.date(2001, 1, 1))
    assert dated.range == (1.0, 366.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "numer"}, ["'numer'", "Did you mean 'number'", "category"]),
        ({"rol": "feature"}, ["'rol'", "Did you mean 'role'"]),
        ({"role": "label"}, ["role = 'label'", "target"]),
        ({"kind": "number", "categories": ["a"]}, ["categories", "'number'", "leave it out"]),
        ({"kind": "category"}, ["categories", "hash = N"]),
        ({"kind": "category", "categories": ["a", "a"]}, ["'a' twice"]),
        ({"kind": "category", "categories": [1, 2]}, ["texts in quotes"]),
        ({"kind": "category", "categories": "ab"}, ["texts in quotes"]),
        ({"kind": "category", "categories": ["a"], "hash": 8}, ["hashed", "leave out"]),
        ({"kind": "category", "hash": 0}, ["hash = 0", "1 to 65536"]),
        ({"kind": "category", "hash": True}, ["hash = True"]),
        ({"kind": "text"}, ["hash = N"]),
        ({"kind": "number", "low": 0}, ["low and high"]),
        ({"kind": "number", "low": 3, "high": 2}, ["less than"]),
        ({"kind": "number", "missing": "median"}, ["missing = 'median'", "indicator"]),
        ({"kind": "date", "parts": ["years"]}, ["parts = 'years'", "month"]),
        ({"kind": "date", "format": "%Q"}, ["format '%Q'", "%d/%m/%Y"]),
        ({"role": "target", "kind": "date"}, ["kind = 'date'", "number"]),
        ({"role": "target", "kind": "number", "missing": "fill"}, ["cannot be filled", "drop"]),
        ({"role": "target", "kind": "category", "hash": 4}, ["list"]),
        ({"role": "client", "low": 0, "high": 1}, ["'client'", "does not use"]),
        (3, ["[columns.c]"]),
    ],
)
def test_a_mistake_is_a_sentence_that_names_the_column(settings, words):
    with pytest.raises(PublicError) as error:
        Column.from_dict("c", settings)
    for word in ("'c'", *words):
        assert word in str(error.value)


def test_a_column_is_what_its_settings_say_again():
    column = Column("c", "category", categories=("a", "b"), unknown="other", missing="drop")
    assert Column.from_dict("c", column.to_dict()) == column
    assert column.to_dict()["categories"] == ["a", "b"]
    assert Column("k", None, "client").to_dict() == {"role": "client"}
