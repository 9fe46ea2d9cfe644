"""TensorFlow Federated's HDF5 files, written here by h5py in their true layout."""

from __future__ import annotations

import json
import sys

import h5py
import numpy as np
import pytest
from scipy import sparse

from pmtl.data import describe, load
from pmtl.data.readers import hdf5
from pmtl.errors import PmtlError

WORDS = ["the", "list", "in", "python", "query", "a"]
TAGS = {"sql": 5, "python": 9, "css": 1, "java": 3}
# client → rows of (tokens, title, tags)
TRAIN = {
    "00000010": [
        ("the list in a list", "sort list", "python|list"),
        ("a query", "the query query", "sql|python"),
        ("edit :", "thanks .", "python"),
    ],
    "00000002": [("in java", "a", "java"), ("in java", "a", "cobol"), ("the", "the", "sql")],
    "00000007": [("the end", "a", "cobol")],
    "00000099": [("a", "a", "sql")],
}
TEST = {
    "00000010": [("query the list", "a", "sql")],
    "00000002": [("a list", "a", "java|python")],
    "00000007": [("a", "a", "python")],
}


def write_questions(path, clients):
    with h5py.File(path, "w") as file:
        for name, rows in clients.items():
            group = file.create_group(f"examples/{name}")
            for place, column in enumerate(("tokens", "title", "tags")):
                texts = [row[place].encode() for row in rows]
                group.create_dataset(column, data=texts, dtype=h5py.string_dtype())
            group.create_dataset("score", data=np.arange(len(rows)))
            group.create_dataset("type", data=[b"question"] * len(rows))


def write_pixels(path, writers=("f0001_01", "f0000_14"), rows=8, top=61):
    rng = np.random.default_rng(len(path.name))
    with h5py.File(path, "w") as file:
        for name in writers:
            group = file.create_group(f"examples/{name}")
            pixels = rng.integers(0, 256, (rows, 28, 28)).astype(np.float32) / 255
            group.create_dataset("pixels", data=pixels)
            labels = rng.integers(0, top + 1, rows)
            labels[0] = top
            group.create_dataset("label", data=labels.astype(np.int32))


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "stackoverflow"
    place.mkdir()
    write_questions(place / "stackoverflow_train.h5", TRAIN)
    write_questions(place / "stackoverflow_test.h5", TEST)
    write_questions(place / "stackoverflow_held_out.h5", {"00000020": TRAIN["00000010"] * 2})
    counts = "".join(f"{word} {100 - i}\n" for i, word in enumerate(WORDS))
    (place / "stackoverflow.word_count").write_text(counts)
    (place / "stackoverflow.tag_count").write_text(json.dumps(TAGS))
    return place


def test_questions(folder):
    data = load(f"{folder}:tags=3,validation=0")
    assert data.clients == ("00000002", "00000010")  # 7 has no training row with a known tag.
    assert data.labels == ("python", "sql", "java")
    assert data.feature_names == tuple(WORDS)
    assert data.task == "multilabel"
    assert sparse.issparse(data.x)
    assert data.x.dtype == np.float32
    x, y = data.gather(data.rows("train").of(1))
    # Words that are not listed ("sort") count for nothing, and shares are of those that are.
    assert x == pytest.approx(
        np.array([[1, 3, 1, 0, 0, 1], [1, 0, 0, 0, 3, 1], [0] * 6]) / [[6], [5], [1]]
    )
    assert y.tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 0]]
    x, y = data.gather(data.rows("test").of(0))
    assert x == pytest.approx(np.array([[0, 1, 0, 0, 0, 2]]) / 3)
    assert y.tolist() == [[1, 0, 1]]
    assert data.rows("train").counts.tolist() == [2, 3]
    assert data.disclosed == ()
    assert describe(data)["text"].startswith("6 words of tokens and title")


def test_how_words_are_known(folder, tmp_path):
    assert load(f"{folder}:words=2").feature_names == ("the", "list")
    (tmp_path / "words.txt").write_text("query\nsort\n")
    listed = load(f"{folder}:vocabulary={tmp_path / 'words.txt'}")
    assert listed.feature_names == ("query", "sort")
    hashed = load(f"{folder}:hash=32")
    assert (hashed.feature_names, hashed.input_shape) == (None, (32,))
    (folder / "stackoverflow.word_count").unlink()
    counted = load(f"{folder}:words=2")
    assert counted.feature_names == ("a", "in")  # Both clients use them, and "list", "the".
    assert "2 words" in counted.disclosed[0]
    fingerprints = {data.fingerprint() for data in (listed, hashed, counted)}
    assert len(fingerprints) == 3


