"""In production a row that cannot be used is left out, and all other rows stay as they are."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pyarrow as pa
import pytest
from invariants import rows_of
from pyarrow import csv, parquet

from pmtl.data import load
from pmtl.data.readers.table import open_table
from pmtl.errors import PmtlError, PublicError

HEADER = "client,a,b,flag,target\n"
GOOD = [f"c{k % 4},{k / 7},{k * k},{'true' if k % 2 else 'false'},{k % 3}" for k in range(40)]


def read(tmp_path, lines, name="rows.csv", **options):
    path = tmp_path / name
    path.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    return load(path, **options)


BAD_CELLS = {
    "an empty cell": "c1,,2,true,1",
    "text for a number": "c1,many,2,true,1",
    "NaN": "c1,nan,2,true,1",
    "too large for float32": "c1,1e300,2,true,1",
    "an empty target": "c1,1,2,true,",
    "a target that is text": "c1,1,2,true,yes",
    "a target that is a fraction": "c1,1,2,true,1.5",
    "a flag that is none": "c1,1,2,perhaps,1",
}


@pytest.mark.parametrize("cell", BAD_CELLS)
@pytest.mark.parametrize("place", [0, 20, 40])
def test_a_bad_cell_leaves_its_row_out_and_nobody_elses(cell, place, tmp_path):
    whole = read(tmp_path, GOOD, production=True, outputs=3, task="classification")
    lines = [*GOOD[:place], BAD_CELLS[cell], *GOOD[place:]]
    data = read(tmp_path, lines, production=True, outputs=3, task="classification")
    assert data.clients == whole.clients
    assert (data.task, data.outputs, data.feature_names) == (
        "classification",
        3,
        ("a", "b", "flag"),
    )
    for client in ("c0", "c2", "c3"):
        assert rows_of(data, client) == rows_of(whole, client)
    counts = sum(data.rows(split).counts for split in data.splits)
    assert counts.tolist() == [10, 10, 10, 10]
    (note,) = data.for_owner
    assert note.startswith("Client 'c1': 1 of 11 rows were left out")
    # An experiment says where it is. (A fraction among whole numbers only makes them numbers.)
    if cell in ("an empty cell", "NaN", "a flag that is none"):  # It gets a schema.
        names = read(tmp_path, lines, outputs=3, task="classification").feature_names
        three = ("a", "b", "flag=false", "flag=perhaps", "flag=true")
        flag = cell == "a flag that is none"
        assert names == (three if flag else ("a", "a is missing", "b", "flag"))
    elif cell not in ("a target that is a fraction", "a target that is text"):
        with pytest.raises(PmtlError, match=r"row|text|cannot be read|perhaps"):
            read(tmp_path, lines, outputs=3, task="classification")


def test_rows_without_a_fault_are_read_as_in_an_experiment(tmp_path):
    one, two = read(tmp_path, GOOD), read(tmp_path, GOOD, production=True)
    assert one.fingerprint() == two.fingerprint()
    assert two.for_owner == ()


def test_a_client_without_a_row_that_can_be_used_stays_a_client(tmp_path):
    lines = [line for line in GOOD if not line.startswith("c2")] + ["c2,,1,true,0"] * 3
    data = read(tmp_path, lines, production=True)
    assert data.clients == ("c0", "c1", "c2", "c3")
    assert data.rows("train").counts[2] == 0
    assert read(tmp_path, lines).rows("train").counts[2] > 0  # An experiment fills.


def test_a_column_of_text_is_refused_by_its_name(tmp_path):
    lines = [line.replace(",true,", ",red,").replace(",false,", ",blue,") for line in GOOD]
    with pytest.raises(PublicError, match="'flag' holds no numbers"):
        read(tmp_path, lines, production=True)


def test_parquet_and_text_targets(tmp_path):
    columns = {
        "client": ["a", "b"] * 6,
        "x": [float(k) if k != 4 else None for k in range(12)],
        "target": ["yes" if k % 3 else "no" for k in range(11)] + [None],
    }
    parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
    data = load(tmp_path / "rows.parquet", production=True)
    assert data.labels == ("no", "yes")
    used = np.concatenate([data.rows(split).order for split in data.splits])
    assert sorted(used.tolist()) == [k for k in range(12) if k not in (4, 11)]
    with pytest.raises(PmtlError, match=r"'target'.*row 11"):
        load(tmp_path / "rows.parquet")


def test_arrays_with_bad_rows(tmp_path):
    x = np.ones((8, 2), dtype=np.float64)
    x[1, 0], x[6, 1] = np.nan, 1e300
    y, client = np.array([0, 1, 0, 7, 1, -2, 1, 0]), np.array(list("aabbaabb"))
    np.savez(tmp_path / "rows.npz", x=x, y=y, client=client)
    data = load(tmp_path / "rows.npz", production=True, outputs=2, validation=0, test=0)
    assert data.rows("train").order.tolist() == [0, 4, 2, 7]
    assert data.y[data.rows("train").order].tolist() == [0, 1, 0, 0]
    with pytest.raises(PmtlError, match="row 1"):
        load(tmp_path / "rows.npz", outputs=2)


def test_one_clients_validation_rows_do_not_decide_about_everybodys(tmp_path):
    """A split without validation rows gets some from everybody's training rows; one client that
    brings its own must not change that for the others."""
    lines = ["client,a,split,target"]
    lines += [f"c{k % 3},{k},{'test' if k % 5 == 0 else 'train'},{k % 2}" for k in range(60)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    whole = load(path, production=True)
    lines[4] = lines[4].replace("train", "validation")
    assert lines[4].startswith("c0")
    path.write_text("\n".join(lines) + "\n")
    data = load(path, production=True)
    for client in ("c1", "c2"):
        assert rows_of(data, client) == rows_of(whole, client)
    assert (data.rows("validation").counts > 0).all()


@pytest.mark.parametrize("line", ["c1,1,2,true,1,7", ",1,2,true,1", "c1,1", "c1,1,2,true,90000"])
def test_a_row_that_does_not_fit_leaves_the_others_as_they_are(line, tmp_path):
    """Too many cells, nobody's name, too few cells, a class far from all others."""
    options = {"production": True, "outputs": 3, "task": "classification"}
    whole = read(tmp_path, GOOD, **options)
    for place in (0, 40):
        data = read(tmp_path, [*GOOD[:place], line, *GOOD[place:]], **options)
        assert data.clients == whole.clients
        for client in ("c0", "c2", "c3"):
            assert rows_of(data, client) == rows_of(whole, client)


