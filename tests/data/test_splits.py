"""How rows are divided when the data does not say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmtl.data.splits import TEST, TRAIN, VALIDATION, draw_parts, part_sizes, read_parts

fractions = st.tuples(st.floats(0, 0.9), st.floats(0, 0.9)).filter(lambda pair: sum(pair) < 0.99)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), fractions)
def test_sizes_keep_their_promises(counts, pair):
    validation, test = pair
    n = np.array(counts)
    train, valid, tested = part_sizes(n, validation, test).T
    assert (train + valid + tested == n).all()
    assert (train >= 1).all()
    assert (np.minimum(valid, tested) >= 0).all()
    assert (tested[n >= 3] >= (test > 0)).all()
    assert (valid[(n >= 5) & (train > 1)] >= (validation > 0)).all()
    assert (np.abs(tested - n * test) <= 1).all()
    if validation == 0:
        assert not valid.any()
    if test == 0:
        assert not tested.any()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), fractions)
def test_parts_have_these_sizes_for_every_client(owners, pair):
    codes = np.array(owners)
    names = tuple("abcdef")
    parts = draw_parts(codes, names, None, *pair)
    sizes = part_sizes(np.bincount(codes, minlength=6), *pair)
    for client in range(6):
        assert np.bincount(parts[codes == client], minlength=3).tolist() == sizes[client].tolist()


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_other_clients_do_not_matter(owners):
    codes = np.array(owners)
    together = draw_parts(codes, ("a", "b", "c"), None, 0.1, 0.2)
    for client, name in enumerate("abc"):
        n = int((codes == client).sum())
        alone = draw_parts(np.zeros(n, dtype=np.int64), (name,), None, 0.1, 0.2)
        assert together[codes == client].tolist() == alone.tolist()


def test_the_draw_is_stable_and_differs_between_clients():
    codes = np.repeat([0, 1], 50)
    parts = draw_parts(codes, ("a", "b"), None, 0.1, 0.2)
    assert parts[:50].tolist() != parts[50:].tolist()
    # Pinned: files trained on yesterday must be split the same way tomorrow.
    assert np.flatnonzero(parts[:50] == VALIDATION).tolist() == [20, 21, 31, 33, 40]


def test_validation_comes_out_of_the_training_rows():
    given_parts = read_parts((["train"] * 9 + ["test"]) * 4)
    parts = draw_parts(np.repeat([0, 1], 20), ("a", "b"), given_parts, 0.1, 0.2)
    assert ((parts == TEST) == (given_parts == TEST)).all()
    for half in (parts[:20], parts[20:]):
        assert (half == VALIDATION).sum() == 2
    untouched = draw_parts(np.repeat([0, 1], 20), ("a", "b"), given_parts, 0.0, 0.2)
    assert (untouched == given_parts).all()


@pytest.mark.parametrize("word", ["validation", "val", "valid", "VAL"])
def test_split_words(word):
    assert read_parts(["train", word, "test"]).tolist() == [TRAIN, VALIDATION, TEST]
    kept = read_parts(["train", word, "train"])
    assert (draw_parts(np.zeros(3, dtype=np.int64), ("a",), kept, 0.5, 0.2) == kept).all()
