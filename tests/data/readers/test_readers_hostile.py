"""What fuzzing found, by name: files that once crashed a reader, misled it or took all memory."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import zipfile
import zlib
from collections import namedtuple
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from fuzzing import little_memory
from new_rows import features_of
from PIL import Image
from pyarrow import parquet
from scipy import sparse

from pmtl.data import FederatedData, load
from pmtl.data.readers.columns import assign_roles
from pmtl.errors import PmtlError

Y, CLIENT = np.arange(12) % 2, np.arange(12) % 3


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(spec: object, words: str, **options: object) -> None:
    with little_memory(), pytest.raises(PmtlError, match=words):
        load(str(spec), **options)


def shard(x: list, y: list, **changes: object) -> dict:
    return {"users": ["u"], "num_samples": [len(x)], "user_data": {"u": {"x": x, "y": y}}} | changes


# --- NumPy ---


def npy(descr: str, shape: str, body: bytes) -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body


def put(kind: str, **members: bytes) -> str:
    """An .npz (stored or compressed) or a folder with y, client and these members."""
    buffers = {"y": io.BytesIO(), "client": io.BytesIO()}
    np.save(buffers["y"], Y)
    np.save(buffers["client"], CLIENT)
    content = {name: buffer.getvalue() for name, buffer in buffers.items()} | members
    if kind == "folder":
        Path("hospitals").mkdir()
        for name, raw in content.items():
            Path(f"hospitals/{name}.npy").write_bytes(raw)
        return "hospitals"
    with zipfile.ZipFile("d.npz", "w", zipfile.ZIP_DEFLATED if kind == "packed" else 0) as archive:
        for name, raw in content.items():
            archive.writestr(f"{name}.npy", raw)
    return "d.npz"


KINDS = pytest.mark.parametrize("kind", ["stored", "packed", "folder"])
BODY = np.zeros(36, dtype="<f4").tobytes()


@KINDS
@pytest.mark.parametrize("limit", [None, "10"])
def test_a_header_that_claims_a_trillion_rows(kind, limit, monkeypatch):
    """Nothing is allocated; and a map does not run on into the members that follow."""
    if limit:
        monkeypatch.setenv("PMTL_MEMORY_LIMIT", limit)
    for shape in ("(1000000000000, 3)", "(13, 3)", "(11, 3)", "(-12, -3)", "(True, 36)"):
        refused(put(kind, x=npy("'<f4'", shape, BODY)), "x.npy .*144 bytes cannot be")
        shutil.rmtree("hospitals", ignore_errors=True)
    refused(put(kind, x=npy("'<U0'", "(1000000000000, 3)", b"")), "x.npy .*cannot be")


@KINDS
@pytest.mark.parametrize("header", ["'<f4", "(((", "\x00", "'\\", "__import__('os')"])
def test_a_header_that_is_not_what_numpy_writes(kind, header):
    refused(put(kind, x=npy(header, "(12, 3)", BODY)), r"x\.npy of .* not a readable NumPy array")


@KINDS
def test_a_pickle_is_never_opened(kind):
    class Harm:
        def __reduce__(self):
            return Path.touch, (Path("harm"),)

    harm = pickle.dumps([Harm()] * 36)
    for descr in ("'|O'", "[('a', '|O')]", "('|O', (3,))"):
        refused(put(kind, x=npy(descr, "(12, 3)", harm)), "Python objects|cannot be|not a readable")
        shutil.rmtree("hospitals", ignore_errors=True)
    assert not Path("harm").exists()


@pytest.mark.parametrize("order", "<>")
def test_characters_that_unicode_does_not_have(order):
    """As Python strings they corrupted the process."""
    names = np.array(["a", "b"] * 6, dtype=f"{order}U1")
    names.view(f"{order}u4")[7] = 0x110000
    np.savez("d.npz", x=np.eye(12), y=Y, client=names)
    refused("d.npz", "client of row 7 .*not a Unicode character")
    np.savez("d.npz", x=np.eye(12), y=Y, client=CLIENT, split=names)
    refused("d.npz", "split of row 7 .*not a Unicode character")


@pytest.mark.parametrize("last", [-5, 0, 11, 13, 2**62])
def test_sparse_rows_that_end_before_they_begin(last):
    """SciPy's own check lets a negative end pass, and writes outside of its arrays."""
    m = sparse.csr_matrix(np.eye(12))
    indptr = m.indptr.astype(np.int64)
    indptr[-1] = last
    parts = {"x_data": m.data, "x_indices": m.indices, "x_indptr": indptr, "x_shape": [12, 12]}
    np.savez("d.npz", y=Y, client=CLIENT, **parts)
    refused("d.npz", "not the parts of a CSR matrix: x_indptr begins with 0 and ends")


