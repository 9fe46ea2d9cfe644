"""Cells of every spelling and type become the same numbers."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, parquet

from pmtl.data.schema import Column, Schema
from pmtl.errors import PmtlError

NAN = float("nan")


def encode(cells, **settings):
    x = Schema((Column("c", **settings),)).encode({"c": cells})
    return [[None if np.isnan(value) else value for value in row] for row in x.tolist()]


def column(cells, **settings):
    return [row[0] for row in encode(cells, **settings)]


EMPTY = ["", "NA", " n/a ", "NaN", "null", "None", "?", "-", ".", "#N/A", "<NA>", None]


def test_numbers_and_their_gaps():
    cells = ["1", " 2.5 ", "-3e2", *EMPTY]
    assert column(cells, missing="fill") == [1, 2.5, -300, *[None] * len(EMPTY)]
    marks = [row[1] for row in encode(cells, missing="indicator")]
    assert marks == [0, 0, 0, *[1] * len(EMPTY)]
    assert column(["1", "none yet"], missing="fill", missing_values=["none yet"]) == [1, None]
    assert column(["9", "3"], missing="fill", missing_values=["9"]) == [None, 3]


def test_booleans_in_all_usual_spellings():
    yes = ["true", "True", "YES", "y", "t", "on", "1", "1.0"]
    no = ["false", "FALSE", "no", "N", "f", "off", "0", "0.0"]
    assert column(yes, kind="boolean") == [1] * len(yes)
    assert column(no, kind="boolean") == [0] * len(no)
    assert column([True, False, None], kind="boolean", missing="fill") == [1, 0, None]
    assert column([1.0, 0.0, NAN], kind="boolean", missing="fill") == [1, 0, None]


def test_dates_are_days_and_points_on_a_circle():
    cells = ["2000-01-02", "2000-01-01T12:00", "1999-12-31 00:00:00", "2000-01-01T02:00+02:00"]
    assert column(cells, kind="date") == [1, 0.5, -1, 0]
    assert column(["31/12/2000"], kind="date", format="%d/%m/%Y") == [365]
    row = encode(["2000-04-03"], kind="date", parts=["month", "weekday"])[0]
    assert row == pytest.approx([93, 1, 0, 0, 1], abs=1e-6)  # April, a Monday.
    gap = encode([None], kind="date", parts=["month"], missing="indicator")[0]
    assert gap == [None, 0, 0, 1]


def test_categories_unknown_values_and_gaps():
    listed = {"kind": "category", "categories": ["a", "NA"]}
    assert encode(["a", " a", "NA"], **listed) == [[1, 0], [1, 0], [0, 1]]
    assert encode(["b", ""], **listed, missing="fill") == [[0, 0], [0, 0]]
    other = encode(["b", ""], **listed, unknown="other", missing="indicator")
    assert other == [[0, 0, 1, 0], [0, 0, 0, 1]]
    numbered = {"kind": "category", "categories": ["1", "2"]}
    for cells in (["1", "2.0"], [1, 2], [1.0, 2.0]):
        assert encode(cells, **numbered) == [[1, 0], [0, 1]]


def test_hashing_needs_no_list_and_is_the_same_everywhere():
    hashed = encode(["anna", "bert", "anna", ""], kind="category", hash=64, missing="fill")
    assert [sum(row) for row in hashed] == [1, 1, 1, 0]
    assert hashed[0] == hashed[2] != hashed[1]
    digest = int.from_bytes(hashlib.blake2b(b"anna", digest_size=8).digest(), "little")
    assert hashed[0].index(1) == digest % 64  # By the letters, whatever else is in the table.
    words = encode(["Pain, pain and fever", "fever"], kind="text", hash=64)
    assert sorted(words[0])[-3:] == [0.25, 0.25, 0.5]
    assert words[1].index(1) in np.flatnonzero(words[0])


def test_all_problems_of_a_table_come_at_once_each_with_a_remedy():
    schema = Schema(
        (
            Column("n"),
            Column("b", "boolean", missing="fill"),
            Column("c", "category", categories=("x",), unknown="refuse"),
            Column("{d}", "date"),
        )
    )
    rows = {"n": ["1", "", "many"], "b": ["maybe", "", "no"], "c": ["x", "y", "z"]}
    with pytest.raises(PmtlError) as error:
        schema.encode({**rows, "{d}": ["2000-01-01", "soon", "2000"]})
    for words in (
        "5 problems",
        "'n' has a cell without a value (first in row 1",
        'missing = "indicator", "fill" or "drop" under [columns.n]',
        "'n' has a cell that is not a number (first in row 2, counting from 0: 'many')",
        "'b' has a cell that is not a boolean (first in row 0, counting from 0: 'maybe')",
        "'c' has 2 cells that are not among its categories",
        "drop={d}",
    ):
        assert words in str(error.value), words


@pytest.mark.parametrize("value", [[1], {"k": 1}, b"raw"])
def test_cells_of_other_types_are_refused_by_name(value):
    with pytest.raises(PmtlError, match=r"'c' holds .*drop=c"):
        encode([value])


SCHEMA = Schema(
    (
        Column("n", missing="indicator"),
        Column("i", missing="fill"),
        Column("b", "boolean", missing="indicator"),
        Column("d", "date", missing="fill", parts=("weekday",)),
        Column("c", "category", categories=("x", "y", "é"), unknown="other", missing="indicator"),
    )
)
rows = st.fixed_dictionaries(
    {
        "n": st.none() | st.floats(-1e6, 1e6),
        "i": st.none() | st.integers(-(2**31), 2**31),
        "b": st.none() | st.booleans(),
        "d": st.none() | st.datetimes(pd.Timestamp(1990, 1, 1), pd.Timestamp(2040, 1, 1)),
        "c": st.none() | st.sampled_from(["x", "y", "é", "zz"]),
    }
)


@given(st.lists(rows, min_size=1, max_size=6))
def test_csv_parquet_pandas_and_polars_give_the_same_rows(cells):
    kinds = [pa.float64(), pa.int64(), pa.bool_(), pa.timestamp("us"), pa.string()]
    types = pa.schema(list(zip(SCHEMA_NAMES, kinds, strict=True)))
    table = pa.Table.from_pylist(cells, schema=types)
    wanted = SCHEMA.encode(table)
    assert (np.isnan(wanted[:, 0]) == [row["n"] is None for row in cells]).all()
    for same in (table.to_pandas(), pl.from_arrow(table), from_csv(table), from_parquet(table)):
        assert np.array_equal(SCHEMA.encode(same), wanted, equal_nan=True)


SCHEMA_NAMES = [column.name for column in SCHEMA.columns]


def from_parquet(table):
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return parquet.read_table(io.BytesIO(buffer.getvalue()))


def from_csv(table):
    buffer = io.BytesIO()
    csv.write_csv(table, buffer)
    options = csv.ConvertOptions(column_types=dict.fromkeys(SCHEMA_NAMES, pa.string()))
    return csv.read_csv(io.BytesIO(buffer.getvalue()), convert_options=options)


def test_a_row_that_training_drops_is_refused():
    schema = Schema((Column("a", missing="drop"), Column("b")))
    assert schema.encode({"b": [2, 2], "a": [1, 1]}).tolist() == [[1, 2], [1, 2]]
    with pytest.raises(PmtlError, match=r"1 row .*row 1,.*leaves rows out"):
        schema.encode({"b": [2, 2], "a": [1, None]})


def test_values_of_mixed_types_become_text():
    frame = pd.DataFrame({"c": pd.Series([1, "a", 2.0, None, NAN, b"x"], dtype=object)})
    schema = Schema((Column("c", "category", categories=("1", "2", "a", "x"), missing="fill"),))
    found = schema.encode(frame)
    assert found.sum(axis=1).tolist() == [1, 1, 1, 0, 0, 1]
    assert found.argmax(axis=1)[[0, 1, 2, 5]].tolist() == [0, 2, 1, 3]
