"""What is inferred from rows, and what is said about it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hospital import WARDS, hospital_frame

from pmtl.data import FederatedData, describe, load
from pmtl.data.readers.cells import Table
from pmtl.data.readers.columns import Roles
from pmtl.data.schema.infer import infer
from pmtl.errors import PmtlError

ROWS = 40


def federation(**columns):
    base = {"client": ["a", "b"] * (ROWS // 2), "target": [0, 1, 1, 0] * (ROWS // 4)}
    frame = pd.DataFrame({**base, "word": ["p", "q"] * (ROWS // 2), **columns})
    return FederatedData.from_frame(frame)


def kind_of(cells):
    schema = federation(v=cells).schema
    (column,) = (column for column in schema.columns if column.name == "v")
    return column.kind or column.role


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (np.arange(ROWS) / 7, "number"),
        ([str(k) for k in range(ROWS)], "number"),
        (["1", ""] * 20, "number"),
        (["yes", "no"] * 20, "boolean"),
        (["Yes", ""] * 20, "boolean"),
        (["t", "f"] * 20, "boolean"),
        (["F", "F"] * 20, "category"),
        (["true", "1"] * 20, "boolean"),
        ([True, None] * 20, "boolean"),
        (["red", "blue"] * 20, "category"),
        (pd.Categorical(["red", "blue"] * 20), "category"),
        (["2020-01-31", "2021-02-01T10:00"] * 20, "date"),
        (["31.01.2020", "01.02.2021"] * 20, "date"),
        (["13/01/2020", "01/02/2021"] * 20, "date"),
        (["01/02/2020", "03/04/2021"] * 20, "dropped"),
        (["31-Jan-2020", "01-Feb-2021"] * 20, "date"),
        (["1/31/2020 9:05 PM", "2/1/2021 10:00 AM"] * 20, "date"),
        (["2020-01-31", "31.01.2020"] * 20, "dropped"),
        (["27,5", "1.027,25", "", "28"] * 10, "number"),
        (["0,125", "12,5"] * 20, "number"),
        (["12", "#DIV/0!"] * 20, "number"),
        (pd.date_range("2020-01-01", periods=ROWS), "date"),
        ([f"id-{k}" for k in range(ROWS)], "dropped"),
        ([f"w{k // 2}{k // 4}" for k in range(ROWS)], "category"),
        ([f"a note of some words {k}" for k in range(ROWS)], "dropped"),
        (["", "NA"] * 20, "dropped"),
    ],
)
def test_the_kind_of_a_column_is_what_its_cells_are(cells, kind):
    assert kind_of(cells) == kind


def test_a_comma_before_decimals_is_told_from_one_between_thousands():
    data = federation(v=["27,5", "1.027,25", "", "-28"] * 10, target=["0,5", "1,5", "2", "3"] * 10)
    assert data.task == "regression"
    v = data.x[:, data.feature_names.index("v")]
    assert set(np.unique(v[~np.isnan(v)])) == {-28.0, 27.5, 1027.25}
    assert set(np.unique(data.y)) <= {0.5, 1.5, 2.0, 3.0}
    with pytest.raises(
        PmtlError, match=r"before decimals or between thousands: say decimal = \",\""
    ):
        federation(v=["1,234", "2,345"] * 20)
    with pytest.raises(PmtlError, match="numbers written with a comma"):
        federation(v=["1,5", "1.5"] * 20)


def test_dates_in_several_ways_are_left_out_until_a_schema_lists_the_ways():
    cells = ["2020-01-31", "31.01.2020", "01/02/2020"] * 20
    frame = pd.DataFrame({"client": ["a", "b"] * 30, "target": [0, 1, 1] * 20, "v": cells})
    frame["n"] = range(60)
    assert "written in several ways" in "".join(FederatedData.from_frame(frame).for_owner)
    columns = {"client": {"role": "client"}, "n": {"kind": "number"}}
    columns["target"] = {"role": "target", "kind": "boolean"}
    columns["v"] = {"kind": "date", "format": ["%d.%m.%Y", "%m/%d/%Y"]}
    data = FederatedData.from_frame(frame, schema={"columns": columns})

    v = data.x[:, data.feature_names.index("v")]
    assert sorted(set(v)) == [7306.0, 7335.0]


@pytest.mark.parametrize(
    ("dates", "odd", "kind"),
    [
        ([f"2020-03-{k:02}" for k in range(1, 20)], ["2020-02-30"], "date"),
        ([f"{k}.3.2020" for k in range(1, 20)], ["soon"], "date"),
        ([f"{k}/3/2020" for k in range(1, 11)] * 2, ["?!"], "dropped"),  # In two ways.
        ([f"{k}.3.2020" for k in range(1, 20)] * 9, ["soon", "2020-04-01"], "date"),
        ([f"{k}.3.2020" for k in range(1, 20)], ["soon", "later"], "dropped"),
        ([f"{k}.3.2020" for k in range(1, 26)] * 20, [f"x{k}" for k in range(21)], "category"),
    ],
)
def test_a_few_cells_that_are_no_dates_count_as_empty(dates, odd, kind):
    cells = [*dates, *odd]
    frame = pd.DataFrame({"client": "a", "n": 1.0, "v": cells, "target": 0.5})
    data = FederatedData.from_frame(frame)
    (column,) = (column for column in data.schema.columns if column.name == "v")
    assert (column.kind or column.role) == kind
    if kind == "date":
        assert column.missing_values == (odd[0],)
        assert f"(1 cell: '{odd[0]}') counts as empty" in "".join(data.for_owner)
        assert "which cells of 'v' are no dates" in data.disclosed[0]
        marks = data.x[:, data.feature_names.index("v is missing")]
        assert marks.tolist() == [float(cell == odd[0]) for cell in cells]


def test_a_count_of_cells_that_are_no_dates_says_that_it_is_not_of_all_rows(monkeypatch):
    monkeypatch.setattr("pmtl.data.schema.profile.MOST_VALUES", 5)
    cells = [*(f"{k}.3.2020" for k in range(1, 20)), "soon"]
    columns = {"client": ["a"] * 20, "v": cells, "target": [0.5] * 20}
    batches = [pa.RecordBatch.from_pydict(columns)] * 2
    table = Table("t", [*columns], parse=False, lenient=False, read=lambda names: batches)
    found = infer(table, Roles("client", ("target",), None, ("v",)))
    assert "(at least 1 cell: 'soon') counts as empty" in found.notes["v"]


def test_many_values_are_hashed():
    cells = [f"v{k % 35}" for k in range(ROWS)]
    schema = federation(v=[*cells]).schema
    assert schema.columns[-1].hash == 8
    assert not any("v3" in name for name in schema.feature_names)


def test_numbers_that_name_rows_are_left_out_by_their_name():
    assert federation(patient_id=np.arange(ROWS)).feature_names == ("word=p", "word=q")
    assert federation(rowID=np.arange(ROWS)).feature_names == ("word=p", "word=q")
    for name in ("", "Unnamed: 0", "rownames", "row_number", "Index"):
        assert federation(**{name: np.arange(ROWS)}).feature_names == ("word=p", "word=q")
    assert "index" in federation(index=[1, 2] * 20).feature_names
    assert "paid" in federation(paid=np.arange(ROWS)).feature_names
    assert "visit_id" in federation(visit_id=[1, 2] * 20).feature_names


@pytest.mark.parametrize("kind", ["csv", "parquet", "pandas", "polars"])
def test_a_messy_table_is_read_the_same_from_everywhere(kind, tmp_path):
    frame = hospital_frame(12)
    options = {"client": "hospital", "target": "outcome"}
    if kind == "csv":
        frame.to_csv(tmp_path / "t.csv", index=False)
        data = load(tmp_path / "t.csv", **options)
    elif kind == "parquet":
        frame.to_parquet(tmp_path / "t.parquet")
        data = load(tmp_path / "t.parquet", **options)
    else:
        data = FederatedData.from_frame(
            pl.from_pandas(frame) if kind == "polars" else frame, **options
        )
    roles = {column.name: column.kind or column.role for column in data.schema.columns}
    assert roles == {
        "visit_id": "dropped",
        "hospital": "client",
        "age": "number",
        "sugar": "number",
        "ward": "category",
        "smoker": "boolean",
        "admitted": "date",
        "doctor": "category",
        "remark": "dropped",
        "empty": "dropped",
        "constant": "number",
        "outcome": "category",
    }
    assert data.labels == ("died", "home")
    assert {f"ward={ward}" for ward in WARDS} < set(data.feature_names)
    assert np.isfinite(data.x).all()
    assert data.fingerprint() == REFERENCE.setdefault("messy", data.fingerprint())


REFERENCE: dict[str, str] = {}


def test_everything_that_was_decided_and_disclosed_is_said():
    data = FederatedData.from_frame(hospital_frame(12), "hospital", "outcome")
    (decided,) = (note for note in data.for_owner if "No schema was given" in note)
    for column in data.schema.columns:
        assert column.name in decided or column.role == "client"
    for words in (
        "visit_id: left out, because nearly",
        "filled inside each client",
        "'died', 'home'",
    ):
        assert words in decided
    (disclosed,) = data.disclosed
    for words in ("categories of 'ward'", "'age', 'sugar', 'ward', 'smoker'", "without noise"):
        assert words in disclosed
    summary = describe(data)
    assert disclosed in summary["warnings"]
    assert {column["column"] for column in summary["columns"]} == set(hospital_frame(12).columns)
    assert not data.schema.public


def test_a_table_of_numbers_needs_no_schema_and_discloses_nothing():
    frame = pd.DataFrame({"client": ["a", "b"] * 4, "target": [0, 1] * 4, "v": np.arange(8.0)})
    data = FederatedData.from_frame(frame)
    assert (data.schema, data.disclosed, data.scaling) == (None, (), None)


@pytest.mark.parametrize(
    ("target", "task", "labels", "kind"),
    [
        (["no", "yes"] * 20, None, ("no", "yes"), "classification"),
        ([True, False] * 20, None, ("false", "true"), "classification"),
        (["10", "9"] * 20, None, ("9", "10"), "classification"),
        (["0.0", "1.00"] * 20, None, ("0", "1"), "classification"),
        (["0.0", "1.0"] * 20, "regression", None, "regression"),
        (["1.0", "2.0"] * 20, None, None, "regression"),
        ([1, 2] * 20, "regression", None, "regression"),
        ([0.5, 2] * 20, None, None, "regression"),
    ],
)
def test_targets(target, task, labels, kind):
    frame = pd.DataFrame({"client": ["a", "b"] * 20, "word": ["p", "q"] * 20, "target": target})
    data = FederatedData.from_frame(frame, task=task)
    assert (data.task, data.labels) == (kind, labels)


def test_classes_that_may_be_amounts_are_told():
    (said,) = federation(target=[1, 2, 3, 4] * 10).for_owner
    assert "if these are amounts, say --data FILE:task=regression" in said
    assert "amounts" not in "".join(federation(target=["p", "q", "r", "s"] * 10).for_owner)


def test_whole_numbers_that_are_too_many_for_classes_are_amounts():
    frame = pd.DataFrame({"client": "a", "word": ["p", "q"] * 501, "pay": np.arange(1002)})
    data = FederatedData.from_frame(frame, target="pay")
    assert data.task == "regression"
    assert "pay: target, a number" in "".join(data.for_owner)
    with pytest.raises(PmtlError, match=r"1000 different whole numbers: say task=regression"):
        FederatedData.from_frame(frame[:1000], target="pay")
    with pytest.raises(PmtlError, match="more than 1000 classes: group them"):
        FederatedData.from_frame(frame, target="pay", task="classification")


def test_a_target_that_names_the_rows_is_told():
    data = federation(target=[f"v{k}" for k in range(ROWS)])
    (told,) = (line for line in describe(data)["warnings"] if "classes in 40 rows" in line)
    assert "name another one with --target" in told
    assert not [line for line in describe(federation())["warnings"] if "classes in" in line]


def test_a_target_with_bounds_is_a_number():
    frame = pd.DataFrame({"client": ["a", "b"] * 20, "word": ["p", "q"] * 20, "score": [3, 7] * 20})
    data = FederatedData.from_frame(frame, target="score", bounds={"score": (0, 10)})
    assert (data.task, data.bounds.target) == ("regression", (0.0, 10.0))
    assert data.bounds.features == ()


def test_several_targets_with_text_features(tmp_path):
    frame = pd.DataFrame({"client": ["a", "b"] * 20, "word": ["p", "q"] * 20})
    frame = frame.assign(s=[True, False] * 20, t=[False, True] * 20, u=0.5)
    data = FederatedData.from_frame(frame, target="s+t", drop="u")
    assert (data.task, data.labels) == ("multilabel", ("s", "t"))
    assert FederatedData.from_frame(frame, target="s+u").task == "regression"


def test_all_refusals_come_at_once_and_a_target_is_refused_by_name():
    mixed = ["12", "about 3", "4", "5"] * 10
    with pytest.raises(PmtlError) as error:
        federation(age=mixed, size=["x", *["1"] * 39], nest=[[1]] * ROWS, price=["1,500", "3"] * 20)
    for words in (
        "4 problems",
        "'price' is numbers written with a comma (such as '1,500')",
        "'age' is numbers, but for 10 cells of text (such as 'about 3')",
        "missing_values under [columns.age]",
        "'size' is numbers, but for 1 cell of text",
        "'nest' holds list",
        "drop=nest",
    ):
        assert words in str(error.value)
    with pytest.raises(PmtlError, match=r"'target'.*40 different whole|more than|task=regression"):
        FederatedData.from_frame(
            pd.DataFrame({"client": "a", "word": ["p", "q"] * 100, "target": np.arange(200)})
        )
    with pytest.raises(PmtlError, match=r"target column 'target'.*dates"):
        federation(target=pd.date_range("2020-01-01", periods=ROWS))
    with pytest.raises(PmtlError, match=r"target column 'target'.*dates"):
        federation(target=["2020-01-01", "2020-01-03"] * 20)
    with pytest.raises(PmtlError, match="'target' has a cell without a value"):
        federation(target=[None, *[1] * 39])


def test_a_client_keeps_its_median_with_its_scaling():
    frame = pd.DataFrame(
        {
            "client": ["a"] * 5 + ["b"] * 5 + ["c"] * 5,
            "split": ["train"] * 4 + ["test"] + ["train"] * 4 + ["test"] + ["train"] * 4 + ["test"],
            "v": [1, 2, 9, None, None, 10, 20, 30, 40, None, *[None] * 5],
            "target": [0, 1, 0, 1, 0] * 3,
        }
    )
    data = FederatedData.from_frame(frame, validation=0)
    assert data.scaling.fills[:, 0].tolist() == [2, 20, 0]  # The lower median; 0 for nothing.
    assert data.x[[3, 4, 9, 10], 0].tolist() == [2, 2, 20, 0]
    assert not data.is_scaled
    bounded = FederatedData.from_frame(frame, validation=0, bounds={"v": (0, 50)})
    assert bounded.scaling.fills[:, 0].tolist() == [2, 20, 25]
    assert bounded.schema.bounds.features == ((0.0, 50.0), (0.0, 1.0))
    assert bounded.x[10].tolist() == [0, 1]


def test_a_table_larger_than_memory_is_filled_like_any_other(tmp_path, monkeypatch):
    table = pa.table({"client": ["a"] * 9, "v": [None, *range(8)], "target": [0, 1, 0] * 3})
    table.to_pandas().to_csv(tmp_path / "t.csv", index=False)
    held = load(tmp_path / "t.csv")
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "40")
    mapped = load(tmp_path / "t.csv")
    assert isinstance(mapped.x, np.memmap)
    assert mapped.x.tolist() == held.x.tolist()
    assert mapped.scaling.fills.tolist() == held.scaling.fills.tolist()
