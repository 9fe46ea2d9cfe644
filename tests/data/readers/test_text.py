"""Text in tables: bags of words, tags, and what choosing words gives away."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from new_rows import features_of
from pyarrow import parquet
from scipy import sparse

from pmtl.data import describe, load
from pmtl.data.readers.text import Bags, TextRule, tokenise
from pmtl.data.readers.text_rows import read_list
from pmtl.errors import PmtlError
from pmtl.spec import from_values

COMMITS = Path(__file__).parents[4] / "shared" / "data" / "commit_tags" / "commit_tags.tsv.gz"

ROWS = [
    # user, subject, body, tag
    ("u1", "Fix the driver", "of the UART", "drivers|net"),
    ("u1", "fix net", "", "net"),
    ("u1", "Add a test", "for the driver", "tests"),
    ("u2", "the the THE", "the", "net"),
    ("u2", "don't re-add", "it_is 7", "rare"),
    ("u3", "driver", "driver net", "drivers"),
]


@pytest.fixture
def table(tmp_path):
    lines = ["user\tsubject\tbody\ttag", *("\t".join(row) for row in ROWS)]
    path = tmp_path / "rows.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return path


def spec(table, **options):
    tail = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{table}:client=user,text=subject+body,{tail},validation=0,test=0"


def rows_of(data):
    return {
        client: [part.tolist() for part in data.gather(data.rows("train").of(k))]
        for k, client in enumerate(data.clients)
    }


def test_words_are_what_the_page_says():
    assert tokenise("Don't RE-ADD it_is 7, (ok) é-à x--y 'q'") == [
        *("don't", "re-add", "it_is", "7", "ok", "é-à", "x", "y", "q"),
    ]


def test_counted_words_and_tags(table):
    data = load(spec(table, target="tag", words=4, tags=3))
    # By clients that use them, then by the alphabet: driver and net 2, the 2; add, a, … 1.
    assert data.feature_names == ("driver", "net", "the", "7")
    assert data.labels == ("drivers", "net", "rare")
    assert (data.task, data.m) == ("multilabel", 3)
    got = rows_of(data)
    third = 1 / 3
    assert got["u1"][0] == [pytest.approx([third, 0, 2 * third, 0]), [0, 1, 0, 0]]
    assert got["u1"][1] == [[1, 1, 0], [0, 1, 0]]  # The row of "tests" has no known tag.
    assert got["u2"] == [[[0, 0, 1, 0], [0, 0, 0, 1]], [[0, 1, 0], [0, 0, 1]]]
    assert got["u3"][0] == [pytest.approx([2 * third, third, 0, 0])]
    words, tags = data.disclosed
    assert "4 words that most clients use" in words
    assert "3 tags that most clients use" in tags
    assert set(data.disclosed) <= set(describe(data)["warnings"])


def test_fewer_than_were_asked_for_are_told_as_they_are(table):
    data = load(spec(table, target="tag", words=1000, tags=1000))
    assert (data.input_shape, data.outputs) == ((14,), 4)
    assert "The 14 words" in data.disclosed[0]
    assert "The 4 tags" in data.disclosed[1]


def test_lists_and_hashes_give_nothing_away(table, tmp_path):
    (tmp_path / "words.txt").write_text("net\ndriver\nunheard\n")
    (tmp_path / "tags.json").write_text(json.dumps({"rare": 1, "net": 5}))
    lists = {"vocabulary": tmp_path / "words.txt", "taglist": tmp_path / "tags.json"}
    listed = load(spec(table, target="tag", **lists))
    assert listed.feature_names == ("net", "driver", "unheard")
    assert listed.labels == ("net", "rare")
    assert listed.clients == ("u1", "u2")
    hashed = load(spec(table, target="tag", hash=64))
    assert hashed.feature_names is None
    assert hashed.task == "classification"
    assert hashed.labels == ("drivers", "drivers|net", "net", "rare", "tests")
    assert listed.disclosed == hashed.disclosed == ()
    assert load(spec(table, target="tag")).input_shape == (10_000,)  # The default: hashing.


def test_a_hash_is_the_same_everywhere():
    bags = Bags(hashed=10_000)
    bags.append(["driver", "net", "driver"])
    matrix = bags.finish()
    assert dict(zip(matrix.indices.tolist(), matrix.data.tolist(), strict=True)) == {
        9583: 2.0,
        3282: 1.0,
    }


def test_parquet_and_csv_are_read_alike(table, tmp_path):
    columns = dict(zip(("user", "subject", "body", "tag"), zip(*ROWS, strict=True), strict=True))
    arrays = {name: pa.array(list(values)) for name, values in columns.items()}
    arrays["tag"] = arrays["tag"].dictionary_encode()
    parquet.write_table(pa.table(arrays), tmp_path / "rows.parquet")
    one = load(spec(table, target="tag", words=9, tags=2))
    two = load(spec(tmp_path / "rows.parquet", target="tag", words=9, tags=2))
    assert one.fingerprint() == two.fingerprint()


def test_tags_that_look_like_numbers(tmp_path):
    lines = "".join(f"{who},word{i % 2},{i % 3}\n" for who in "ab" for i in range(6))
    (tmp_path / "d.csv").write_text("client,text,y\n" + lines + "a,word1,x|2\n")
    data = load(f"{tmp_path / 'd.csv'}:text=text,tags=9")
    assert data.labels == ("0", "1", "2", "x")


def test_the_vocabulary_is_part_of_the_data(table, tmp_path):
    (tmp_path / "one.txt").write_text("never\nnet\n")
    (tmp_path / "two.txt").write_text("ever\nnet\n")
    one, two = (
        load(spec(table, target="tag", vocabulary=tmp_path / f"{name}.txt"))
        for name in ("one", "two")
    )
    assert (one.x != two.x).nnz == 0
    assert one.fingerprint() != two.fingerprint()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("text=subject,target=tag,words=0", "words=0 was given"),
        ("text=subject,target=tag,hash=9,words=3", "hashed, or they are listed"),
        (
            "text=subject,target=tag,vocabulary=nowhere.txt",
            "list of words .*nowhere.txt could not be read: No such file",
        ),
        ("text=subject,target=tag,taglist=empty.txt", "empty.txt is empty"),
        ("text=subject,target=tag,vocabulary=short.txt,words=3", "has 2 words, but 3"),
        ("text=subject,target=tag,vocabulary=odd.json", "every word needs a count"),
        ("text=subject,target=tag,vocabulary=list.json", "values that are not text"),
        ("text=subject,target=tag,taglist=short.txt", "No row has a known tag"),
        ("text=subject,target=tag,vocabulary=other.txt", "No row has a known word"),
        ("text=subject,target=subject", "named twice as client, target, split or text"),
        ("text=nothing,target=tag", "no text column 'nothing'"),
        ("target=tag,drop=subject+body,words=3", "words= needs text"),
    ],
)
def test_options_that_make_no_sense(table, monkeypatch, options, words):
    monkeypatch.chdir(table.parent)
    Path("empty.txt").write_text("\n")
    Path("other.txt").write_text("xylophone\n")
    Path("short.txt").write_text("one 7\ntwo 3\none 2\n")
    Path("odd.json").write_text('{"a": "b"}')
    Path("list.json").write_text('["a", 3]')
    with pytest.raises(PmtlError, match=words):
        load(f"rows.tsv.gz:client=user,{options}")


def test_a_column_of_text_that_is_none(tmp_path):
    frame = pa.table({"client": ["a", "b"], "y": [0, 1], "t": [1.5, 2.5]})
    parquet.write_table(frame, tmp_path / "d.parquet")
    with pytest.raises(PmtlError, match=r"text column 't'.*holds double, not text"):
        load(f"{tmp_path / 'd.parquet'}:text=t")
    frame = pa.table({"client": ["a", "b"], "y": [0, 1], "t": ["x", None]})
    parquet.write_table(frame, tmp_path / "d.parquet")
    with pytest.raises(PmtlError, match=r"missing in .*row 1.*'t'"):
        load(f"{tmp_path / 'd.parquet'}:text=t")
    frame = pa.table({"client": ["a", "b"], "y": [0, 1], "t": ["", "…"]})
    parquet.write_table(frame, tmp_path / "d.parquet")
    with pytest.raises(PmtlError, match="contain no words"):
        load(f"{tmp_path / 'd.parquet'}:text=t,words=5")


def test_lists_of_every_kind(tmp_path):
    path = tmp_path / "list"
    path.write_text("the 90\nvb . net 80\n2005 70\n2005\nc++\n")
    assert read_list(path, None, "tag") == ("the", "vb . net", "2005", "c++")
    path.write_text('{"a": 1, "b": 3, "c": 3}')
    assert read_list(path, 2, "tag") == ("b", "c")
    path.write_text('["z", "a"]')
    assert read_list(path, None, "tag") == ("z", "a")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PmtlError, match="cannot be read"):
        read_list(path, None, "tag")


def test_new_text_becomes_the_same_features(table, tmp_path):
    data = load(spec(table, target="tag", words=6))
    again = features_of(table, (6,), data.feature_names, data.text)
    assert (again != data.x).nnz == 0
    hashed = load(spec(table, target="tag", hash=50))
    rule = from_values(TextRule, json.loads(json.dumps(asdict(hashed.text))), "the rule")
    assert (features_of(table, (50,), None, rule) != hashed.x).nnz == 0
    (tmp_path / "new.csv").write_text("text\na\n")
    (tmp_path / "new.npy").write_bytes(b"")
    with pytest.raises(PmtlError, match="lacks the feature column 'subject'"):
        features_of(tmp_path / "new.csv", (6,), data.feature_names, data.text)
    with pytest.raises(PmtlError, match="is not a table"):
        features_of(tmp_path / "new.npy", (6,), data.feature_names, data.text)


def test_the_largest_clients(table):
    data = load(spec(table, target="tag", largest=2))
    assert data.clients == ("u1", "u2")
    with pytest.raises(PmtlError, match="largest=4 was asked for, but there are 3"):
        load(spec(table, target="tag", largest=4))


@pytest.mark.skipif(not COMMITS.exists(), reason="../shared/data/commit_tags is not here")
def test_real_commits():
    data = load(f"{COMMITS}:client=user,text=text,target=tag,words=10000,tags=500,largest=400")
    assert (data.m, data.input_shape, data.outputs) == (400, (10_000,), 491)
    assert data.x.shape == (90_782, 10_000)
    assert sparse.issparse(data.x)
    counts = np.sum([data.rows(split).counts for split in data.splits], axis=0)
    assert counts.min() == 59
    assert data.feature_names[:3] == ("add", "for", "to")
