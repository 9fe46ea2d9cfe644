"""Damaged data files: refused in a sentence that names the file, or read as a whole federation."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from fuzzing import damaged, fuzz, judge
from hypothesis import given
from hypothesis import strategies as st
from invariants import check_federation
from new_rows import features_of
from PIL import Image
from scipy import sparse

from pmtl.data import load
from pmtl.errors import PmtlError

ROWS, USERS = 12, ("ann", "bob", "çy")
RANDOM = np.random.default_rng(3)
X = RANDOM.integers(-8, 8, (ROWS, 3)).astype(np.float32) / 4
Y = RANDOM.integers(0, 3, ROWS)
CLIENT = np.repeat(USERS, ROWS // 3)
SPLIT = np.array(["train", "train", "validation", "test"] * 3)


def arrays() -> dict[str, np.ndarray]:
    return {"x": X, "y": Y, "client": CLIENT, "split": SPLIT}


def sparse_arrays() -> dict[str, np.ndarray]:
    m = sparse.csr_matrix(X)
    parts = {"x_data": m.data, "x_indices": m.indices, "x_indptr": m.indptr, "x_shape": m.shape}
    return {"y": Y, "client": CLIENT, **{name: np.array(part) for name, part in parts.items()}}


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(columns: dict[str, np.ndarray], save=np.savez) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **columns)
    return buffer.getvalue()


def table(between: str) -> bytes:
    head = between.join(("client", "split", "target", "a", "b", "c"))
    rows = zip(CLIENT, SPLIT, Y, *X.T, strict=True)
    return "\n".join([head, *(between.join(map(str, row)) for row in rows), ""]).encode()


def parquet(**options: object) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"client": CLIENT, "split": SPLIT, "target": Y, "a": X[:, 0], "b": Y > 0}
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer, row_group_size=5, **options)
    return buffer.getvalue()


def shard(rows: slice = slice(0, None)) -> bytes:
    owned = {user: np.flatnonzero(user == CLIENT)[rows] for user in USERS}
    content = {
        "users": list(owned),
        "num_samples": [len(index) for index in owned.values()],
        "user_data": {
            user: {"x": X[index].tolist(), "y": Y[index].tolist()} for user, index in owned.items()
        },
    }
    return json.dumps(content, ensure_ascii=False).encode()


def zipped(**options: object) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        archive.writestr("leaf/train/a.json", shard(slice(0, 3)))
        archive.writestr("leaf/test/a.json", shard(slice(3, None)))
    return buffer.getvalue()


def picture(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(RANDOM.integers(0, 256, (6, 5, 3), dtype=np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def pictures() -> dict[str, bytes]:
    kinds = ("png", "jpeg", "gif", "bmp", "ppm", "webp")
    names = [f"{kind}.{kind}" for kind in kinds]
    rows = {"x": names, "y": [0, 1] * (len(names) // 2)}
    content = {"users": ["u"], "num_samples": [len(names)], "user_data": {"u": rows}}
    images = {f"images/{name}": picture(kind) for name, kind in zip(names, kinds, strict=True)}
    return {"data.json": json.dumps(content).encode(), **images}


#: Format → its files (one, or all of a folder) and what is read.
IMAGES = RANDOM.integers(0, 2, (ROWS, 3, 2)).astype(np.float32)
TEXTS = [f"{'one two three'[: 3 + row]} — {row}" for row in range(ROWS)]
TAGS = ["net", "doc|net", "doc", "rare|doc"] * 3


def hdf5(columns: dict[str, np.ndarray]) -> bytes:
    """TensorFlow Federated's layout."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for user in USERS:
            for name, column in columns.items():
                file[f"examples/{user}/{name}"] = column[user == CLIENT]
    return buffer.getvalue()


def questions(kind: np.dtype | None = None) -> dict[str, np.ndarray]:
    """Text of fixed length, or of another kind."""
    texts = np.array([text.encode() for text in TEXTS])
    columns = {"tokens": texts, "title": texts, "tags": np.array([tag.encode() for tag in TAGS])}
    return columns if kind is None else {n: c.astype(kind) for n, c in columns.items()}


def text_table() -> bytes:
    rows = zip(CLIENT, SPLIT, TAGS, TEXTS, strict=True)
    return "\n".join(["client\tsplit\ty\ttext", *map("\t".join, rows), ""]).encode()