def test_the_same_numbers_under_other_words_are_other_data(folder, tmp_path):
    (tmp_path / "words.txt").write_text("zebra\nquery\n")
    (tmp_path / "others.txt").write_text("xylophone\nquery\n")
    one = load(f"{folder}:vocabulary={tmp_path / 'words.txt'}")
    two = load(f"{folder}:vocabulary={tmp_path / 'others.txt'}")
    assert (one.x != two.x).nnz == 0
    assert one.fingerprint() != two.fingerprint()


def test_only_as_many_clients_are_read_as_are_asked_for(folder, monkeypatch):
    read = []
    rows = hdf5._File.rows
    monkeypatch.setattr(
        hdf5._File, "rows", lambda self, name, kind: read.append(name) or rows(self, name, kind)
    )
    data = load(f"{folder}:clients=1")
    assert data.clients == ("00000002",)
    assert set(read) == {"00000002"}
    read.clear()
    assert load(f"{folder}:min_rows=4,clients=1").clients == ("00000010",)
    assert set(read) == {"00000002", "00000007", "00000010"}
    with pytest.raises(PmtlError, match="clients=3 was asked for, but there are 2"):
        load(f"{folder}:clients=3")


def test_progress_is_shown_to_who_asks(folder, capfd):
    load(folder)
    assert capfd.readouterr().err == ""
    load(folder, progress=True)
    assert "reading clients" in capfd.readouterr().err
    with pytest.raises(PmtlError, match=r"no option .* named 'progress'"):
        load(f"{folder}:progress=true")


def test_one_file_is_split_here(folder):
    data = load(folder / "stackoverflow_held_out.h5")
    assert data.clients == ("00000020",)
    assert data.rows("test").counts.tolist() == [1]
    assert data.labels == ("python", "sql", "java", "css")


def test_pixels(tmp_path):
    for split in ("train", "test"):
        write_pixels(tmp_path / f"fed_emnist_{split}.h5")
    data = load(f"{tmp_path}:min_rows=16,clients=2")
    assert data.clients == ("f0000_14", "f0001_01")
    assert (data.input_shape, data.outputs, data.task) == ((28, 28), 62, "classification")
    assert data.labels[10] == "A"
    assert data.labels[61] == "z"
    assert data.rows("test").counts.tolist() == [8, 8]
    with h5py.File(tmp_path / "fed_emnist_test.h5") as file:
        group = file["examples/f0001_01"]
        x, y = data.gather(data.rows("test").of(1))
        assert (x == group["pixels"][()]).all()
        assert (y == group["label"][()]).all()
    write_pixels(tmp_path / "digits.h5", top=9)
    assert load(tmp_path / "digits.h5").outputs == 10
    with pytest.raises(PmtlError, match="holds pixels"):
        load(f"{tmp_path / 'digits.h5'}:words=3")


def change(path, edit):
    with h5py.File(path, "a") as file:
        edit(file)


def replaced(group, name, value):
    del group[name]
    group[name] = value


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda f: f.move("examples", "clients"), "no group 'examples'"),
        (lambda f: replaced(f, "examples", [1, 2]), "no group 'examples'"),
        (lambda f: f["examples/00000002"].pop("title"), "has score, tags, tokens, type"),
        (lambda f: f["examples/00000010"].pop("tags"), "'00000010'.*no column 'tags'"),
        (lambda f: replaced(f["examples/00000010"], "title", [b"a"]), "title has 1"),
        (lambda f: replaced(f["examples/00000010"], "title", [1.5, 2, 3]), "float64.*not text"),
        (lambda f: replaced(f["examples"], "00000010", [1]), "'00000010'.*not a group"),
        (lambda f: [f["examples"].pop(name) for name in TRAIN], "no clients"),
    ],
)
def test_files_of_another_layout(folder, edit, words):
    change(folder / "stackoverflow_train.h5", edit)
    with pytest.raises(PmtlError, match=words) as caught:
        load(folder)
    assert "stackoverflow" in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda g: replaced(g, "pixels", np.zeros((8, 27, 28))), r"\(27, 28\).*\(28, 28\)"),
        (lambda g: replaced(g, "label", np.zeros(8)), "one whole number for each"),
        (lambda g: replaced(g, "pixels", np.full((8, 28, 28), np.nan)), "missing value"),
    ],
)
def test_pixels_that_are_none(tmp_path, edit, words):
    write_pixels(tmp_path / "d.h5")
    change(tmp_path / "d.h5", lambda file: edit(file["examples/f0001_01"]))
    with pytest.raises(PmtlError, match=words):
        load(tmp_path / "d.h5")


