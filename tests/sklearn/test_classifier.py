"""Classes of any type, one class, and several labels."""

from __future__ import annotations

import numpy as np
import pytest

from pmtl.errors import PmtlError
from pmtl.sklearn import PMTLClassifier


def fit(table, y, **settings):
    settings = {"epsilon": 4, "random_state": 0, **settings}
    return PMTLClassifier(**settings).fit(table.x, y, groups=table.groups)


@pytest.mark.parametrize("classes", [["no", "yes"], [False, True], [-3, 12], [0.0, 1.0]])
def test_classes_keep_their_type(table, classes):
    y = np.asarray(classes)[(table.y == "yes").astype(int)]
    made = fit(table, y)
    assert made.classes_.tolist() == sorted(classes)
    assert made.predict(table.x, groups=table.groups).dtype == y.dtype
    assert made.score(table.x, y, groups=table.groups) > 0.9


def test_three_classes(table):
    y = np.digitize(table.amount, [80, 120])
    made = fit(table, y)
    chances = made.predict_proba(table.x, groups=table.groups)
    assert chances.shape == (480, 3)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_array_equal(
        made.predict(table.x, groups=table.groups), chances.argmax(axis=1)
    )
    assert made.score(table.x, y, groups=table.groups) > 0.8


def test_one_class_is_always_predicted(table):
    made = fit(table, np.full(480, "no"))
    assert made.predict_proba(table.x[:3], groups=["h00"] * 3).tolist() == [[1.0]] * 3
    assert made.predict(table.x[:3], groups=["h00"] * 3).tolist() == ["no"] * 3


def test_several_labels(table):
    y = np.stack([table.amount > 100, table.x[:, 1] > 0], axis=1).astype(int)
    made = fit(table, y)
    assert made.predict(table.x, groups=table.groups).shape == (480, 2)
    chances = made.predict_proba(table.x, groups=table.groups)
    np.testing.assert_array_equal(
        chances > 0.5, made.predict(table.x, groups=table.groups).astype(bool)
    )
    assert made.score(table.x, y, groups=table.groups) > 0.8


def test_several_columns_of_classes_are_refused(table):
    y = np.stack([np.digitize(table.amount, [80, 120])] * 2, axis=1)
    with pytest.raises(PmtlError, match="fit one estimator for each column"):
        fit(table, y)


def test_numbers_with_fractions_are_no_classes(table):
    with pytest.raises(ValueError, match="continuous"):
        fit(table, table.amount)


def test_weights_count_in_the_score(table):
    made = fit(table, table.y)
    right = made.predict(table.x, groups=table.groups) == table.y
    score = made.score(table.x, table.y, groups=table.groups, sample_weight=right * 1.0)
    assert score == 1 > made.score(table.x, table.y, groups=table.groups)