def test_an_unknown_word_in_the_split_leaves_its_row_out(tmp_path):
    rows = [f"{line},{'test' if k % 5 == 0 else 'train'}" for k, line in enumerate(GOOD)]
    path = tmp_path / "rows.csv"

    def loaded(lines):
        path.write_text(HEADER.replace("\n", ",split\n") + "\n".join(lines) + "\n")
        return load(path, production=True)

    whole = loaded(rows)
    for word in ("tets", ""):
        data = loaded([*rows, f"c1,1,2,true,1,{word}"])
        for client in whole.clients:
            assert rows_of(data, client) == rows_of(whole, client)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_true_and_false_are_classes_in_production_too(kind, tmp_path):
    rows = [(f"c{k % 3}", float(k), k % 2 == 0) for k in range(30)]

    def loaded(cells, **options):
        names, x, y = zip(*rows, strict=True)
        if kind == "parquet":
            table = pa.table({"client": names, "a": x, "target": pa.array([*y[:-1], cells])})
            parquet.write_table(table, tmp_path / "rows.parquet")
        else:
            lines = [f"{c},{a},{str(b).lower()}" for c, a, b in rows[:-1]]
            last = "" if cells is None else str(cells).lower()
            lines.append(f"{names[-1]},{x[-1]},{last}")
            (tmp_path / "rows.csv").write_text("client,a,target\n" + "\n".join(lines) + "\n")
        return load(tmp_path / f"rows.{kind}", **options)

    for data in (loaded(True), loaded(True, production=True), loaded(None, production=True)):
        assert (data.task, data.outputs) == ("classification", 2)


