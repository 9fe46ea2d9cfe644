"""Whole files with odd content: refused in a sentence that names the file, or read as promised."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fuzzing import fuzz, judge, mostly
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import check_federation
from pyarrow import parquet

from pmtl.data import load
from pmtl.data.load import COMMON
from pmtl.spec import format_spec


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch, silent):
    monkeypatch.chdir(tmp_path)


def read(what: str, path: str, content: bytes, **options: Any) -> None:
    Path(path).write_bytes(content)
    judge(what, lambda: load(path, **options), check_federation, mention=Path(path).name)


WORDS = st.one_of(
    st.sampled_from(["a", "b", "007", "7", "1.0", "\x00", " a", "\ufffd", "ü" * 9, "x" * 2000]),
    st.text(max_size=5),
)
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([2**31, 2**63, -(2**70), 10**400, 1e39, float("nan"), float("inf"), -0.0]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)

# --- options ---

OPTIONS = st.dictionaries(
    st.sampled_from(
        [
            *(*COMMON, "client", "target", "split", "drop", "images", "size"),
            *("text", "words", "vocabulary", "hash", "tags", "taglist"),
        ]
    ),
    st.one_of(
        st.integers(-1, 4),
        st.floats(0, 1),
        st.sampled_from(["10" * 9, "1" + "0" * 400, "nan", "client", "a+b", "regression", "."]),
        WORDS,
    ),
    max_size=2,
)


@fuzz(60)
@given(OPTIONS, st.sampled_from(["d.csv", "d.json"]))
def test_any_options(options, name):
    rows = "".join(f"{'uv'[i % 2]},{i % 3},{i},0\n" for i in range(9))
    Path("d.csv").write_text("client,y,a,b\n" + rows)
    Path("d.json").write_text(json.dumps(SHARD))
    spec = format_spec(name, options)
    judge("options", lambda: load(spec), check_federation)


# --- NumPy ---

DTYPES = st.one_of(
    st.sampled_from(["<f4", ">f8", "f2", "g", "?", "i1", ">i4", "u8", "<U3", ">U2", "S3", "S1"]),
    st.sampled_from(["c8", "M8[s]", "m8[ms]", "<U1", "i4,f4"]),
)


def columns(rows: int) -> st.SearchStrategy[Any]:
    """An array of some type with (mostly) so many rows."""
    shapes = mostly(st.sampled_from([(rows,), (rows, 2)]), st.sampled_from([(), (0,), (rows, 0)]))
    return st.builds(lambda *a: a, DTYPES, shapes).flatmap(lambda a: hnp.arrays(*a))


@st.composite
def npz_arrays(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.integers(1, 6))
    good = {
        "x": hnp.arrays("f4", (rows, 2), elements=st.floats(-9, 9, width=32)),
        "y": hnp.arrays("i8", rows, elements=st.integers(0, 2)),
        "client": hnp.arrays("U3", rows, elements=st.sampled_from(["a", "b"])),
        "split": hnp.arrays("U5", rows, elements=st.just("train")),
    }
    return {name: draw(mostly(usual, columns(rows))) for name, usual in good.items()}


@fuzz(80)
@given(npz_arrays())
def test_npz_of_any_types(arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    read("npz, odd content", "d.npz", buffer.getvalue())


@st.composite
def sparse_parts(draw: st.DrawFn) -> dict[str, Any]:
    indptr = np.sort(draw(hnp.arrays("i4", draw(st.integers(2, 5)), elements=st.integers(0, 5))))
    indptr[0] = 0
    n = int(indptr[-1])
    good = {
        "x_data": hnp.arrays("f4", n, elements=st.floats(-9, 9, width=32)),
        "x_indices": hnp.arrays("i4", n, elements=st.integers(0, 3)),
        "x_indptr": st.just(indptr),
        "x_shape": st.just(np.array([len(indptr) - 1, 4])),
    }
    odd = st.one_of(
        columns(n),
        hnp.arrays("i8", n, elements=st.integers(-(2**63), 2**63 - 1)),
        hnp.arrays("i4", len(indptr), elements=st.integers(-2, 6)),
        st.sampled_from([np.array([len(indptr) - 1, 2**62]), np.array([2**62, 4]), np.array(3)]),
    )
    parts = {name: draw(mostly(usual, odd)) for name, usual in good.items()}
    return parts | {"y": np.arange(len(indptr) - 1) % 2, "client": np.arange(len(indptr) - 1) % 2}


@fuzz(80)
@given(sparse_parts())
def test_sparse_parts_of_any_numbers(parts):
    buffer = io.BytesIO()
    np.savez(buffer, **parts)
    read("npz, odd sparse parts", "d.npz", buffer.getvalue())


HEADERS = st.builds(
    "{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}".format,
    st.one_of(
        st.sampled_from(["'<f4'", "'|O'", "'<U0'", "[('a', '<f4')]", "('<f4', (3,))", "'V0'", "3"]),
        st.text(max_size=5).map(repr),
    ),
    st.sampled_from(["True", "False", "1", "None"]),
    st.one_of(
        st.sampled_from(["(12, 3)", "(36,)", "()", "(1000000000000, 3)", "(-12, -3)", "(0, 3)"]),
        st.sampled_from(["(10**12,)", "(2L, 18L)", "[12, 3]", "(True, 36)", "(" * 300, "(9e9,)"]),
        st.lists(st.integers(-1, 2**65), max_size=3).map(lambda shape: str(tuple(shape))),
    ),
)


def raw_npy(header: str, body: bytes, version: int = 1) -> bytes:
    text = header.encode("latin1", "replace").ljust(118) + b"\n"
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + body


@fuzz(80)
@given(HEADERS, st.sampled_from([1, 2, 3, 9]), st.booleans())
def test_headers_that_claim_anything(header, version, zipped):
    x = raw_npy(header, np.zeros(36, dtype="<f4").tobytes(), version)
    others = {"y": np.arange(12) % 2, "client": np.arange(12) % 2}
    if zipped:
        buffer = io.BytesIO()
        np.savez(buffer, **others)
        with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", x)
        read("npz, odd header", "d.npz", buffer.getvalue())
    else:
        Path("hospitals").mkdir(exist_ok=True)
        for name, array in others.items():
            np.save(f"hospitals/{name}.npy", array)
        Path("hospitals/x.npy").write_bytes(x)
        judge("npy, odd header", lambda: load("hospitals"), check_federation, mention="hospitals")


# --- tables ---

CELLS = st.one_of(
    NUMBERS.map(str),
    WORDS,
    st.sampled_from(["", '"', '"a\n"', "a,b", "\t", "\r", "true", "NULL", "nan", "-inf", "1e999"]),
)


@st.composite
def tables(draw: st.DrawFn, between: str) -> bytes:
    head = draw(mostly(st.just(["client", "y", "a", "b"]), st.lists(CELLS, max_size=5)))
    usual = st.tuples(st.sampled_from("ab"), st.sampled_from("012"), *[st.integers(-9, 9)] * 2)
    odd = st.one_of(st.lists(CELLS, min_size=4, max_size=4), st.lists(CELLS, max_size=6))
    rows = draw(st.lists(mostly(usual, odd), max_size=8))
    ends = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    text = ends.join(between.join(map(str, row)) for row in [head, *rows])
    return draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"])) + text.encode(
        "utf-8", "surrogatepass"
    )


@fuzz(80)
@given(st.sampled_from([",", "\t"]).flatmap(lambda s: st.tuples(st.just(s), tables(s))))
def test_tables_of_any_cells(drawn):
    between, content = drawn
    kind = "csv" if between == "," else "tsv"
    read(f"{kind}, odd content", f"d.{kind}", content)


@fuzz(60)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), CELLS, CELLS), max_size=8),
    st.sampled_from([{}, {"words": 3}, {"hash": 4}]),
    st.sampled_from([{}, {"tags": 2}]),
)
def test_text_of_any_cells(rows, words, tags):
    lines = ["client\ty\tt", *("\t".join(row) for row in rows)]
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    read("text, odd content", "d.tsv", content, text="t", **words, **tags)


INSTANTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 1, 1))
TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int64(): st.integers(0, 2),
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): WORDS,
    pa.large_string(): WORDS,
    pa.string_view(): WORDS,
    pa.binary(): st.binary(max_size=3),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.decimal128(9, 2): st.decimals(-9, 9, places=2),
    pa.date32(): st.dates(date(1, 1, 1)),
    pa.timestamp("us"): INSTANTS,
    pa.timestamp("ns"): st.integers(-(2**62), 2**62),
    pa.timestamp("s"): st.integers(-(2**62), 2**62),
    pa.time64("us"): st.times(),
    pa.duration("s"): st.integers(-(2**62), 2**62),
    pa.null(): st.none(),
    pa.list_(pa.int8()): st.lists(st.integers(0, 9), max_size=2),
    pa.struct([("k", pa.int8())]): st.fixed_dictionaries({"k": st.integers(0, 9)}),
    pa.map_(pa.string(), pa.int8()): st.lists(st.tuples(WORDS, st.integers(0, 9)), max_size=2),
    pa.dictionary(pa.int8(), pa.string()): WORDS,
    pa.dictionary(pa.int8(), pa.binary()): st.binary(max_size=2),
    pa.dictionary(pa.int8(), pa.float64()): st.sampled_from([1.0, 2.0, 2.5]),
}


@st.composite
def frames(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 6))

    def column(kind: pa.DataType) -> st.SearchStrategy[pa.Array]:
        values = TYPES[kind] if draw(st.integers(0, 5)) else st.none() | TYPES[kind]
        return st.lists(values, min_size=rows, max_size=rows).map(lambda v: pa.array(v, kind))

    good = {"client": pa.string(), "y": pa.int64(), "a": pa.float32(), "b": pa.float32()}
    names = draw(mostly(st.just(list(good)), st.lists(st.sampled_from("aab") | WORDS, max_size=4)))
    kinds = [mostly(st.just(good.get(name)), st.sampled_from(list(TYPES))) for name in names]
    drawn = [draw(column(draw(kind) or pa.float32())) for kind in kinds]
    return pa.Table.from_arrays(drawn, names=names)


@fuzz(80)
@given(frames(), st.sampled_from(["1.0", "2.6"]))
def test_parquet_of_any_types(table, version):
    buffer = io.BytesIO()
    try:
        parquet.write_table(table, buffer, version=version, row_group_size=2)
    except (pa.ArrowException, ValueError):
        return  # Parquet cannot hold everything that Arrow can.
    read("parquet, odd content", "d.parquet", buffer.getvalue())


# --- LEAF ---


@st.composite
def shards(draw: st.DrawFn) -> Any:
    users = draw(st.lists(mostly(st.sampled_from(["u", "v"]), WORDS), max_size=3, unique=True))
    data, counts = {}, []
    for user in users:
        rows = draw(st.integers(0, 4))
        x = mostly(st.lists(st.integers(-9, 9), min_size=2, max_size=2), JSON)
        y = mostly(st.integers(0, 2), JSON)
        good = {"x": draw(st.lists(x, min_size=rows, max_size=rows))}
        good["y"] = draw(st.lists(y, min_size=rows, max_size=rows))
        data[user] = draw(mostly(st.just(good), JSON))
        counts.append(rows)
    content = {"users": users, "num_samples": counts, "user_data": data}
    return content | draw(
        mostly(st.just({}), st.dictionaries(st.sampled_from(list(content)), JSON))
    )


@fuzz(80)
@given(shards())
def test_shards_of_any_json(content):
    read("LEAF json, odd content", "d.json", json.dumps(content).encode())


NAMES = st.one_of(
    st.sampled_from(["../a.json", "/a.json", "train/a.json", "test/../a.json", "a.json", ".json"]),
    st.sampled_from(["\\a.json", "C:/a.json", "a/./b.json", "__MACOSX/a.json", "a\n.json", "json"]),
    st.text(max_size=6).map(lambda name: f"{name}.json"),
)
SHARD = {"users": ["u"], "num_samples": [3], "user_data": {"u": {"x": [[1]] * 3, "y": [0, 1, 0]}}}


@fuzz(40)
@given(st.lists(NAMES, max_size=3, unique=True), st.sampled_from([0, 8, 12, 14]))
def test_zips_of_any_names(names, packing):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packing) as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), json.dumps(SHARD), packing)
    read("LEAF zip, odd names", "d.zip", buffer.getvalue())
    assert {file.name for file in Path().iterdir()} <= {"d.zip"}


@fuzz(40)
@given(st.lists(mostly(st.just("a.png"), WORDS | st.sampled_from(["..", "/", "../i/a.png", ""]))))
def test_images_of_any_names(names):
    from PIL import Image

    Path("i").mkdir(exist_ok=True)
    Image.new("RGB", (2, 2)).save("i/a.png")
    content = {"users": ["u"], "user_data": {"u": {"x": names, "y": [0] * len(names)}}}
    read("LEAF images, odd names", "d.json", json.dumps(content).encode(), images="i", size=2)
