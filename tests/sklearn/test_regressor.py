"""One number and several, and what new groups need."""

from __future__ import annotations

import numpy as np
import pytest

from pmtl.errors import PmtlError
from pmtl.sklearn import PMTLRegressor


def fit(table, y, **settings):
    settings = {"epsilon": 4, "random_state": 0, **settings}
    return PMTLRegressor(**settings).fit(table.x, y, groups=table.groups)


def test_numbers_are_in_the_units_of_the_target(table):
    made = fit(table, table.amount)
    answers = made.predict(table.x, groups=table.groups)
    assert answers.shape == (480,)
    assert np.abs(answers - table.amount).mean() < 3
    assert made.score(table.x, table.amount, groups=table.groups) > 0.95


def test_whole_numbers_are_numbers(table):
    y = np.rint(table.amount).astype(int)
    assert fit(table, y).score(table.x, y, groups=table.groups) > 0.95


def test_several_numbers(table):
    y = np.stack([table.amount, -3 * table.amount], axis=1)
    made = fit(table, y)
    assert made.predict(table.x, groups=table.groups).shape == (480, 2)
    assert made.score(table.x, y, groups=table.groups) > 0.95


def test_new_groups_need_bounds_where_the_target_has_no_common_unit(table):
    new = [f"new {group}" for group in table.groups]
    made = fit(table, table.amount, epsilon=0.05)
    assert made.score(table.x, table.amount, groups=table.groups) > 0.9
    with pytest.raises(PmtlError, match=r'bounds=\{"target": \(low, high\)\}'):
        made.predict(table.x, groups=new)
    with (
        pytest.warns(UserWarning, match="shared model"),
        pytest.raises(PmtlError, match="no shared model"),
    ):
        made.predict(table.x)
    bounds = {"target": (0, 200)}
    bounded = fit(table, table.amount, epsilon=8, bounds=bounds)
    assert bounded.score(table.x, table.amount, groups=new) > 0.3