@pytest.mark.parametrize(
    ("part", "value"),
    [("x_indices", -1), ("x_indices", 12), ("x_indptr", 99), ("x_shape", -12), ("x_data", "a")],
)
def test_sparse_parts_that_point_elsewhere(part, value):
    m = sparse.csr_matrix(np.eye(12))
    parts = {"x_data": m.data, "x_indices": m.indices, "x_indptr": m.indptr}
    parts = {**parts, "x_shape": np.array(m.shape)}
    parts[part] = np.array(parts[part].tolist())
    parts[part] = np.where(np.arange(len(parts[part])) == 1, value, parts[part])
    np.savez("d.npz", y=Y, client=CLIENT, **parts)
    refused("d.npz", "not the parts of a CSR matrix")


def test_sparse_rows_that_no_memory_can_hold():
    m = sparse.csr_matrix(np.eye(12))
    parts = {"x_data": m.data, "x_indices": m.indices, "x_indptr": m.indptr, "x_shape": [12, 2**60]}
    np.savez("d.npz", y=Y, client=CLIENT, **parts)
    refused("d.npz", "sparse rows of .* columns")


def test_sparse_entries_that_are_too_large_together():
    parts = {"x_data": np.full(2, 3e38, "f4"), "x_indices": [0, 0], "x_indptr": [0, 2, 2]}
    np.savez("d.npz", y=[0, 1], client=[0, 0], x_shape=[2, 1], **parts)
    refused("d.npz", "inf.*row 0, column 0")


def test_no_room_is_told_before_the_disk_is_full(monkeypatch):
    np.savez_compressed("d.npz", x=np.eye(12), y=Y, client=CLIENT)
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "500")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9, 9, 700))
    refused("d.npz", "1,280 bytes are needed, but 700 are free")


# --- names ---


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2)])
def test_client_ids_that_are_not_utf_8_never_merge(kind):
    """Two clients that became one would be hidden as one."""
    names = [b"a\xff", b"a\xfe"] * 6
    columns = {"client": pa.array(names, kind), "v": pa.array(range(12)), "y": pa.array(Y)}
    parquet.write_table(pa.table(columns), "d.parquet", row_group_size=1)
    refused("d.parquet", r"b'a\\xff' and b'a\\xfe' .*as text they become equal")
    np.savez("d.npz", x=np.eye(12), y=Y, client=np.array(names))
    refused("d.npz", "as text they become equal")
    with pytest.raises(PmtlError, match="as text they become equal"):
        FederatedData.from_arrays(np.eye(12), Y, np.array(names, dtype=object))
    with pytest.raises(PmtlError, match="as text they become equal"):
        FederatedData.from_arrays(np.eye(2), [0, 1], np.array([b"\xff", "\ufffd"], dtype=object))


def test_text_that_is_not_utf_8():
    Path("d.csv").write_bytes(b"client,v\xff,y\na,1,0\n")
    refused("d.csv", "d.csv is not UTF-8 text")
    columns = {"client": pa.array(["aaaa"] * 12), "v": pa.array(range(12)), "y": pa.array(Y)}
    parquet.write_table(pa.table(columns), "d.parquet", use_dictionary=False, compression="none")
    raw = Path("d.parquet").read_bytes()
    Path("d.parquet").write_bytes(raw.replace(b"aaaa\x04", b"a\xff\xff\xff\x04"))
    refused("d.parquet", "d.parquet cannot be read as a table: 'utf-8'")


def test_names_of_very_many_digits():
    names = ["9" * 5000, "10"]
    data = FederatedData.from_arrays(np.eye(12), Y, np.array(names * 6))
    assert data.clients == ("10", "9" * 5000)


@pytest.mark.parametrize("client", [1e300, -1e19, float("inf")])
def test_floats_that_no_integer_can_be(client):
    with pytest.raises(PmtlError, match=r"too large|has no client"):
        FederatedData.from_arrays(np.eye(2), [0, 1], [1.0, client])


def test_very_many_columns():
    """Looking for one that is there twice would take hours if each were held against all."""
    names = [f"c{k}" for k in range(300_000)]
    assert len(assign_roles(["client", "y", *names], "it").features) == 300_000
    with pytest.raises(PmtlError, match="more than one column named 'c7'"):
        assign_roles(["client", "y", *names, "c7"], "it")


