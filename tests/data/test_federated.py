"""The federation itself: grouping, gathering, selecting, fingerprints, and every refusal."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from pmtl.data import SPLITS, FederatedData
from pmtl.data.client_names import Coded, encode
from pmtl.errors import PmtlError

build = FederatedData.from_arrays


def small(**changes):
    columns = {
        "x": np.arange(24, dtype=np.float32).reshape(8, 3),
        "y": np.array([0, 1] * 4),
        "client": ["a"] * 4 + ["b"] * 4,
    }
    return build(**{**columns, **changes})


def test_every_row_has_one_owner_and_one_split(raw):
    data = build(raw.x, raw.y, raw.client, raw.split)
    assert data.clients == ("ann", "bob", "cy")
    assert data.m == 3
    assert data.input_shape == (4,)
    seen = np.concatenate([data.rows(split).order for split in SPLITS])
    assert sorted(seen.tolist()) == list(range(36))
    for split in SPLITS:
        rows = data.rows(split)
        for k, client in enumerate(data.clients):
            assert set(raw.client[rows.of(k)]) <= {client}
            assert (np.diff(rows.of(k)) > 0).all()
        assert rows.counts.sum() == len(rows.order)
    assert set(data.rows("test").order) == set(np.flatnonzero(raw.split == "test"))
    assert (data.rows("validation").counts == 1).all()


def test_integer_clients_are_in_numeric_order():
    data = small(client=[10, 10, 9, 9, 9, 2, 2, 2])
    assert data.clients == ("2", "9", "10")
    assert small(client=["10", "10", "9", "9", "x", "x", "x", "x"]).clients == ("10", "9", "x")


def test_clients_may_be_bytes_objects_whole_floats_or_codes():
    assert small(client=np.array([b"a"] * 4 + [b"b"] * 4)).clients == ("a", "b")
    assert small(client=np.array([1, "a"] * 4, dtype=object)).clients == ("1", "a")
    assert small(client=np.array([1.0, 2.0] * 4)).clients == ("1", "2")
    coded = encode(Coded(np.array([2, 0, 2]), ("z", "unused", "a")), "client")
    assert coded.names == ("a", "z")
    assert coded.codes.tolist() == [0, 1, 0]


def test_gather_takes_any_shape_and_makes_float32():
    data = small(x=np.arange(24.0).reshape(8, 3))
    index = np.array([[0, 7], [3, 3]])
    x, y = data.gather(index)
    assert x.shape == (2, 2, 3)
    assert x.dtype == np.float32
    assert x[0, 1].tolist() == [21, 22, 23]
    assert y.tolist() == [[0, 1], [1, 1]]


def test_bytes_are_pixels_and_bools_are_not():
    image = np.full((8, 2, 2), 51, dtype=np.uint8)
    x, _ = small(x=image).gather(np.arange(2))
    assert x.shape == (2, 2, 2)
    assert (x == np.float32(0.2)).all()
    x, _ = small(x=np.ones((8, 3), dtype=bool)).gather(np.arange(2))
    assert (x == 1).all()


def test_sparse_rows_are_dense_only_when_gathered(raw, content, expected):
    for kind in (sparse.csr_matrix, sparse.csr_array, sparse.coo_matrix):
        data = build(kind(raw.x), raw.y, raw.client, raw.split)
        assert sparse.issparse(data.x)
        assert content(data) == expected
    x, _ = data.gather(np.array([[0, 1, 2]]))
    assert x.shape == (1, 3, 4)


def test_index_of_names_near_matches():
    data = small(client=["anna"] * 4 + ["bert"] * 4)
    assert data.index_of("bert") == 1
    with pytest.raises(PmtlError, match=r"'ana'.*'anna'"):
        data.index_of("ana")
    with pytest.raises(PmtlError, match="from 'anna' to 'bert'"):
        data.index_of("zzzzz")


def test_select_keeps_the_rows_of_these_clients(raw, content):
    data = build(raw.x, raw.y, raw.client, raw.split, outputs=5)
    part = data.select(["cy", "ann", "cy"])
    assert part.clients == ("ann", "cy")
    assert part.x is data.x
    whole = content(data)
    assert content(part) == {k: v for k, v in whole.items() if not k.startswith("bob")}
    mine = raw.client != "bob"
    alone = build(raw.x[mine], raw.y[mine], raw.client[mine], raw.split[mine], outputs=5)
    assert part.fingerprint() == alone.fingerprint()
    with pytest.raises(PmtlError, match="at least one"):
        data.select([])


def test_moving_blocks_of_clients_changes_nothing(raw, content):
    grouped = np.argsort(raw.client, kind="stable")
    blocks = np.concatenate([raw.of(name) for name in ("cy", "ann", "bob")])
    for split in (None, raw.split):
        results = [
            build(raw.x[o], raw.y[o], raw.client[o], None if split is None else split[o])
            for o in (np.arange(36), grouped, blocks)
        ]
        assert content(results[0]) == content(results[1]) == content(results[2])
        assert len({data.fingerprint() for data in results}) == 1


def test_fingerprint_notices_every_change():
    base = small()
    x = np.array(base.x)
    x[5, 1] += 1
    others = [
        small(x=x),
        small(y=[1, 1] + [0, 1] * 3),
        small(client=["a"] * 4 + ["c"] * 4),
        small(split=["train", "test"] * 4),
        small(task="regression"),
        small(x=np.asarray(base.x, dtype=np.uint8)),
        small(x=sparse.csr_matrix(base.x)),
    ]
    prints = [data.fingerprint() for data in [base, *others]]
    assert len(set(prints)) == len(prints)
    assert small(x=base.x.astype(np.float64)).fingerprint() == base.fingerprint()


def test_fingerprint_in_chunks_is_the_same(monkeypatch):
    before = [small().fingerprint(), small(x=sparse.eye_array(8).tocsr()).fingerprint()]
    monkeypatch.setattr("pmtl.data.checks.CHUNK_BYTES", 13)
    dense, thin = small().fingerprint(), small(x=sparse.eye_array(8).tocsr()).fingerprint()
    assert [dense, thin] == before


@pytest.mark.parametrize(
    ("y", "task", "outputs"),
    [
        ([0, 2] * 4, "classification", 3),
        ([True, False] * 4, "classification", 2),
        (["no", "yes"] * 4, "classification", 2),
        ([0.0, 2.0] * 4, "regression", 1),
        ([[0, 1, 1]] * 8, "multilabel", 3),
        ([[0.5, 1, 1]] * 8, "regression", 3),
        ([[0.0], [2.5]] * 4, "regression", 1),
        (sparse.csr_matrix(np.eye(8)), "multilabel", 8),
    ],
)
def test_the_task_follows_from_the_targets(y, task, outputs):
    data = small(y=y)
    assert (data.task, data.outputs) == (task, outputs)
    kinds = {"classification": np.int64, "multilabel": np.uint8, "regression": np.float32}
    assert data.y.dtype == kinds[task]


def test_the_task_may_be_given():
    assert small(y=[0.0, 2.0] * 4, task="classification").outputs == 3
    assert small(y=[0, 2] * 4, task="regression").y.dtype == np.float32
    assert small(outputs=7).outputs == 7
    named = small(y=["no", "yes"] * 4)
    assert named.labels == ("no", "yes")
    assert named.y.tolist() == [0, 1] * 4
    assert small(labels=["low", "mid", "high"]).outputs == 3


def test_classes_beyond_the_named_ones_are_called_by_number():
    assert small(y=["no", "yes"] * 4, outputs=4).labels == ("no", "yes", "class 2", "class 3")
    assert small(labels=["no"], outputs=2).labels == ("no", "class 1")
    twins = small(y=["class 1", "class 2"] * 4, outputs=3).labels
    assert twins == ("class 1", "class 2", "class 2 (without rows)")
    with pytest.raises(PmtlError, match=r"3 label names for 2 outputs.*raise outputs"):
        small(y=["a", "b", "c", "c"] * 2, outputs=2)


def test_amounts_are_not_taken_for_classes():
    prices = [120_000, 300_000] * 4
    with pytest.raises(PmtlError, match=r"300001 classes.*task=regression.*outputs=300001"):
        small(y=prices)
    assert small(y=prices, task="regression").outputs == 1
    assert small(y=prices, outputs=300_001).task == "classification"
    assert small(y=prices, task="classification").outputs == 300_001
    assert small(y=[0, 119] * 4).outputs == 120
    with pytest.raises(PmtlError, match="task=regression"):
        small(y=[0, 120] * 4)


def with_nan(value=np.nan):
    x = np.zeros((8, 3))
    x[6, 2] = value
    return x


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": [0, 1]}, "differ in length.*x has 8, y has 2"),
        ({"client": ["a"]}, "client has 1"),
        ({"x": np.array(1.0)}, "x is a single value"),
        ({"y": np.array(1)}, "y is a single value"),
        ({"client": np.array("a")}, "client is a single value"),
        ({"split": 3}, "split is a single value"),
        ({"split": ["train"] * 9}, "split has 9"),
        ({"x": with_nan()}, "NaN.*row 6, column 2"),
        ({"x": with_nan(np.inf)}, "inf.*row 6, column 2"),
        ({"x": with_nan(1e300)}, "float32.*row 6, column 2"),
        ({"x": with_nan(), "feature_names": ["u", "v", "w"]}, "row 6, column 'w'"),
        ({"x": sparse.csr_matrix(with_nan())}, "NaN.*row 6, column 2"),
        ({"x": with_nan().reshape(8, 1, 3)}, "row 6, column 0, 2"),
        ({"x": np.zeros(8)}, "shape"),
        ({"x": [[1, 2]] * 7 + [[1]]}, "features are not rows of one length"),
        ({"y": [[1, 2]] * 7 + [[1]]}, "targets are not rows of one length"),
        ({"x": np.zeros((8, 0))}, "at least one feature"),
        ({"x": np.full((8, 1), "word")}, "not numbers"),
        ({"y": [0, -1] * 4}, "row 1 .*negative"),
        ({"y": [0, 0.5] * 4, "task": "classification"}, "row 1 .*0.5, not an integer"),
        ({"y": [0, 5] * 4, "outputs": 3}, "row 1 .*5.*only 3 classes"),
        ({"y": [0, np.nan] * 4}, "target of row 1"),
        ({"y": [[0, 3]] * 8}, "one class per row"),
        ({"y": [[0, 3]] * 8, "task": "multilabel"}, "0 and 1"),
        ({"y": [[0, 1]] * 8, "outputs": 3}, "2 labels"),
        ({"y": [0.5] * 8, "outputs": 3}, "1 target"),
        ({"y": ["a"] * 8, "task": "regression"}, "text"),
        ({"y": ["a", ""] * 4}, "Row 1 .*no target"),
        ({"task": "guessing"}, "no task 'guessing'"),
        ({"outputs": 0}, "at least 1"),
        ({"client": ["a", None] * 4}, "Row 1 .*no client"),
        ({"client": [1.0, np.nan] * 4}, "Row 1 .*no client"),
        ({"client": [1.0, 1.5] * 4}, "fraction"),
        ({"client": ["a", "\ud800a"] * 4}, r"client '\\ud800a' is not valid Unicode"),
        ({"y": ["a", "\ud800a"] * 4}, r"target '\\ud800a' is not valid Unicode"),
        ({"client": np.array([b"\xfe", b"\xff"] * 4)}, "as text they become equal"),
        ({"split": ["train", "dev"] * 4}, "'dev'.*validation"),
        ({"split": ["train"] * 4 + ["test"] * 4}, r"'b' has no training rows \(1 of 2"),
        ({"validation": 1.0}, "validation fraction"),
        ({"validation": 0.5, "test": 0.5}, "leave no rows"),
        ({"x": [], "y": [], "client": []}, "no rows"),
        ({"min_rows": 5}, "lower min_rows"),
        ({"clients": 3}, "clients=3.*2 clients"),
        ({"clients": 0}, "clients=0"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(changes, words):
    with pytest.raises(PmtlError, match=words):
        small(**changes)


def test_a_bad_value_is_found_in_a_later_chunk(monkeypatch):
    monkeypatch.setattr("pmtl.data.checks.CHUNK_BYTES", 30)
    with pytest.raises(PmtlError, match="row 6, column 2"):
        small(x=with_nan())


def test_small_clients_are_dropped_before_the_first_are_kept():
    data = small(client=["c"] * 3 + ["a"] * 2 + ["b"] * 3, min_rows=3, clients=1)
    assert data.clients == ("b",)
    assert set(data.rows("train").order) | set(data.rows("test").order) <= {5, 6, 7}
    # A client that is dropped need not have training rows.
    split = ["train"] * 3 + ["test"] * 2 + ["train"] * 3
    assert small(client=list("cccaabbb"), split=split, min_rows=3).clients == ("b", "c")


def test_a_frame_is_the_same_federation(raw, content, expected):
    frame = pd.DataFrame(raw.x, columns=list("pqrs"))
    frame["target"], frame["client"], frame["split"] = raw.y, raw.client, raw.split
    data = FederatedData.from_frame(frame.sample(frac=1, random_state=1).sort_index())
    assert content(data) == expected
    assert data.feature_names == ("p", "q", "r", "s")
    renamed = frame.rename(columns={"target": "t", "client": "who", "split": "part"})
    renamed["note"] = "text"
    data = FederatedData.from_frame(renamed, "who", "t", "part", drop=["note"])
    assert content(data) == expected


def test_clients_of_several_kinds_in_a_frame():
    owners = pd.Series([1, "a", 2.0] * 2, dtype=object)
    frame = pd.DataFrame({"client": owners, "target": [0, 1] * 3, "v": 0.5})
    assert FederatedData.from_frame(frame).clients == ("1", "2", "a")


def test_several_target_columns_of_a_frame():
    frame = pd.DataFrame({"client": ["a"] * 6, "s": [0, 1] * 3, "t": [True, False] * 3, "v": 0.5})
    data = FederatedData.from_frame(frame.astype({"s": "Int64"}), target="s+t")
    assert (data.task, data.labels, data.feature_names) == ("multilabel", ("s", "t"), ("v",))
    assert data.y.tolist() == [[0, 1], [1, 0]] * 3
    assert FederatedData.from_frame(frame, target="s+t", labels=["S", "T"]).labels == ("S", "T")
    data = FederatedData.from_frame(frame.assign(w=1.0), target="s+v")
    assert (data.task, data.outputs, data.labels) == ("regression", 2, None)
    with pytest.raises(PmtlError, match=r"target column 'w'.*text.*target=a\+b"):
        FederatedData.from_frame(frame.assign(w="x"), target="s+w")
    with pytest.raises(PmtlError, match=r"target column 'w'.*list<.*target=a\+b"):
        FederatedData.from_frame(frame.assign(w=[[0, 1]] * 6), target="w")


def test_frames_with_text_gaps_or_wrong_names_are_refused():
    frame = pd.DataFrame({"client": ["a", "b"] * 3, "target": [0, 1] * 3, "v": [1.0, 2.0] * 3})
    with pytest.raises(PmtlError, match=r"'who'.*'client', 'target', 'v'.*client=COLUMN"):
        FederatedData.from_frame(frame, client="who")
    with pytest.raises(PmtlError, match=r"'word'.*text.*drop=word.*'many'.*list"):
        FederatedData.from_frame(frame.assign(word=["x", 1, 2, 3, 4, 5], many=[[1]] * 6))
    with pytest.raises(PmtlError, match=r"row 1.*target"):
        FederatedData.from_frame(frame.assign(target=pd.array([1, None, 0, 1, 0, 1], "Int64")))
    nullable = frame.assign(ok=pd.array([1, 2, 3, 4, 5, 6], dtype="Int64"), flag=True)
    assert FederatedData.from_frame(frame.astype({"target": "Int64"})).task == "classification"
    assert FederatedData.from_frame(nullable).x[:, 1:].tolist()[0] == [1, 1]


def test_choosing_clients_by_their_numbers_of_rows_is_told():
    """It takes something from everybody's rows, past the gate."""
    x, y, client = np.zeros((6, 1)), [0, 1] * 3, list("aabbbc")
    assert FederatedData.from_arrays(x, y, client, outputs=2).disclosed == ()
    for options in ({"min_rows": 2}, {"largest": 2}):
        chosen = FederatedData.from_arrays(x, y, client, outputs=2, **options)
        assert chosen.clients == ("a", "b")
        assert "number of rows" in chosen.disclosed[0]