def test_tags_that_nobody_knows(tmp_path):
    """Rows without a known tag are left out of the marks, too."""
    table = {
        "client": ["a", "b"] * 6,
        "words": [f"one {k}" if k != 3 else None for k in range(12)],
        "target": ["net", "doc|net", "rare"] * 4,
    }
    parquet.write_table(pa.table(table), tmp_path / "rows.parquet")
    (tmp_path / "tags.txt").write_text("net\ndoc\n")
    options = {"text": "words", "taglist": tmp_path / "tags.txt", "hash": 8}
    data = load(tmp_path / "rows.parquet", production=True, validation=0, test=0, **options)
    assert data.labels == ("net", "doc")
    assert data.rows("train").counts.tolist() == [4, 3]
    assert "1 of 4 rows were left out" in data.for_owner[0]


def test_a_column_of_another_kind_is_named(tmp_path):
    table = {"client": ["a", "b"], "day": pa.array([1, 2], pa.date32()), "target": [0, 1]}
    parquet.write_table(pa.table(table), tmp_path / "rows.parquet")
    with pytest.raises(PublicError, match=r"feature column 'day'.*date32.*drop=day"):
        load(tmp_path / "rows.parquet", production=True)


def test_a_file_that_cannot_be_read_quotes_nothing_in_production(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 SECRET PAR1")
    with pytest.raises(PmtlError) as told:
        load(path, production=True)
    assert "pmtl data show" in str(told.value)
    assert "SECRET" not in str(told.value)
    assert told.value.__cause__ is None
    assert told.value.__suppress_context__


def test_formats_in_which_one_client_decides_for_all_are_for_experiments(tmp_path):
    (tmp_path / "rows.json").write_text("{}")
    with pytest.raises(PublicError, match="experiments only"):
        load(tmp_path / "rows.json", production=True)


def test_mistakes_in_the_settings_are_still_told(tmp_path):
    with pytest.raises(PmtlError, match="no client column 'hospital'"):
        read(tmp_path, GOOD, production=True, client="hospital")
    with pytest.raises(PmtlError, match="no file or folder"):
        load(tmp_path / "nothing.csv", production=True)
    with pytest.raises(PmtlError, match="named 'vallidation'"):
        read(tmp_path, GOOD, production=True, vallidation=0.1)


def test_a_refused_file_is_closed_and_no_thread_outlives_the_program(tmp_path, monkeypatch):
    """A thread of pyarrow that calls or drops a handler of bad rows while Python ends aborts the
    process: the exit status of a refusal would be another."""
    opened, handlers = [], []

    class Reader:
        def __init__(self, path, reading, parsing, *options):
            self.inner, self.closed = open_csv(path, reading, parsing, *options), False
            handlers.append(weakref.ref(parsing.invalid_row_handler))
            assert not reading.use_threads
            opened.append(self)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __enter__(self):
            self.inner.__enter__()
            return self

        def __exit__(self, *error):
            self.closed = True
            return self.inner.__exit__(*error)

        def __iter__(self):
            return iter(self.inner)

    open_csv = csv.open_csv
    monkeypatch.setattr(csv, "open_csv", Reader)
    with pytest.raises(PmtlError, match="no split column"):
        read(tmp_path, [*GOOD, "c1,1"], production=True, split="random")
    with open_table(tmp_path / "rows.csv", lenient=True) as table:
        next(table.batches(table.names))  # The others are never asked for.
    gc.collect()
    assert len(opened) == 3
    assert all(reader.closed for reader in opened)
    assert all(handler() is not None for handler in handlers)