# --- LEAF ---


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        (json.dumps(shard([[10**400]], [0])), "'u'.*not rows of numbers"),
        (json.dumps(shard([[1.0]], [10**400])), "y of the user 'u'"),
        (json.dumps(shard([[1.0]] * 2, ["a", 1])), "y of the user 'u'"),
        (json.dumps(shard([[1.0]] * 2, [["a"], ["b"]])), "y of the user 'u'"),
        (json.dumps(shard([[1.0]], [0], num_samples=[None])), "says None"),
    ],
    ids=["deep", "large x", "large y", "mixed y", "nested text", "counts"],
)
def test_json_that_no_array_can_hold(content, words):
    Path("d.json").write_text(content)
    refused("d.json", words)


def test_one_long_class_name_does_not_widen_all_others():
    names = ["n" * 10**6, *("ab" * 10_000)]
    Path("d.json").write_text(json.dumps(shard([[1.0]] * len(names), names)))
    with little_memory():
        data = load("d.json")
    assert data.outputs == 3


def test_a_zip_that_unpacks_to_more_than_memory(monkeypatch):
    with zipfile.ZipFile("d.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", b" " * 10**7)
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "1000000")
    refused("d.zip", r"a\.json in d\.zip unpacks to 10,000,000 bytes")


@pytest.mark.parametrize("flag", [(4, 99), (6, 1), (8, 99)], ids=["version", "secret", "method"])
@pytest.mark.parametrize("ending", ["zip", "npz"])
def test_a_zip_that_is_not_understood(flag, ending):
    """Versions, encryption and packings that zipfile refuses in ways of its own."""
    place, value = flag
    buffer = io.BytesIO()
    if ending == "npz":
        np.savez(buffer, x=np.eye(12), y=Y, client=CLIENT)
    else:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("a.json", json.dumps(shard([[1.0]], [0])))
    raw = bytearray(buffer.getvalue())
    for mark, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        raw[raw.index(mark) + place + shift] = value
    Path(f"d.{ending}").write_bytes(raw)
    refused(f"d.{ending}", rf"d\.{ending}.* is not a (complete|readable)")


def pictures(*names: str) -> None:
    Path("img").mkdir()
    Path("d.json").write_text(json.dumps(shard(list(names), [0] * len(names))))


@pytest.mark.parametrize("name", ["../secret.png", "/{}/secret.png", "a/../../secret.png"])
def test_images_outside_of_their_folder_are_not_opened(name, tmp_path):
    Image.new("RGB", (2, 2)).save("secret.png")
    pictures(name.format(tmp_path))
    refused("d.json", "is outside of", images="img", size=2)


def test_an_image_of_too_many_pixels():
    pictures("a.png")
    Image.new("RGB", (1, 1)).save("img/a.png")
    raw = bytearray(Path("img/a.png").read_bytes())
    for side in ((100_000, 100_000), (10_000, 10_000)):  # Beyond Pillow's error, and its warning.
        raw[16:24] = struct.pack(">II", *side)
        raw[29:33] = struct.pack(">I", zlib.crc32(raw[12:29]))
        Path("img/a.png").write_bytes(raw)
        refused("d.json", r"a\.png cannot be read .*exceeds limit", images="img", size=2)


@pytest.mark.parametrize("kind", ["eps", "tiff", "pdf"])
def test_pictures_that_are_programs_or_worse_are_not_decoded(kind):
    pictures("a.png")
    Image.new("RGB", (2, 2)).save(f"a.{kind}")
    Path(f"a.{kind}").rename("img/a.png")
    refused("d.json", r"a\.png cannot be read .*cannot identify", images="img", size=2)


@pytest.mark.parametrize("size", [0, -1, 10**6])
def test_a_size_that_no_image_has(size):
    pictures("a.png")
    refused("d.json", f"size={size} was given", images="img", size=size)


# --- where and how much ---


@pytest.mark.parametrize("spec", ["~nobody-at-all/d.csv", "d\x00.csv", "d\x00.csv:target=y"])
def test_paths_that_are_none(spec):
    refused(spec, "is not a path")


@pytest.mark.parametrize("option", ["clients", "features", "samples", "classes"])
def test_a_synthetic_federation_larger_than_the_machine(option):
    refused(f"synthetic:{option}={10**15}", "more than this machine has")


def test_more_classes_than_anybody_has():
    np.savez("d.npz", x=np.eye(12), y=np.array(["a", "b"] * 6), client=CLIENT)
    refused("d.npz", "1,000,000 at most", outputs=10**12)
    np.savez("d.npz", x=np.eye(12), y=Y * 2**60, client=CLIENT)
    refused("d.npz", "no more than 1,000,000 classes", task="classification")


@pytest.mark.parametrize("names", [None, ("v", "w")])
def test_a_header_that_is_no_text_in_rows_to_predict_on(names, tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"\x80,w\n1,2\n")
    with pytest.raises(PmtlError, match=r"rows\.csv is not UTF-8 text"):
        features_of(tmp_path / "rows.csv", (2,), names)
