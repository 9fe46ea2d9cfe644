"""CSV, TSV and Parquet."""

from __future__ import annotations

import gzip
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from new_rows import features_of
from pyarrow import parquet

from pmtl.data import FederatedData, load
from pmtl.data.readers.cells import Table
from pmtl.errors import PmtlError


@pytest.fixture
def frame(raw):
    frame = pd.DataFrame(raw.x, columns=list("pqrs"))
    return frame.assign(target=raw.y, client=raw.client, split=raw.split)


def write(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
    return path


ENDINGS = ["csv", "tsv", "csv.gz", "tsv.gz", "parquet"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("limit", [None, "200"])
def test_round_trip(frame, content, expected, tmp_path, monkeypatch, ending, limit):
    if limit:
        monkeypatch.setenv("PMTL_MEMORY_LIMIT", limit)
    data = load(write(frame, tmp_path / f"data.{ending}"))
    assert content(data) == expected
    assert data.feature_names == ("p", "q", "r", "s")
    assert isinstance(data.x, np.memmap) == bool(limit)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_may_be_named(frame, content, expected, tmp_path, ending):
    frame = frame.rename(columns={"target": "goal", "client": "who", "split": "part"})
    path = write(frame.assign(note="hm", extra=1), tmp_path / f"data.{ending}")
    data = load(f"{path}:client=who,target=goal,split=part,drop=note+extra")
    assert content(data) == expected
    data = load(path, client="who", target="goal", split="part", drop=["note", "extra"])
    assert content(data) == expected
    other = frame.rename(columns={"goal": "label", "who": "client_id", "part": "split"})
    assert content(load(write(other, tmp_path / f"other.{ending}"))) == expected


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_text_targets_and_bool_features(frame, tmp_path, ending):
    frame = frame.assign(target=[f"class {value}" for value in frame.target], b=frame.p > 0)
    data = load(write(frame, tmp_path / f"data.{ending}"))
    assert data.labels == ("class 0", "class 1", "class 2")
    x, _ = data.gather(np.arange(36))
    assert x[:, 4].tolist() == (frame.p > 0).astype(float).tolist()


def test_parquet_categories_decimals_and_dates(frame, tmp_path):
    from decimal import Decimal

    path = tmp_path / "data.parquet"
    frame = frame.assign(client=frame.client.astype("category"), d=[Decimal("1.5")] * 36)
    assert load(write(frame, path)).x[0, 4] == 1.5
    dated = load(write(frame.assign(day=pd.Timestamp("2000-02-02")), path))
    assert (dated.feature_names[-1], dated.x[0, -1]) == ("day", 32)
    texts = load(write(frame.assign(p=frame.p.astype(str).astype("category")), path))
    assert texts.x[:, 0].tolist() == frame.p.tolist()


def test_a_large_table_shows_a_bar(capfd):
    batch = pa.record_batch({"v": [1.0]})
    for steps, shown in ((3, False), (40, True)):
        table = Table("t", ["v"], False, False, lambda names, n=steps: [batch] * n, steps, True)
        assert [first for first, _ in table.batches(["v"])] == list(range(steps))
        assert ("reading rows" in capfd.readouterr().err) == shown


def test_leading_zeros_of_clients_stay(tmp_path):
    rows = "".join(f"{who},{i},{i % 2}\n" for who in ("007", "7") for i in range(4))
    (tmp_path / "d.csv").write_text("client,v,y\n" + rows)
    assert load(tmp_path / "d.csv").clients == ("007", "7")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_whole_floats_name_clients_like_integers(frame, tmp_path, ending):
    owner = frame.client.map({"ann": 2.0, "bob": 10.0, "cy": -1.0})
    assert load(write(frame.assign(client=owner), tmp_path / f"d.{ending}")).clients == NUMBERED
    assert FederatedData.from_frame(frame.assign(client=owner)).clients == NUMBERED
    categories = frame.assign(client=owner.astype("category"))
    assert load(write(categories, tmp_path / f"c.{ending}")).clients == NUMBERED


NUMBERED = ("-1", "2", "10")


def test_floats_that_name_nobody(frame, tmp_path):
    path = tmp_path / "d.parquet"
    with pytest.raises(PmtlError, match=r"client 1\.5 is a fraction"):
        load(write(frame.assign(client=1.5), path))
    gap = pa.array([1.0] * 5 + [float("nan")])
    parquet.write_table(pa.table({"client": gap, "v": [1.0] * 6, "y": [0, 1] * 3}), path)
    with pytest.raises(PmtlError, match=r"missing.*row 5.*'client'"):
        load(path)
    # In a CSV these are text, like version numbers.
    rows = "".join(f"{who},{i},{i % 2}\n" for who in ("1.0", "1.10") for i in range(4))
    assert load(csv(tmp_path, "client,v,y\n" + rows)).clients == ("1.0", "1.10")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_several_targets(frame, tmp_path, ending):
    frame = frame.drop(columns="target")
    labels = frame.assign(a=frame.p.gt(0).astype(int), b=frame.q > 0, c=0, note="hm")
    path = write(labels, tmp_path / f"data.{ending}")
    data = load(f"{path}:target=a+b+c,drop=note")
    assert (data.task, data.outputs, data.labels) == ("multilabel", 3, ("a", "b", "c"))
    assert data.feature_names == ("p", "q", "r", "s")
    assert (data.y == labels[["a", "b", "c"]]).all(axis=None)
    data = load(path, target="p+q+a", drop="note")
    assert (data.task, data.outputs, data.labels) == ("regression", 3, None)
    assert (data.y == labels[["p", "q", "a"]]).all(axis=None)
    for wrong, words in {
        "a+z": "no target column 'z'.*'a', 'b', 'c'",
        "a+a": "'a'.*twice",
        "a+client": "'client'.*twice",
        "a+note": "target column 'note'.*text, not numbers",
    }.items():
        with pytest.raises(PmtlError, match=words):
            load(path, target=wrong)
    whole = write(labels.assign(**{"a+b": 1, "note": 0}), tmp_path / f"whole.{ending}")
    assert load(whole, target="a+b").task == "classification"


def test_several_targets_that_change_far_down_the_file(tmp_path):
    lines = ["client,v,s,t\n", *("a,1,1,0\n" for _ in range(200_000)), "a,1,0,0.5\n"]
    data = load(csv(tmp_path, "".join(lines)), target="s+t")
    assert data.task == "regression"
    assert data.y[-1].tolist() == [0, 0.5]
    with pytest.raises(PmtlError, match=r"missing.*row 0.*'t'"):
        load(csv(tmp_path, "client,v,s,t\na,1,1,\na,1,0,\n"), target="s+t")


@pytest.mark.parametrize("value", [[0, 1], {"k": 1}])
@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("target", r"target=a\+b.*two-dimensional y in an \.npz"),
        ("client", "text or integers"),
        ("split", "text or integers"),
        ("p", "drop=p"),
    ],
)
def test_lists_and_structs_are_refused(frame, tmp_path, value, column, words):
    path = write(frame.assign(**{column: [value] * 36}), tmp_path / "d.parquet")
    with pytest.raises(PmtlError, match=rf"column '{column}'.*(list|struct)<.*{words}"):
        load(path)
    if column == "p":
        with pytest.raises(PmtlError, match=r"'p'.*not numbers"):
            features_of(path, (1,), ["p"])


