"""Rows of many clients: the same answers from files, frames and single clients."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from new_rows import features_of
from pyarrow import csv, parquet
from scipy.sparse import csr_matrix
from visits import HOSPITALS, features, trained, visits

import pmtl
from pmtl import plugins
from pmtl.errors import PmtlWarning
from pmtl.prediction import source

SURE = ("probability of ill", "probability of well")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> pmtl.Run:
    return trained(tmp_path_factory.mktemp("visits"))


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of 32 rows, so that a small table has several."""
    monkeypatch.setattr(source, "MOST_ROWS", 32)


def columns(table: pa.Table, names=("prediction", *SURE)) -> dict[str, list]:
    return {name: table.column(name).to_pylist() for name in names}


def test_each_row_is_answered_by_its_clients_model(run, small_pieces):
    table = visits(seed=1)
    found = run.predict_rows(table)
    assert found.table.column_names == ["id", "hospital", "outcome", "prediction", *SURE]
    for name in ("id", "hospital", "outcome"):
        assert found[name].tolist() == table.column(name).to_pylist()
    for client in run.clients:
        mine = found["hospital"] == client
        sure = run.predict_proba(client, features(table)[mine])
        np.testing.assert_allclose(found[SURE[0]][mine], sure[:, 0], rtol=1e-5)
        told = np.array(run.facts.labels)[run.predict(client, features(table)[mine])]
        assert (found["prediction"][mine] == told).all()
    assert found.summary == {
        "rows": 240,
        "clients": HOSPITALS,
        "model": "personal",
        "client_column": "hospital",
        "unknown_clients": 0,
        "first_unknown": [],
        "rows_of_new_clients": 0,
        "rows_refused": 0,
        "first_refused": [],
        "data": "the frame",
        "out": None,
    }


def test_files_frames_and_the_command_agree_to_the_last_bit(
    run, small_pieces, tmp_path, pmtl_command
):
    table = visits(seed=2)
    csv.write_csv(table, tmp_path / "new.csv")
    parquet.write_table(table, tmp_path / "new.parquet", row_group_size=50)
    expected = columns(run.predict_rows(table).table)
    given = {
        "csv": tmp_path / "new.csv",
        "parquet": str(tmp_path / "new.parquet"),
        "pandas": table.to_pandas(),
        "polars": pl.from_arrow(table),
    }
    for name, rows in given.items():
        assert columns(run.predict_rows(rows).table) == expected, name
    for ending in ("csv", "parquet"):
        for out in ("csv", "parquet"):
            done = pmtl_command(
                *("predict", run.path, "--data", tmp_path / f"new.{ending}"),
                *("--out", tmp_path / f"a.{out}"),
            )
            assert done.status == 0, done.err
            read = csv.read_csv if out == "csv" else parquet.read_table
            written = read(tmp_path / f"a.{out}")
            if out == "csv":  # Arrow writes the shortest digits that are the same float32.
                kept = written.select(["prediction"])
                for name in SURE:
                    exact = written.column(name).cast(pa.float32(), safe=False)
                    kept = kept.append_column(name, exact)
                written = kept
            assert columns(written) == expected


def test_ids_are_carried_over_as_they_are_written(run, tmp_path):
    """00017 is a name, not the number 17."""
    csv.write_csv(visits(seed=3), tmp_path / "new.csv")
    run.predict_rows(tmp_path / "new.csv", tmp_path / "a.csv", keep=["id"])
    head, first, *_ = (tmp_path / "a.csv").read_text().splitlines()
    assert head == '"id","prediction","probability of ill","probability of well"'
    assert first.startswith('"00000",')