FORMATS: dict[str, tuple[dict[str, bytes], str]] = {
    "npz": ({"d.npz": npz(arrays())}, "d.npz"),
    "npz, compressed": ({"d.npz": npz(arrays(), np.savez_compressed)}, "d.npz"),
    "npz, sparse": ({"d.npz": npz(sparse_arrays())}, "d.npz"),
    "folder of npy": (
        {f"hospitals/{name}.npy": npy(part) for name, part in arrays().items()},
        "hospitals",
    ),
    "folder of npy, sparse": (
        {f"hospitals/{name}.npy": npy(part) for name, part in sparse_arrays().items()},
        "hospitals",
    ),
    "csv": ({"d.csv": table(",")}, "d.csv"),
    "tsv": ({"d.tsv": table("\t")}, "d.tsv"),
    "csv.gz": ({"d.csv.gz": gzip.compress(table(","), mtime=0)}, "d.csv.gz"),
    "parquet": ({"d.parquet": parquet()}, "d.parquet"),
    "parquet, plain": (
        {"d.parquet": parquet(use_dictionary=False, compression="none", version="1.0")},
        "d.parquet",
    ),
    "parquet, zstd": ({"d.pq": parquet(compression="zstd", data_page_version="2.0")}, "d.pq"),
    "LEAF json": ({"d.json": shard()}, "d.json"),
    "LEAF zip": ({"d.zip": zipped(compression=zipfile.ZIP_DEFLATED)}, "d.zip"),
    "LEAF zip, stored": ({"d.zip": zipped()}, "d.zip"),
    "LEAF folder": (
        {
            "hospitals/train/a.json": shard(slice(0, 3)),
            "hospitals/test/a.json": shard(slice(3, None)),
        },
        "hospitals",
    ),
    "LEAF images": (pictures(), "data.json:images=images,size=4"),
    "HDF5, pixels": ({"d.h5": hdf5({"pixels": IMAGES, "label": Y})}, "d.h5"),
    "HDF5, text": (
        {"d.h5": hdf5(questions()), "tags.json": b'{"net": 3, "doc": 2}'},
        "d.h5:taglist=tags.json,hash=16",
    ),
    "HDF5, text on heaps": (
        {"d.h5": hdf5(questions(h5py.string_dtype())), "tags.json": b'{"net": 3, "doc": 2}'},
        "d.h5:taglist=tags.json,hash=16",
    ),
    "text": (
        {"d.tsv": text_table(), "words.txt": b"one 9\ntwo 5\nthree 1\n"},
        "d.tsv:text=text,vocabulary=words.txt,tags=2",
    ),
    "text, gzip": ({"d.tsv.gz": gzip.compress(text_table(), mtime=0)}, "d.tsv.gz:text=text"),
}


LISTS = ("words.txt", "tags.json")


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch, silent):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_the_undamaged_files_are_read(name, tmp_path):
    files, spec = FORMATS[name]
    put(tmp_path, files)
    data = load(spec)
    check_federation(data)
    assert data.m == (1 if name == "LEAF images" else 3)


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(name, tmp_path):
    files, spec = FORMATS[name]
    put(tmp_path, files)

    @fuzz(25)
    @given(st.data())
    def damage(data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(sorted(files)))
        put(tmp_path, {victim: data.draw(damaged(files[victim]))})
        # A list of names with other names in it is a list, and what it does to the rows is told.
        told = spec.partition(":")[0] if victim in LISTS else Path(victim).parts[0]
        judge(name, lambda: load(spec), check_federation, mention=told)
        put(tmp_path, {victim: files[victim]})

    damage()


ENDINGS = ("npz", "csv", "tsv", "csv.gz", "parquet", "json", "zip", "h5")


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_of_another_kind(ending):
    contents = {"": b"", "npy": npy(X)}
    contents |= {next(iter(files)): next(iter(files.values())) for files, _ in FORMATS.values()}
    for name, content in contents.items():
        if not name.endswith(f".{ending}"):
            Path(f"wrong.{ending}").write_bytes(content)
            load_wrong = partial(load, f"wrong.{ending}")
            judge("wrong ending", load_wrong, check_federation, mention="wrong")
    Path("d.exe").write_bytes(b"MZ")
    Path(f"folder.{ending}").mkdir()
    for path in ("d.exe", f"folder.{ending}"):
        with pytest.raises(PmtlError, match=path):
            load(path)


NEW_ROWS: dict[str, bytes] = {
    "rows.npy": npy(X),
    "rows.npz": npz({"x": X}, np.savez_compressed),
    "rows.csv": b"c,a,b\n" + b"".join(b"%d,0.5,-1\n" % row for row in range(9)),
    "rows.parquet": parquet(),
}


@pytest.mark.parametrize("name", NEW_ROWS)
@pytest.mark.parametrize("named", [True, False])
def test_damaged_rows_to_predict_on(name, named):
    shape, names = ((2,), ["a", "b"]) if named and name[-1] in "vt" else ((3,), None)

    def rows(x: np.ndarray) -> None:
        assert x.dtype == np.float32
        assert x.shape[1:] == shape
        assert len(x)
        assert np.isfinite(x).all()

    @fuzz(20)
    @given(damaged(NEW_ROWS[name]))
    def damage(content: bytes) -> None:
        Path(name).write_bytes(content)
        judge("rows to predict on", lambda: features_of(name, shape, names), rows, mention=name)

    damage()
