"""scikit-learn's own checks, of all rows as one client and of several clients."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from pmtl.sklearn import PMTLClassifier, PMTLRegressor

NO_SIZE = (
    "If the few clients do not agree on the size of the target, nothing is published from which a "
    "shared model could be made: a sentence asks for bounds."
)

pytestmark = pytest.mark.filterwarnings("ignore")

NEW_CLIENT = (
    "The rows of a new client are scaled by the rows that are predicted together, because scales "
    "over all clients would be a release without noise."
)


@parametrize_with_checks([PMTLClassifier(random_state=0), PMTLRegressor(random_state=0)])
def test_all_rows_of_one_client(estimator, check):
    """No failure is expected here; see `Grouped` for the shared model."""
    check(estimator)


class Grouped:
    """Three clients where a check gives no groups. The shared model answers."""

    def fit(self, X, y, *, groups=None):
        rows = X.shape[0] if hasattr(X, "shape") else len(np.asarray(X))
        return super().fit(X, y, groups=np.arange(rows) % 3)


class GroupedRegressor(Grouped, PMTLRegressor):
    pass


def test_the_shared_model_of_three_clients():
    made = GroupedRegressor(epsilon=np.inf, random_state=0)
    known = {
        "check_fit_score_takes_y": NO_SIZE,
        "check_supervised_y_2d": NO_SIZE,
        "check_methods_subset_invariance": NEW_CLIENT,
    }
    results = check_estimator(made, on_fail=None, expected_failed_checks=known)
    found = {one["check_name"]: one["status"] for one in results}
    assert [name for name, status in found.items() if status == "failed"] == []
    assert {name for name, status in found.items() if status == "xfail"} == set(known)


def test_with_bounds_the_shared_model_answers_every_row_for_itself(table):
    model = PMTLClassifier(epsilon=8, bounds=[(-4, 4)] * 4, random_state=0)
    model.fit(table.x, table.y, groups=table.groups)
    new = np.full(len(table.x), "a new one")
    together = model.predict_proba(table.x, groups=new)
    single = [model.predict_proba(row[None], groups=["a new one"]) for row in table.x[:5]]
    np.testing.assert_allclose(np.concatenate(single), together[:5], rtol=1e-6)
