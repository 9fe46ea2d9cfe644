"""A table with a schema: in an experiment, in production, and for prediction."""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hospital import hospital_frame
from hypothesis import given
from hypothesis import strategies as st
from invariants import rows_of
from new_rows import features_of

from pmtl.data import FederatedData, Schema, load
from pmtl.errors import PmtlError, PublicError

SCHEMA = """
version = 1
public = true
[columns.who]
role = "client"
[columns.age]
low = 0
high = 100
missing = "indicator"
[columns.ward]
kind = "category"
categories = ["icu", "general"]
unknown = "other"
missing = "indicator"
[columns.smoker]
kind = "boolean"
missing = "fill"
[columns.seen]
kind = "date"
missing = "fill"
[columns.doctor]
kind = "category"
hash = 4
missing = "fill"
[columns.id]
role = "dropped"
[columns.y]
role = "target"
kind = "category"
categories = ["home", "died"]
"""
NAMES = Schema.from_dict(tomllib.loads(SCHEMA)).feature_names
HEADER = "who,age,ward,smoker,seen,doctor,id,y\n"
GOOD = [
    f"c{k % 4},{20 + k},{('icu', 'general', '')[k % 3]},{('yes', 'no', '')[k % 3]},"
    f"2020-01-{1 + k % 28:02d},d{k % 7},{k},{('home', 'died')[k % 2]}"
    for k in range(48)
]


@pytest.fixture
def read(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)

    def made(lines, header=HEADER, **options):
        path = tmp_path / "rows.csv"
        path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
        return load(path, schema=tmp_path / "schema.toml", **options)

    return made


def test_the_schema_decides_everything(read, tmp_path):
    data = read(GOOD)
    assert data.feature_names == NAMES
    assert (data.task, data.labels, data.m) == ("classification", ("home", "died"), 4)
    assert data.source.endswith(f"schema={tmp_path / 'schema.toml'}")
    assert load(data.source).fingerprint() == data.fingerprint()
    assert "which the user states is public" in data.disclosed[0]
    assert not any("No schema" in note for note in data.for_owner)
    frame = pd.read_csv(tmp_path / "rows.csv", dtype=str)
    for schema in (Schema.of(tmp_path / "schema.toml"), tmp_path / "schema.toml"):
        assert FederatedData.from_frame(frame, schema=schema).fingerprint() == data.fingerprint()


def test_the_schema_is_part_of_the_fingerprint(read, tmp_path):
    """Also if it gives the same numbers."""
    before = read(GOOD)
    text = SCHEMA.replace("high = 100", "high = 100\nmissing_values = ['unknown']")
    (tmp_path / "schema.toml").write_text(text)
    after = load(tmp_path / "rows.csv", schema=tmp_path / "schema.toml")
    assert (after.x == before.x).all()
    assert after.fingerprint() != before.fingerprint()


def test_reordered_columns_are_the_same_federation(read):
    swapped = [",".join(reversed(line.split(","))) for line in GOOD]
    header = ",".join(reversed(HEADER.strip().split(","))) + "\n"
    assert read(swapped, header).fingerprint() == read(GOOD).fingerprint()


def test_mistakes_in_a_table_with_a_schema(read):
    with pytest.raises(PublicError) as error:
        read(GOOD, HEADER.replace("smoker", "smokr").replace("id", "nr"))
    for words in ("2 problems", "'smoker' of the schema", "mean 'smokr'", "not know 'smokr', 'nr'"):
        assert words in str(error.value)
    bad = ["c1,old,icu,perhaps,soon,d1,1,home", "c1,1,icu,no,2020-01-01,d1,1,lost"]
    with pytest.raises(PmtlError) as error:
        read([*GOOD, *bad])
    for words in ("4 problems", "'old'", "'perhaps'", "'soon'", "'lost'", "categories"):
        assert words in str(error.value)
    with pytest.raises(PublicError, match="target=age was given"):
        read(GOOD, target="age")
    with pytest.raises(PublicError, match="text= and a schema"):
        read(GOOD, text="ward")


def test_rows_may_be_dropped_for_an_empty_cell(read, tmp_path):
    (tmp_path / "schema.toml").write_text(
        SCHEMA.replace('low = 0\nhigh = 100\nmissing = "indicator"', "missing = 'drop'")
    )
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + "\n".join([*GOOD, "c1,,icu,no,2020-01-01,d,1,home"]) + "\n")
    data = load(path, schema=tmp_path / "schema.toml")
    assert len(data.y) == len(GOOD)
    assert "1 of 49 rows were left out" in data.for_owner[0]
    lenient = load(path, schema=tmp_path / "schema.toml", production=True)
    assert sum(lenient.rows(split).counts.sum() for split in lenient.splits) == len(GOOD)


BAD_ROWS = {
    "text for a number": "c1,old,icu,yes,2020-01-01,d1,7,home",
    "no boolean": "c1,30,icu,perhaps,2020-01-01,d1,7,home",
    "no date": "c1,30,icu,yes,soon,d1,7,home",
    "no class": "c1,30,icu,yes,2020-01-01,d1,7,lost",
    "no target": "c1,30,icu,yes,2020-01-01,d1,7,",
    "too large": "c1,1e300,icu,yes,2020-01-01,d1,7,home",
    "too few cells": "c1,30",
}