def test_a_file_that_is_cut_short(folder):
    path = folder / "stackoverflow_train.h5"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(PmtlError, match=r"train\.h5 cannot be read as HDF5.*cut short"):
        load(folder)


def objects(raw):
    """Where the heads of objects on the file's heaps begin."""
    at = raw.find(b"GCOL")
    while at >= 0:
        place, end = at + 16, at + int.from_bytes(raw[at + 8 : at + 16], "little")
        while place + 16 <= end:
            yield place
            number = int.from_bytes(raw[place : place + 2], "little")
            size = int.from_bytes(raw[place + 8 : place + 16], "little")
            place += size if number == 0 else 16 + -(-size // 8) * 8
        at = raw.find(b"GCOL", end)


@pytest.mark.parametrize("chunks", [None, (2,)])
@pytest.mark.parametrize("size", [0, 2**64 - 16, 2**64 - 1, 2**40])
def test_heaps_in_which_the_library_would_get_lost(tmp_path, chunks, size):
    path, known = tmp_path / "d.h5", tmp_path / "tags.txt"
    known.write_text("sql\n")
    with h5py.File(path, "w") as file:
        for column in ("tokens", "title", "tags"):
            texts = {"data": [b"sql"] * 4, "dtype": h5py.string_dtype(), "chunks": chunks}
            file.create_dataset(f"examples/a/{column}", **texts)
    assert load(f"{path}:taglist={known}").m == 1
    raw = bytearray(path.read_bytes())
    *_, free = objects(bytes(raw))
    raw[free : free + 2] = (0 if size == 0 else 9).to_bytes(2, "little")
    raw[free + 8 : free + 16] = size.to_bytes(8, "little")
    path.write_bytes(raw)
    with pytest.raises(PmtlError, match=r"d\.h5 cannot be read.*heap of text"):
        load(f"{path}:taglist={known}")


def test_texts_that_are_not_where_they_point(folder):
    path = folder / "stackoverflow_train.h5"
    with h5py.File(path) as file:
        place = file["examples/00000010/title"].id.get_offset()
    raw = path.read_bytes()
    for at, value in ((0, 200), (12, 4000), (4, 8)):  # length, number, address
        path.write_bytes(raw[: place + at] + value.to_bytes(4, "little") + raw[place + at + 4 :])
        with pytest.raises(PmtlError, match=r"train\.h5 cannot be read.*heap of text"):
            load(folder)
    path.write_bytes(raw)
    whole_numbers = h5py.vlen_dtype(np.int32)

    def lists(file):
        group = file["examples/00000010"]
        del group["title"]
        group.create_dataset("title", (3,), whole_numbers)

    change(path, lists)
    with pytest.raises(PmtlError, match="neither text nor numbers"):
        load(folder)


def test_a_column_that_claims_too_much(tmp_path, monkeypatch):
    write_pixels(tmp_path / "d.h5")
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", str(8 * 28 * 28 * 4))
    assert load(tmp_path / "d.h5").m == 2
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", str(8 * 28 * 28 * 4 - 1))
    with pytest.raises(PmtlError, match="more than the file or memory can hold"):
        load(tmp_path / "d.h5")
    monkeypatch.undo()
    with h5py.File(tmp_path / "d.h5", "w") as file:
        group = file.create_group("examples/a")
        group.create_dataset("pixels", (2**18, 28, 28), "f4", chunks=(1, 28, 28))
        group.create_dataset("label", data=np.zeros(3, dtype=np.int32))
    with pytest.raises(PmtlError, match="more than the file or memory can hold"):
        load(tmp_path / "d.h5")


def test_files_and_packages_that_are_missing(folder, monkeypatch):
    (folder / "stackoverflow.tag_count").unlink()
    with pytest.raises(PmtlError, match=r"no list of tags.*taglist=FILE"):
        load(folder)
    (folder / "stackoverflow_test.h5").unlink()
    with pytest.raises(PmtlError, match=r"one file that ends in _test\.h5, and has 0"):
        load(folder)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(PmtlError, match=r"pmtl\[hdf5\]"):
        load(folder / "stackoverflow_train.h5")
