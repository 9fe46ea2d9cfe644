"""Public bounds: what a file or a mapping may say, and one mistake in each."""

from __future__ import annotations

import numpy as np
import pytest

from pmtl.data import load
from pmtl.data.readers.bounds import Bounds, check_bounds, find_bounds, read_bounds
from pmtl.errors import PmtlError, PublicError

GOOD = "[columns.age]\nlow = 0\nhigh = 110\n[columns.score]\nlow = -1.5\nhigh = 1e2\n"


def written(tmp_path, text):
    path = tmp_path / "bounds.toml"
    path.write_text(text)
    return path


def test_a_file_has_a_table_for_each_column(tmp_path):
    assert read_bounds(written(tmp_path, GOOD)) == {"age": (0.0, 110.0), "score": (-1.5, 100.0)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("low = ", ["not valid TOML"]),
        ("\x00", ["not valid TOML"]),
        ("", ["no columns", "[columns.NAME]"]),
        ("columns = 3", ["no columns"]),
        ("[colums.age]\nlow = 0\nhigh = 1", ["'colums'", "Did you mean 'columns'"]),
        ("[columns]\nage = [0, 1]", ["'age'", "[columns.age]"]),
        ("[columns.age]\nlow = 0\nhihg = 1", ["'hihg'", "Did you mean 'high'"]),
        ("[columns.blood.sugar]\nlow = 0\nhigh = 1", ["'blood'", "'sugar'", "quotes"]),
        ("[columns.age]\nlow = 0", ["'age'", "one of low and high"]),
        ("[columns.age]", ["no bounds", "[columns.NAME]"]),
        ("[columns.age]\nlow = 2\nhigh = 2", ["'age'", "less than"]),
        ("[columns.age]\nlow = 3\nhigh = 2", ["low = 3", "high = 2"]),
        ("[columns.age]\nlow = 0\nhigh = inf", ["'age'", "finite"]),
        (f"[columns.age]\nlow = 0\nhigh = 1{'0' * 400}", ["'age'", "finite"]),
        ("[columns.age]\nlow = nan\nhigh = 1", ["'age'", "finite"]),
        ("[columns.age]\nlow = '0'\nhigh = 1", ["'age'", "numbers"]),
        ("[columns.age]\nlow = false\nhigh = 1", ["'age'", "numbers"]),
        ("[columns.age]\nlow = 0\nhigh = 1e-60", ["'age'", "too close"]),
        ("[columns.age]\nlow = -1e300\nhigh = 1e300", ["'age'", "too far"]),
    ],
)
def test_a_mistake_in_the_file_is_a_sentence_that_names_it(text, words, tmp_path):
    with pytest.raises(PublicError) as error:
        read_bounds(written(tmp_path, text))
    for word in ("bounds.toml", *words):
        assert word in str(error.value)


def test_a_file_that_is_not_there_or_not_a_file(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(PublicError, match="cannot be read"):
            read_bounds(path)
    with pytest.raises(PublicError, match="is not a path"):
        read_bounds("a\0b")
    with pytest.raises(PmtlError, match="The file of bounds nowhere cannot be read"):
        read_bounds("nowhere")


def test_columns_are_found_by_name_position_or_order():
    names, targets = ("age", "weight"), ("score",)
    by_name = find_bounds({"weight": (0, 200), "score": (0, 10)}, (2,), names, targets)
    assert by_name == Bounds((None, (0.0, 200.0)), (0.0, 10.0))
    assert find_bounds({"weight": [0, 200], "target": (0, 10)}, (2,), names, targets) == by_name
    assert find_bounds({1: (0, 200), "target": (0, 10)}, (2,), None, ()) == by_name
    assert find_bounds([None, (0, 200)], (2,), None, ()) == Bounds(by_name.features)
    assert find_bounds(np.array([[0, 1], [0, 2]]), (2,), names, ()).features[1] == (0.0, 2.0)
    assert Bounds.from_dict(by_name.to_dict()) == by_name


def test_a_feature_may_be_called_target():
    found = find_bounds({"target": (0, 1), "y": (0, 2)}, (1,), ("target",), ("y",))
    assert found == Bounds(((0.0, 1.0),), (0.0, 2.0))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"wieght": (0, 1)}, ["'wieght'", "Did you mean 'weight'", "'score'"]),
        ({"hospital": (0, 1)}, ["'hospital'", "neither"]),
        ({"score": (0, 1), "target": (0, 1)}, ["twice"]),
        ({}, ["no bounds"]),
        ([(0, 1)], ["1 entries for 2 columns"]),
        ({"age": 3}, ["'age'", "two numbers"]),
        ({"age": (0, 1, 2)}, ["'age'", "two numbers"]),
        ({"age": (None, 1)}, ["'age'", "numbers"]),
        (7, ["a file, a mapping"]),
    ],
)
def test_a_mistake_in_python_is_a_sentence(given, words):
    with pytest.raises(PublicError) as error:
        find_bounds(given, (2,), ("age", "weight"), ("score",))
    for word in words:
        assert word in str(error.value)


def test_words_and_images_have_no_bounds():
    with pytest.raises(PublicError, match="'title' is text"):
        find_bounds({"title": (0, 1)}, (100,), None, ("tag",), words=("title",))
    with pytest.raises(PublicError, match="neither"):  # Not the word that is column 0.
        find_bounds({"0": (0, 1)}, (100,), None, ("tag",), words=("title",))
    with pytest.raises(PublicError, match="neither"):
        find_bounds({0: (0, 1)}, (28, 28), None, ())


def test_bounds_are_for_numbers_in_memory():
    x, target, feature = np.zeros((2, 1), np.float32), Bounds((), (0, 1)), Bounds(((0, 1),))
    assert check_bounds(target, x, [3, 4], None) == "regression"
    assert check_bounds(feature, x, [3, 4], None) is None
    for y, task in ((["a", "b"], None), ([0, 1], "classification"), ([[1, 2], [3, 4]], None)):
        with pytest.raises(PmtlError, match="leave"):
            check_bounds(target, x, y, task)
    with pytest.raises(PmtlError, match="pixels"):
        check_bounds(feature, x.astype(np.uint8), [0, 1], None)


def test_the_sentence_says_what_has_bounds():
    assert "1 of 2 features and of the target" in Bounds((None, (0, 1)), (0, 1)).sentence
    assert "of 2 of 2 features were" in Bounds(((0, 1), (0, 1))).sentence
    assert "Bounds of the target were" in Bounds((), (0, 1)).sentence


def test_a_mapping_for_a_file_is_told_where_it_belongs(tmp_path):
    (tmp_path / "rows.csv").write_text("client,age,y\na,1,0\nb,2,1\n")
    with pytest.raises(PublicError, match="a mapping is for FederatedData"):
        load(tmp_path / "rows.csv", bounds={"age": (0, 30)})
