"""A schema: its file, its mistakes, and the names of a table's columns."""

from __future__ import annotations

import datetime
import tomllib
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmtl.data.readers.bounds import read_bounds
from pmtl.data.schema import Column, Schema
from pmtl.data.schema.column import KINDS, MISSING, ROLES, UNKNOWN
from pmtl.errors import PublicError

FILE = """
version = 1
public = true
[columns.hospital]
role = "client"
[columns.age]
low = 0
high = 110
missing = "indicator"
[columns.ward]
kind = "category"
categories = ["icu", "general"]
[columns.seen]
kind = "date"
low = 2000-01-01
high = 2000-12-31
[columns."blood.sugar"]
[columns.outcome]
role = "target"
kind = "boolean"
"""


def written(tmp_path, text):
    path = tmp_path / "schema.toml"
    path.write_text(text)
    return path


def test_a_file_says_what_every_column_is(tmp_path):
    schema = Schema.read(written(tmp_path, FILE))
    names = ("age", "age is missing", "ward=icu", "ward=general", "seen", "blood.sugar")
    assert schema.feature_names == names
    assert (schema.named("client"), schema.named("split")) == ("hospital", None)
    assert [column.name for column in schema.targets] == ["outcome"]
    assert schema.public
    known = ((0.0, 110.0), *[(0.0, 1.0)] * 3, (0.0, 365.0), None)
    assert schema.bounds.features == known


def test_text_and_content_are_the_schema_again(tmp_path):
    schema = Schema.read(written(tmp_path, FILE))
    assert Schema.from_dict(schema.to_dict()) == schema
    assert Schema.read(written(tmp_path, schema.to_toml())) == schema
    assert tomllib.loads(schema.to_toml())["columns"]["seen"]["low"] == datetime.date(2000, 1, 1)


texts = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=8)
columns = st.one_of(
    st.builds(
        lambda missing, more, low: {"missing": missing, "missing_values": more, **low},
        st.sampled_from(["indicator", "fill", "drop", "refuse"]),
        st.lists(texts, max_size=2),
        st.sampled_from([{}, {"low": -1.5, "high": 2.0}]),
    ),
    st.builds(
        lambda values, unknown: {"kind": "category", "categories": values, "unknown": unknown},
        st.lists(texts, min_size=1, max_size=4, unique=True),
        st.sampled_from(["zeros", "other", "refuse"]),
    ),
    st.builds(lambda n: {"kind": "text", "hash": n}, st.integers(1, 9)),
    st.builds(lambda parts: {"kind": "date", "parts": parts}, st.sampled_from([[], ["month"]])),
)


@given(st.dictionaries(texts, columns, min_size=1, max_size=4), st.booleans())
def test_any_schema_is_read_as_it_was_written(tables, public):
    values = {"version": 1, "public": public, "columns": tables}
    try:
        schema = Schema.from_dict(values)
    except PublicError:  # Two names that are equal but for white space, say.
        return
    assert Schema.from_dict(tomllib.loads(schema.to_toml())) == schema
    assert Schema.from_dict(schema.to_dict()) == schema
    assert len(set(schema.feature_names)) == len(schema.feature_names)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.dates() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
settings_of_columns = st.dictionaries(
    st.sampled_from([item.name for item in fields(Column) if item.name != "name"]) | texts,
    values | st.sampled_from([*ROLES, *KINDS, *MISSING, *UNKNOWN]),
    max_size=4,
)