def test_a_number_beyond_float32_is_told_once(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PmtlError, match=r"inf.*row 1, column 'v'"):
            load(csv(tmp_path, "client,v,y\na,1,0\na,1e300,1\n"))


@pytest.mark.parametrize(
    ("late", "task", "labels"), [("0.5", "regression", None), ("cat", "classification", "1 cat")]
)
def test_types_that_change_far_down_the_file(tmp_path, late, task, labels):
    rows = 200_000
    lines = ["client,v,y\n", *("a,1,1\n" for _ in range(rows)), f"a,0.25,{late}\n"]
    (tmp_path / "d.csv").write_text("".join(lines))
    data = load(tmp_path / "d.csv")
    assert data.task == task
    assert data.x[rows, 0] == 0.25
    assert data.labels == (tuple(labels.split()) if labels else None)


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        ("1, 2 ,+3,-4.5,1e2,.5", [1, 2, 3, -4.5, 100, 0.5]),
        ("true,False,TRUE", [1, 0, 1]),
        ("true,0,1", [1, 0, 1]),
        ("true,0,2", None),
        ("1_000,3", None),
        ("0x10,3", None),
        ("1 2,3", None),
    ],
)
def test_what_is_a_number_in_a_csv_file(tmp_path, cells, values):
    rows = "".join(f"a,{cell},0\n" for cell in cells.split(","))
    path = csv(tmp_path, "client,v,y\n" + rows)
    if values is None:
        with pytest.raises(PmtlError, match=r"column 'v' is numbers, but for 1 cell of text"):
            load(path)
    else:
        assert load(path).x[:, 0].tolist() == values


@pytest.mark.parametrize(
    ("cells", "task", "labels"),
    [
        ("0,1,2", "classification", None),
        ("0.0,1.0,2.0", "regression", None),
        ("1,2.5,3", "regression", None),
        ("true,false,true", "classification", None),
        ("1,99999999999999999999,2", "regression", None),
        ("1,b,NA", "classification", ("1", "NA", "b")),
        ("1,3,true", "classification", ("1", "3", "true")),
    ],
)
def test_the_target_of_a_csv_file_is_what_all_of_its_cells_are(tmp_path, cells, task, labels):
    rows = "".join(f"a,{place},{cell}\n" for place, cell in enumerate(cells.split(",")))
    data = load(csv(tmp_path, "client,v,y\n" + rows))
    assert (data.task, data.labels) == (task, labels)