def test_the_shared_model_answers_for_everybody_or_for_new_clients(run, small_pieces):
    table = visits(seed=4)
    all_shared = run.predict_rows(table, shared=True)
    assert all_shared.summary["model"] == "shared"
    for client in run.clients:
        mine = all_shared["hospital"] == client
        x = torch.from_numpy(features(table)[mine])
        sure = run.shared_for(client)(x).softmax(-1).detach().numpy()
        np.testing.assert_allclose(all_shared[SURE[0]][mine], sure[:, 0], rtol=1e-5)
    renamed = with_name(table, "h03", "elsewhere")
    mixed = run.predict_rows(renamed, new=True)
    theirs = mixed["hospital"] == "elsewhere"
    assert mixed.summary["first_unknown"] == ["elsewhere"]
    assert mixed.summary["unknown_clients"] == 1
    assert mixed.summary["rows_of_new_clients"] == theirs.sum() == 20
    assert mixed.summary["clients"] == HOSPITALS - 1
    alone = run.predict_proba(None, features(renamed)[theirs])
    np.testing.assert_allclose(mixed[SURE[0]][theirs], alone[:, 0], rtol=1e-5)
    own = run.predict_rows(table)
    np.testing.assert_allclose(mixed[SURE[0]][~theirs], own[SURE[0]][~theirs], rtol=1e-5)


def test_a_file_without_clients_is_one_new_client(run, small_pieces):
    table = visits(seed=5)
    rows = table.select(["age", "dose"])
    for asked in ({"new": True}, {"shared": True}):
        found = run.predict_rows(rows, **asked)
        alone = run.predict_proba(None, features(table))
        np.testing.assert_allclose(found[SURE[0]], alone[:, 0], rtol=1e-5)
    with pytest.raises(pmtl.PmtlError, match=r"no column that names the client.*--new"):
        run.predict_rows(rows)


def test_rows_of_others_are_refused_unless_asked_for(run, tmp_path):
    table = visits(seed=6)
    with pytest.raises(pmtl.PmtlError, match=r"rows of the clients .* not of 'h03'.*--any-client"):
        run.predict_rows(table, tmp_path / "a.csv", client="h03")
    assert not (tmp_path / "a.csv").exists()
    found = run.predict_rows(table, client="h03", any_client=True)
    sure = run.predict_proba("h03", features(table))
    np.testing.assert_allclose(found[SURE[0]], sure[:, 0], rtol=1e-5)
    mine = table.filter(pa.compute.equal(table.column("hospital"), "h03"))
    assert run.predict_rows(mine, client="h03").summary["clients"] == 1
    assert len(run.predict_rows(table.select(["age", "dose"]), client="h03")) == 240


def test_unknown_clients_are_refused_by_name(run):
    table = with_name(with_name(visits(), "h03", "h3"), "h04", "H04")
    with pytest.raises(pmtl.PmtlError, match=r"clients 'h3', 'H04'|clients 'H04', 'h3'"):
        run.predict_rows(table)
    found = run.predict_rows(table, skip=True)
    empty = np.isin(found["hospital"], ["h3", "H04"])
    assert found.summary["rows_refused"] == empty.sum() == 40
    assert found.summary["first_refused"] == np.flatnonzero(empty)[:20].tolist()
    assert found.table.column("prediction").null_count == 40
    assert (pd.isna(found.to_pandas()["prediction"]) == empty).all()


def test_a_new_client_with_few_rows_is_warned_about(run):
    with pytest.warns(PmtlWarning, match="1 of 1 new clients have fewer than 10 rows"):
        run.predict_rows(visits().select(["age", "dose"]).slice(0, 4), new=True)


def test_a_row_that_cannot_be_read_is_named_or_left_without_an_answer(run, tmp_path, small_pieces):
    text = ["hospital,age,dose"] + [f"h0{k % 9},5{k % 7},0.00{k % 5}" for k in range(80)]
    text[1 + 40] = "h01,,0.001"
    text[1 + 70] = "h01,old,0.001"
    (tmp_path / "new.csv").write_text("\n".join(text) + "\n")
    with pytest.raises(pmtl.PmtlError, match=r"new.csv, row 40 .*column 'age'"):
        run.predict_rows(tmp_path / "new.csv")
    found = run.predict_rows(tmp_path / "new.csv", skip=True)
    assert found.summary["first_refused"] == [40, 70]
    assert found.table.column(SURE[0]).null_count == 2
    text[1 + 40] = text[1 + 70] = "h01,1e39,0.001"
    (tmp_path / "new.csv").write_text("\n".join(text) + "\n")
    with pytest.raises(pmtl.PmtlError, match=r"row 40, column 'age'"):
        run.predict_rows(tmp_path / "new.csv")