@given(values | st.dictionaries(texts, settings_of_columns | values, max_size=3), values)
def test_whatever_stands_in_a_schema_it_is_read_or_refused_in_a_sentence(tables, more):
    for content in ({"columns": tables}, {"version": more, "public": more, "columns": tables}):
        try:
            made = Schema.from_dict(content)
        except PublicError:
            continue
        assert Schema.from_dict(made.to_dict()) == made
        tomllib.loads(made.to_toml())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = ", ["not valid TOML"]),
        ("", ["no columns", "[columns.NAME]"]),
        ("version = 2\n[columns.a]", ["version is 2", "reads version 1"]),
        ("verson = 1\n[columns.a]", ["'verson'", "Did you mean 'version'"]),
        ("public = 'yes'\n[columns.a]", ["public = 'yes'"]),
        ("[columns.a]\nrole = 'client'", ["no column is a feature"]),
        ("[columns.a]\n[columns.b]\nrole='client'\n[columns.c]\nrole='client'", ["'b', 'c'"]),
        ("[columns.a]\nmissing='indicator'\n[columns.'a is missing']", ["'a is missing'"]),
        ("[columns.a]\nkind = 'numer'\n[columns.b]\nhihg = 1", ["2 problems", "'numer'", "'hihg'"]),
    ],
)
def test_mistakes_are_told_all_at_once(text, words, tmp_path):
    with pytest.raises(PublicError) as error:
        Schema.read(written(tmp_path, text))
    for word in ("schema.toml", *words):
        assert word in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(PublicError, match="cannot be read"):
            Schema.read(path)
    with pytest.raises(PublicError, match="is not a path"):
        Schema.read("a\0b")
    with pytest.raises(PublicError, match="not 3"):
        Schema.of(3)


def test_a_file_of_bounds_is_a_schema_of_numbers_and_the_other_way_round(tmp_path):
    path = written(tmp_path, "[columns.age]\nlow = 0\nhigh = 110\n[columns.score]\nlow=0\nhigh=9")
    schema = Schema.read(path).with_roles(client="school", target="score")
    assert (schema.named("client"), schema.feature_names) == ("school", ("age",))
    assert schema.bounds.target == (0.0, 9.0)
    ranges = {"age": (0.0, 110.0), "score": (0.0, 9.0)}
    assert read_bounds(path) == read_bounds(written(tmp_path, schema.to_toml())) == ranges


def test_bounds_are_added_to_numbers_only():
    schema = Schema((Column("a"), Column("b", "boolean"), Column("y", role="target")))
    more = schema.with_bounds({"a": (0, 1), "target": (0, 2)})
    assert (more.bounds.features, more.bounds.target) == (((0.0, 1.0),) * 2, (0.0, 2.0))
    for wrong, words in (({"b": (0, 1)}, "is boolean"), ({"aa": (0, 1)}, "Did you mean 'a'")):
        with pytest.raises(PublicError, match=words):
            schema.with_bounds(wrong)
    with pytest.raises(PublicError, match="mapping"):
        schema.with_bounds([(0, 1)])


def test_the_spec_may_repeat_the_schema_and_not_contradict_it():
    schema = Schema(
        (Column("k", None, "client"), Column("a"), Column("b"), Column("y", role="target"))
    )
    assert schema.with_roles("k", "y") == schema
    assert schema.with_roles(drop=["b"]).feature_names == ("a",)
    with pytest.raises(PublicError) as error:
        schema.with_roles("who", "z", drop=["c"])
    for word in ("client=who", "target=z", "'c' to drop"):
        assert word in str(error.value)


def test_columns_are_found_by_name_in_any_order():
    schema = Schema(
        (Column("k", None, "client"), Column("a"), Column("b"), Column("y", role="target"))
    )
    rows = schema.encode({"b": [3, 4], "a": [1, 2]})
    assert rows.tolist() == [[1, 3], [2, 4]]
    assert rows.dtype == np.float32
    schema.encode({"b": [3], "a": [1], "k": ["x"], "y": [None]})
    with pytest.raises(PublicError) as error:
        schema.encode({"bb": [3], "a": [1], "c": [0]})
    for word in ("'b' of the schema is missing", "Did you mean 'bb'", "not know 'bb', 'c'"):
        assert word in str(error.value)
    schema.check_names(["a", "b", "id"], "rows", ignore=["id"])
    with pytest.raises(PublicError, match="'k' of the schema is missing"):
        schema.check_names(["a", "b", "y"], "rows", training=True)
