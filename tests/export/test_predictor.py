"""What counts as the same answers, and the rows that exports are tried with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from torch import nn

from pmtl.export.predictor import TOLERANCE, Predictor, difference, trial_rows
from pmtl.models.library import Linear, Standardise


def shares(*rows):
    """Answers of a classifier with these probabilities."""
    probabilities = np.array(rows, dtype=np.float32)
    return {"prediction": probabilities.argmax(1), "probabilities": probabilities}


def test_another_class_is_another_answer_unless_both_are_equally_probable():
    first = shares([0.6, 0.4], [0.1, 0.9])
    assert difference(first, shares([0.6, 0.4], [0.1, 0.9]), "classification") == 0
    near = difference(first, shares([0.6, 0.4], [0.1002, 0.8998]), "classification")
    assert TOLERANCE < near < 3e-4
    assert difference(first, shares([0.4, 0.6], [0.1, 0.9]), "classification") == math.inf
    swapped = {**first, "prediction": np.array([1, 1])}
    assert difference(first, swapped, "classification") == math.inf
    even = shares([0.50001, 0.49999])
    other = {**shares([0.50001, 0.49999]), "prediction": np.array([1])}
    assert difference(even, other, "classification") == 0


def test_labels_and_numbers():
    marks = {"prediction": np.array([[1, 0]]), "probabilities": np.array([[0.7, 0.2]])}
    assert difference(marks, marks, "multilabel") == 0
    wrong = {**marks, "prediction": np.array([[1, 1]])}
    assert difference(marks, wrong, "multilabel") == math.inf
    numbers, other = ({"prediction": np.array([[1000.0], [y]])} for y in (0.5, 0.6))
    assert difference(numbers, other, "regression") == pytest.approx(0.1)
    larger = {"prediction": np.array([[1001.0], [0.5]])}
    assert difference(numbers, larger, "regression") == pytest.approx(1e-3)
    longer = {"prediction": np.zeros((3, 1))}
    assert difference(numbers, longer, "regression") == math.inf


def test_nan_is_compared_with_nan_only_and_never_all_there_is():
    one, none = ({"prediction": np.array([[y], [np.nan]])} for y in (2.0, np.nan))
    assert difference(one, one, "regression") == 0
    assert difference(one, none, "regression") == math.inf
    assert difference(none, one, "regression") == math.inf
    assert difference(none, none, "regression") == math.inf


def test_rows_to_try_reach_beyond_the_limits_of_the_scaling():
    mean, width = np.array([50, -3], np.float32), np.array([7, np.inf], np.float32)
    scale = Standardise(mean, width, np.array([4, 4], np.float32))
    rows = trial_rows(Predictor(nn.Sequential(scale, Linear((2,), 3)), "classification"), (2,))
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    scaled = (rows[:, 0] - 50) / 7
    assert np.abs(scaled).max() > 4
    assert 0 < np.abs(scaled[1:4]).min() < 3