def test_a_row_of_an_array_that_is_not_finite(run, tmp_path, small_pieces):
    x = features(visits())
    x[[50, 99], 1] = np.nan, np.inf
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(pmtl.PmtlError, match=r"x\.npy.*row 50, column 'dose'"):
        run.predict_rows(tmp_path / "x.npy", client="h03")
    found = run.predict_rows(tmp_path / "x.npy", client="h03", skip=True)
    assert found.summary["first_refused"] == [50, 99]
    rest = np.setdiff1d(np.arange(240), [50, 99])
    sure = run.predict_proba("h03", x[rest])[:, 0]
    np.testing.assert_allclose(found[SURE[0]][rest].astype(float), sure, rtol=1e-5)


def test_columns_are_found_by_name_in_any_order(run):
    table = visits(seed=7)
    turned = table.select(["outcome", "dose", "hospital", "id", "age"])
    assert columns(run.predict_rows(turned).table) == columns(run.predict_rows(table).table)
    renamed = table.rename_columns(["id", "age", "client", "dose", "outcome"])
    with pytest.raises(pmtl.PmtlError, match="no column that names the client"):
        run.predict_rows(renamed)
    found = run.predict_rows(renamed, client_column="client")
    assert columns(found.table) == columns(run.predict_rows(table).table)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": ["ids"]}, "named 'ids'. Did you mean 'id'"),
        ({"client_column": "hospitals"}, "Did you mean 'hospital'"),
        ({"client": "h99"}, "no client 'h99'"),
        ({"client": "h03", "shared": True}, "give one of them"),
        ({"any_client": True}, "belongs to --client"),
        ({"out": "a.xlsx"}, "no known ending"),
        ({"out": "no/such/a.csv"}, "there is no folder"),
    ],
)
def test_mistakes_are_sentences(run, options, said):
    with pytest.raises(pmtl.PmtlError, match=said):
        run.predict_rows(visits(), **options)


def test_other_mistakes_are_sentences(run, tmp_path):
    table = visits()
    csv.write_csv(table, tmp_path / "new.csv")
    for rows, said in (
        (table.append_column("prediction", table.column("id")), "also the name of an answer"),
        (table.drop_columns(["age"]), "lacks the feature column 'age'"),
        (table.slice(0, 0), "no rows to predict on"),
        (features(table).tolist(), "a frame or an array, not list"),
        (features(table), "no column that names the client"),
        (f"{tmp_path / 'new.csv'}:clients=5", "named 'clients'"),
        (tmp_path / "old.csv", "There is no file"),
    ):
        with pytest.raises(pmtl.PmtlError, match=said):
            run.predict_rows(rows)
    with pytest.raises(pmtl.PmtlError, match="another file"):
        run.predict_rows(tmp_path / "new.csv", tmp_path / "new.csv")
    spec = f"{tmp_path / 'new.csv'}:client=hospital,target=outcome,drop=id"
    assert "id" not in run.predict_rows(spec).table.column_names


def test_arrays_with_and_without_clients(tmp_path, small):
    run = pmtl.train(small, algorithm="pmtl", privacy={"noise": 0.1, "rounds": 2})
    client = np.repeat(small.clients, 14)
    np.savez(tmp_path / "d.npz", x=small.x, client=client)
    np.save(tmp_path / "d.npy", small.x)
    run.predict_rows(tmp_path / "d.npz", tmp_path / "a.npz")
    written = np.load(tmp_path / "a.npz")
    assert (written["client"] == client).all()
    assert written["probability"].shape == (168, 2)
    mine = client == "site-05"
    assert (written["prediction"][mine] == run.predict("site-05", small.x[mine])).all()
    run.predict_rows(tmp_path / "d.npy", tmp_path / "a.npy", client="site-05")
    assert (np.load(tmp_path / "a.npy") == run.predict("site-05", small.x)).all()
    sparse = csr_matrix(np.where(np.abs(small.x) > 0.5, small.x, 0))
    parts = {"x_data": sparse.data, "x_indices": sparse.indices, "x_indptr": sparse.indptr}
    np.savez(tmp_path / "s.npz", **parts, x_shape=sparse.shape, client=client)
    found = run.predict_rows(tmp_path / "s.npz")
    alone = run.predict_proba("site-05", sparse.toarray()[mine])
    np.testing.assert_allclose(found["probability of 0"][mine], alone[:, 0], rtol=1e-5)
    with pytest.raises(pmtl.PmtlError, match="no array 'who'"):
        run.predict_rows(tmp_path / "d.npz", client_column="who")