@pytest.mark.parametrize("row", BAD_ROWS)
def test_in_production_a_bad_row_is_left_out_and_nobody_elses(row, read):
    whole = read(GOOD, production=True)
    data = read([*GOOD[:9], BAD_ROWS[row], *GOOD[9:]], production=True)
    assert (data.feature_names, data.labels) == (whole.feature_names, whole.labels)
    for client in ("c0", "c2", "c3"):
        assert rows_of(data, client) == rows_of(whole, client)
    assert data.disclosed == whole.disclosed
    with pytest.raises(PmtlError):
        read([*GOOD[:9], BAD_ROWS[row], *GOOD[9:]])


cells = st.sampled_from(
    ["", "NA", "1", "-5", "1e9", "x", "icu", "new ward", "yes", "maybe", "2020-02-30", "2020-02-03"]
)


@given(st.lists(st.lists(cells, min_size=7, max_size=7), min_size=1, max_size=5))
def test_in_production_one_clients_rows_change_no_column_and_nobody_elses_rows(rows):
    """Whatever client c1 has instead of its own rows."""
    with tempfile.TemporaryDirectory() as folder:
        schema, path = Path(folder) / "schema.toml", Path(folder) / "rows.csv"
        schema.write_text(SCHEMA)
        others = [line for line in GOOD if not line.startswith("c1")]
        made = []
        for mine in ([line for line in GOOD if line.startswith("c1")], rows):
            lines = [line if isinstance(line, str) else ",".join(["c1", *line]) for line in mine]
            path.write_text(HEADER + "\n".join([*lines, *others]) + "\n")
            made.append(load(path, schema=schema, production=True))
    one, two = made
    assert one.clients == two.clients
    assert one.feature_names == two.feature_names == NAMES
    assert (one.task, one.outputs, one.labels) == (two.task, two.outputs, two.labels)
    assert (one.bounds, one.disclosed, one.schema) == (two.bounds, two.disclosed, two.schema)
    for client in ("c0", "c2", "c3"):
        assert rows_of(one, client) == rows_of(two, client)
        k, j = one.index_of(client), two.index_of(client)
        assert (one.scaling.fills[k] == two.scaling.fills[j]).all()


def test_production_asks_for_a_schema_and_for_its_being_public(read, tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA.replace("public = true\n", ""))
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + "\n".join(GOOD) + "\n")
    with pytest.raises(PublicError, match="public = true"):
        load(path, schema=tmp_path / "schema.toml", production=True)
    data = load(path, schema=tmp_path / "schema.toml")
    assert "does not say that it is public" in data.disclosed[0]
    with pytest.raises(
        PublicError, match=r"'ward', 'smoker', 'seen', 'doctor' hold no numbers.*schema"
    ):
        load(path, client="who", target="y", production=True)


def test_new_rows_are_matched_by_name(read, tmp_path):
    data = read(GOOD)
    new = tmp_path / "new.csv"
    new.write_text("doctor,seen,smoker,ward,age\nd1,2020-01-01,,icu,\nd2,2020-01-02,no,zz,50\n")
    x = features_of(new, data.input_shape, data.feature_names, schema=data.schema.to_dict())
    assert x.shape == (2, len(NAMES))
    assert np.isnan(x[0, [NAMES.index("age"), NAMES.index("smoker")]]).all()
    assert x[1, NAMES.index("ward is other")] == 1
    new.write_text("doctor,seen,smoker,ward,agee\nd1,2020-01-01,,icu,3\n")
    with pytest.raises(PmtlError, match=r"'age' of the schema is missing. Did you mean 'agee'"):
        features_of(new, data.input_shape, data.feature_names, schema=data.schema)
    new.write_text("nr,doctor,seen,smoker,ward,age\n7,d1,2020-01-01,,icu,3\n")
    with pytest.raises(PmtlError, match="does not know 'nr'"):
        features_of(new, data.input_shape, data.feature_names, schema=data.schema)
    kept = features_of(new, data.input_shape, None, schema=data.schema, keep=("nr",))
    assert kept[0, NAMES.index("age")] == 3
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(PmtlError, match="columns of its schema"):
        features_of(tmp_path / "x.npy", data.input_shape, None, schema=data.schema)


def test_a_schema_that_names_nobody_and_an_empty_table(tmp_path):
    frame = hospital_frame(12)
    schema = FederatedData.from_frame(frame, "hospital", "outcome").schema.to_dict()
    del schema["columns"]["hospital"], schema["columns"]["outcome"]
    with pytest.raises(PublicError, match=r"names the client.*is to be predicted"):
        FederatedData.from_frame(frame, schema=schema)
    with pytest.raises(PublicError, match="says nothing about the target 'outcome'"):
        FederatedData.from_frame(frame, "hospital", "outcome", schema=schema)
    (tmp_path / "s.toml").write_text(SCHEMA)
    (tmp_path / "t.csv").write_text(HEADER)
    with pytest.raises(PmtlError, match="no rows"):
        load(tmp_path / "t.csv", schema=tmp_path / "s.toml")


@pytest.mark.filterwarnings("error")
def test_a_number_that_no_integer_type_holds_is_a_target_without_a_warning(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"client,y,a\n0,0,1\n0,{2**63},\n")
    assert load(path).y.tolist() == [0, 2**63]