def test_rows_to_predict_on_are_what_training_saw(tmp_path):
    pixels = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    np.savez(tmp_path / "d.npz", x=pixels, y=[0, 1] * 3, client=["a"] * 6)
    seen, _ = load(tmp_path / "d.npz").gather(np.arange(6))
    assert (features_of(tmp_path / "d.npz", (2, 2), None) == seen).all()
    path = csv(tmp_path, "y,b,client,a\n0,1,x,2.5\n1,0,x,3\n")
    assert features_of(path, (2,), ("a", "b")).tolist() == [[2.5, 1], [3, 0]]
    with pytest.raises(PmtlError, match=r"input column 'client'.*text, not numbers"):
        features_of(path, (1,), ("client",))
    with pytest.raises(PmtlError, match="lacks the feature column 'c'"):
        features_of(path, (1,), ("c",))


def csv(tmp_path, text, name="d.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("who,v,y\na,1,0\n", "no client column.*'who', 'v', 'y'.*client=COLUMN"),
        ("client,v,t\na,1,0\n", "no target column.*target=COLUMN"),
        ("client,y\na,1\n", "no feature columns"),
        ("client,v,v,y\na,1,2,0\n", "more than one column named 'v'"),
        ("who,v,t\na,1,0\n", "no client column.*no target column.*--client-column.*--target"),
        ("client,v,y\na,red,0\na,1,0\na,2,0\n", "'v'.*text.*'red'.*drop=v"),
        ("client,v,y\na,1,0\na,inf,0\n", "inf.*row 1.*'v'"),
        ("client,v,y\na,1,0\na,1,\n", "missing.*row 1.*'y'"),
        ("client,v,y\na,1,no\na,1,\n", "Row 1 .*no target"),
        ("client,v,y\na,1,0\n,1,0\n", "Row 1 .*no client"),
        ("client,v,y\na,1,0\na,1\n", "cannot be read as a table.*columns"),
        ("client,v,y\n", "no rows"),
        ("", "cannot be read as a table"),
        ("client,v,split,y\na,1,train,0\na,1,dev,0\n", "'dev'"),
    ],
)
def test_bad_tables_are_refused_in_a_sentence(tmp_path, text, words):
    with pytest.raises(PmtlError, match=words):
        load(csv(tmp_path, text))


def test_bad_options_and_broken_files(tmp_path, frame):
    path = csv(tmp_path, "client,v,y\na,1,0\na,2,1\na,2,1\n")
    with pytest.raises(PmtlError, match="'w' to drop"):
        load(f"{path}:drop=w")
    with pytest.raises(PmtlError, match="no split column 'part'"):
        load(f"{path}:split=part")
    with pytest.raises(PmtlError, match="cannot be read as a table"):
        load(csv(tmp_path, "PAR1 nonsense", "d.parquet"))
    whole = gzip.compress(frame.to_csv(index=False).encode())
    (tmp_path / "d.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PmtlError, match="cannot be read as a table"):
        load(tmp_path / "d.csv.gz")


def test_parquet_gaps_in_later_batches_are_filled(tmp_path):
    n = 150_000
    values = pa.array([1.0] * (n - 1) + [None])
    table = pa.table({"client": ["a"] * n, "v": values, "y": [0] * n})
    parquet.write_table(table, tmp_path / "d.parquet")
    data = load(tmp_path / "d.parquet")
    assert data.feature_names == ("v", "v is missing")
    assert data.x[-2:].tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_the_header_says_what_stands_between_cells(tmp_path, mark, ending):
    """As a spreadsheet writes it: a byte order mark, semicolons, decimal commas."""
    rows = [["client", "name, first", "weight", "target"]]
    rows += [[f"Zürich {k % 2}", "x;y" if k % 3 else "z", f"{k},5", k % 2] for k in range(20)]
    text = "\r\n".join(mark.join(f'"{c}"' if mark in str(c) else str(c) for c in r) for r in rows)
    content = text.encode("utf-8-sig")
    path = tmp_path / f"d.{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    data = load(str(path))
    assert data.clients == ("Zürich 0", "Zürich 1")
    assert data.feature_names == ("name, first=x;y", "name, first=z", "weight")
    assert data.x[0, 2] % 1 == 0.5


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_text_in_another_encoding_is_told(tmp_path, encoding):
    path = tmp_path / "d.csv"
    path.write_bytes("client;a;target\nZürich;1;0\nGenève;2;1\n".encode(encoding))
    with pytest.raises(PmtlError, match="is not UTF-8 text: save it again in UTF-8"):
        load(str(path))


def test_a_hint_is_given_for_a_name_that_was_given_only(tmp_path):
    path = csv(tmp_path, "site,age,outcome\na,1,0\n")
    with pytest.raises(PmtlError, match="no target column 'target' or 'y'") as error:
        load(str(path))
    assert "Did you mean" not in str(error.value)
    with pytest.raises(PmtlError, match="Did you mean 'outcome'"):
        load(f"{path}:client=site,target=outcom")


def test_a_client_in_the_index_of_a_frame_is_told(frame):
    name = frame.columns[0]
    with pytest.raises(PmtlError, match=rf"'{name}' is the index of the frame: .*reset_index"):
        FederatedData.from_frame(frame.set_index(name), client=name, target="y")