def test_an_array_with_the_clients_of_its_rows(run, small_pieces):
    table = visits(seed=8)
    named = table.column("hospital").to_pylist()
    found = run.predict_rows(features(table), clients=named)
    assert columns(found.table) == columns(run.predict_rows(table).table)
    assert found["client"].tolist() == named
    with pytest.raises(pmtl.PmtlError, match="240 rows, but names 239 clients"):
        run.predict_rows(features(table), clients=named[1:])
    with pytest.raises(pmtl.PmtlError, match="has a client column"):
        run.predict_rows(table, clients=named)
    with pytest.raises(pmtl.PmtlError, match=r"shape \(1,\)"):
        run.predict_rows(features(table)[:, :1], clients=named)


def test_a_fine_tuned_result_and_a_run_without_names(tmp_path, small):
    """Features without names are the columns in their order; the client column is not one."""
    run = pmtl.train(small, algorithm="pmtl", privacy={"noise": 0.1, "rounds": 2})
    frame = pd.DataFrame(small.x, columns=list("abcd"))
    frame.insert(2, "client", np.repeat(small.clients, 14))
    found = run.predict_rows(frame)
    np.testing.assert_allclose(
        found["probability of 0"][28:42], run.predict_proba("site-02", small.x[28:42])[:, 0], 1e-5
    )
    tuned = pmtl.finetune(run, "vanilla", steps=3)
    answers = tuned.predict_rows(frame)["probability of 0"]
    assert np.abs(answers - found["probability of 0"]).max() > 1e-4
    with pytest.raises(pmtl.PmtlError, match="5 columns of features"):
        run.predict_rows(frame.assign(e=0.0))


def test_bytes_are_pixels_only_if_they_were_in_training(tmp_path):
    x = np.random.default_rng(0).integers(0, 9, size=(60, 3))
    client, y = np.arange(60) % 6, (x[:, 0] > 4).astype(int)
    np.save(tmp_path / "x.npy", x.astype(np.uint8))
    for kind in (np.float32, np.uint8):
        data = pmtl.FederatedData.from_arrays(x.astype(kind), y, client)
        run = pmtl.train(data, algorithm="pmtl", privacy={"noise": 0.01, "rounds": 2})
        found = run.predict_rows(tmp_path / "x.npy", client="3")["probability of 1"]
        np.testing.assert_allclose(found, run.predict_proba("3", x.astype(kind))[:, 1], rtol=1e-5)


def test_text_of_many_clients_becomes_the_features_of_training(tmp_path, small_pieces):
    words = ["socket", "host", "cable", "typo", "page"]
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(words, 4)) for _ in range(120)]
    frame = pd.DataFrame(
        {
            "user": [f"u{k % 8}" for k in range(120)],
            "text": texts,
            "tag": ["net" if "host" in text else "doc" for text in texts],
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    spec = f"{tmp_path / 't.csv'}:client=user,text=text,target=tag,words=5"
    run = pmtl.train(spec, algorithm="pmtl", privacy={"noise": 0.01, "rounds": 2})
    found = run.predict_rows(tmp_path / "t.csv")
    assert found.table.column_names[:2] == ["user", "tag"]
    again = run.predict_rows(frame)
    assert (again["probability of net"] == found["probability of net"]).all()
    rows = features_of(tmp_path / "t.csv", (5,), run.facts.feature_names, run.data.text)
    mine = np.flatnonzero(frame["user"] == "u3")
    alone = run.predict_proba("u3", rows[mine])[:, 1]
    np.testing.assert_allclose(found["probability of net"][mine], alone, rtol=1e-5)
    with pytest.raises(pmtl.PmtlError, match=r"value is missing.*row 7"):
        run.predict_rows(frame.assign(text=[None if k == 7 else t for k, t in enumerate(texts)]))


def test_answers_that_were_written_are_read_from_their_file(run, tmp_path):
    written = run.predict_rows(visits(), tmp_path / "a.parquet")
    for ask in (written.to_pandas, lambda: written["prediction"]):
        with pytest.raises(pmtl.PmtlError, match=r"written to .*a\.parquet"):
            ask()
    assert len(written) == 240
    with pytest.raises(pmtl.PmtlError, match="Did you mean 'prediction'"):
        run.predict_rows(visits())["predictions"]


LARGE = """
import resource, sys
import numpy as np, pyarrow as pa
from pyarrow import parquet
import pmtl

folder, rows = sys.argv[1], 250_000
random = np.random.default_rng(0)
x = random.normal(size=(600, 48)).astype(np.float32)
client = np.arange(600) % 20
data = pmtl.FederatedData.from_arrays(
    x, (x[:, 0] > 0).astype(int), client, feature_names=[f"v{k}" for k in range(48)]
)
run = pmtl.train(data, algorithm="pmtl", privacy={"noise": 0.1, "rounds": 1})
schema = pa.schema([("client", pa.int64()), *((f"v{k}", pa.float32()) for k in range(48))])
def write(name, rows):
    with parquet.ParquetWriter(f"{folder}/{name}", schema) as writer:
        for first in range(0, rows, 10_000):
            part = [pa.array(random.integers(20, size=10_000))]
            part += [pa.array(column) for column in np.tile(x[:500], (20, 1)).T.copy()]
            writer.write_table(pa.table(part, schema=schema))
write("small.parquet", 40_000)
write("large.parquet", rows)
peaks = []
for name in ("small", "large"):
    done = run.predict_rows(f"{folder}/{name}.parquet", f"{folder}/answers.csv")
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
assert done.summary["rows"] == rows and done.summary["clients"] == 20, done.summary
print(peaks[1] - peaks[0], rows * 48 * 4)
"""


def test_a_file_may_be_larger_than_memory(tmp_path):
    """Six times as many rows need no more memory, where the features alone are 48 MB more."""
    command = [sys.executable, "-c", LARGE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    more, size = map(int, done.stdout.split())
    assert more < size / 3
    assert (tmp_path / "answers.csv").read_bytes().count(b"\n") == 250_001


def with_name(table: pa.Table, old: str, new: str) -> pa.Table:
    """The table with another name for one hospital."""
    names = [new if name == old else name for name in table.column("hospital").to_pylist()]
    place = table.column_names.index("hospital")
    return table.set_column(place, "hospital", pa.array(names))


def test_a_reader_of_ones_own_reads_rows_to_predict_on(tmp_path, monkeypatch, pmtl_command):
    (tmp_path / "lines.py").write_text(
        "import json\n\n\n"
        "def read(path, answer='y'):\n"
        "    rows = [json.loads(line) for line in path.read_text().splitlines()]\n"
        "    names = {'x': 'x', 'y': answer, 'client': 'who'}\n"
        "    return {part: [row[name] for row in rows] for part, name in names.items()}\n"
    )
    rows = [{"who": f"c{k % 5}", "x": [k % 7, k % 3], "out": k % 2} for k in range(100)]
    (tmp_path / "rows.lines").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    spec = "rows.lines:reader=lines:read,answer=out"
    assert pmtl_command("train", "--data", spec, "--out", "run").status == 0
    done = pmtl_command("predict", "run", "--data", spec, "--out", "answers.csv")
    assert done.status == 0, done.err
    answers = pd.read_csv("answers.csv")
    assert answers["client"].tolist() == [row["who"] for row in rows]
    for client in ("c0", "c3"):
        mine = [row["x"] for row in rows if row["who"] == client]
        wanted = pmtl.load_run("run").predict(client, np.array(mine, dtype=np.float32))
        assert answers["prediction"][answers["client"] == client].tolist() == wanted.tolist()
    misspelt = pmtl_command("predict", "run", "--data", f"{spec},anser=out", "--out", "more.csv")
    assert misspelt.status == 2
    assert "anser" in misspelt.err
    entry = EntryPoint("lines", "lines:read", "pmtl.readers")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry] if "read" in group else [])
    by_ending = pmtl_command("predict", "run", "--data", "rows.lines:answer=out", "--out", "b.csv")
    assert by_ending.status == 0, by_ending.err
    assert Path("b.csv").read_text() == Path("answers.csv").read_text()
    spec = "rows.lines:reader=lines:reed"
    refused = pmtl_command("predict", "run", "--data", spec, "--out", "more.csv")
    assert refused.status == 2
    assert "reed" in refused.err


def test_a_reader_of_ones_own_predicts_rows_without_a_target(tmp_path, monkeypatch, pmtl_command):
    (tmp_path / "untargeted.py").write_text(
        "import json\n\n\n"
        "def read(path, part=''):\n"
        "    rows = [json.loads(line) for line in path.read_text().splitlines()]\n"
        "    parts = part.split('+') if part else ['x', 'y', 'client']\n"
        "    return {part: [row[part] for row in rows] for part in parts}\n"
        "def get(path):\n"
        "    return read(path, 'x+client') | {'y': [None]}\n"
    )
    rows = [{"client": f"c{k % 5}", "x": [k % 7, k % 3], "y": k % 2} for k in range(100)]
    new = [{"client": row["client"], "x": row["x"]} for row in rows]
    for name, lines in {"old": rows, "new": new, "bad": [*new, {"client": "c1", "x": [1]}]}.items():
        (tmp_path / f"{name}.lines").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert (
        pmtl_command("train", "--data", "old.lines:reader=untargeted:read", "--out", "run").status
        == 0
    )

    def predict(data, *options):
        done = pmtl_command("predict", "run", "--data", data, "--out", "out.csv", *options)
        assert done.status in (0, 2), done.err
        return done.err if done.status else pd.read_csv("out.csv")["prediction"].tolist()

    known = predict("old.lines:reader=untargeted:read")
    assert len(set(known)) == 2
    for way in ("get", "read,part=x+client"):
        assert predict(f"new.lines:reader=untargeted:{way}") == known
    run = pmtl.load_run("run")
    alone = run.predict("c1", np.array([row["x"] for row in rows], dtype=np.float32)).tolist()
    assert predict("new.lines:reader=untargeted:read,part=x", "--client", "c1") == alone
    failed = predict("new.lines:reader=untargeted:read")
    assert "The reader read failed on new.lines (KeyError: 'y'). It may leave y out" in failed
    assert "must return a dictionary with x, and" in predict(
        "new.lines:reader=untargeted:read,part=client"
    )
    uneven = predict("bad.lines:reader=untargeted:get")
    assert "In bad.lines, as the reader get returned it: The features are not rows" in uneven


def test_rows_of_leaf_are_predicted_by_the_names_of_their_users(tmp_path, pmtl_command):
    """Its reader returns codes and names instead of a name for every row."""
    users = {f"c{k}": {"x": [[k, 1], [1, k], [2, 2]], "y": [0, 1, 1]} for k in range(4)}
    file = {"users": [*users], "num_samples": [3] * 4, "user_data": users}
    (tmp_path / "rows.json").write_text(json.dumps(file))
    run = pmtl.train(str(tmp_path / "rows.json"), privacy={"noise": 0.1, "rounds": 1})
    answers = run.predict_rows(tmp_path / "rows.json")
    assert answers["client"].tolist() == [name for name in users for _ in range(3)]


def test_columns_of_a_reader_of_ones_own_are_found_by_name(tmp_path, monkeypatch):
    (tmp_path / "named.py").write_text(
        "import numpy as np\n\n\n"
        "def read(path, lenient: bool, progress: bool):\n"
        "    head, *rows = (line.split() for line in path.read_text().splitlines())\n"
        "    cells = np.array([row[1:] for row in rows], dtype=np.float32)\n"
        "    return {'x': cells[:, :2], 'y': cells[:, 2].astype(int),\n"
        "            'client': [row[0] for row in rows], 'feature_names': head[1:3]}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    rows = [(f"c{k % 5}", k % 7, -(k % 3), int(k % 7 > 3)) for k in range(100)]
    for name, (one, two) in {"ab": (1, 2), "ba": (2, 1), "az": (1, 2)}.items():
        lines = [f"who {name[0]} {name[1]} y"]
        lines += [f"{row[0]} {row[one]} {row[two]} {row[3]}" for row in rows]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    run = pmtl.train("ab.txt:reader=named:read", privacy=2.0)
    answers = [
        run.predict_rows(f"{name}.txt:reader=named:read")["prediction"].tolist()
        for name in ("ab", "ba")
    ]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) == 2
    with pytest.raises(pmtl.PmtlError, match=r"no column of az\.txt named 'b'"):
        run.predict_rows("az.txt:reader=named:read")
