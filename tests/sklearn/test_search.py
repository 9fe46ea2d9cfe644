"""What searches and repeated fits say about their cost."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, RandomizedSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pmtl.errors import PmtlError, PmtlWarning
from pmtl.privacy.accounting import gaussian, selection
from pmtl.privacy.request import PrivacyRequest
from pmtl.sklearn import PMTLClassifier, search_cost

FOLDS = KFold(2, shuffle=True, random_state=0)
ESTIMATOR = PMTLClassifier(random_state=0)
DELTA = 1 / 400


def told(call, *words):
    """The warnings about the cost of several fits."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    sentences = [str(one.message) for one in caught if issubclass(one.category, PmtlWarning)]
    return [sentence for sentence in sentences if "private fit" in sentence]


def together(epsilon, fits):
    """ε of so many fits, from μ of one: Gaussian mechanisms compose by squares."""
    mu = gaussian.mu_for(epsilon, DELTA) * math.sqrt(fits)
    return gaussian.epsilon(mu, DELTA)


def test_a_single_fit_says_nothing(table):
    assert told(lambda: ESTIMATOR.fit(table.x, table.y, groups=table.groups)) == []


def test_a_grid_search_says_what_it_costs_before_it_spends(table):
    search = GridSearchCV(ESTIMATOR, {"algorithm": ["pooling", "pooling:rounds=4"]}, cv=FOLDS)
    said = told(lambda: search.fit(table.x, table.y, groups=table.groups))
    assert len(said) == 1, "once for the whole search"
    assert "This search makes 5 private fits on 40 clients. One costs ε = 2;" in said[0]
    assert f"together cost ε = {together(2, 5):.3g} at δ = 0.0025" in said[0]
    again = told(lambda: search.fit(table.x, table.y, groups=table.groups))
    assert len(again) == 1, "and again if it is fitted again"


def test_a_search_over_a_pipeline_is_found(table):
    steps = make_pipeline(StandardScaler(), ESTIMATOR)
    grid = {"pmtlclassifier__epsilon": [1.0, 4.0]}
    search = GridSearchCV(steps, grid, cv=FOLDS, refit=False)
    said = told(lambda: search.fit(table.x, table.y, groups=table.groups))
    assert len(said) == 1
    assert "4 private fits on 40 clients. One costs ε = 4;" in said[0]


def test_without_privacy_there_is_no_cost(table):
    search = GridSearchCV(ESTIMATOR, {"epsilon": [math.inf]}, cv=FOLDS)
    assert told(lambda: search.fit(table.x, table.y, groups=table.groups)) == []


def test_a_loop_of_fits_is_told_at_the_second_and_fourth(table):
    def loop():
        for _ in range(5):
            ESTIMATOR.fit(table.x, table.y, groups=table.groups)

    said = told(loop)
    assert ["private fit number 2" in one for one in said] == [True, False]
    assert f"ε = {together(2, 2):.3g}" in said[0]
    assert "private fit number 4" in said[1]
    assert f"ε = {together(2, 4):.3g}" in said[1]


def test_fits_on_other_clients_are_not_counted(table):
    def two():
        ESTIMATOR.fit(table.x, table.y, groups=table.groups)
        ESTIMATOR.fit(table.x, table.y, groups=[f"b {group}" for group in table.groups])

    assert told(two) == []


class TestCost:
    def test_before_the_search(self, table):
        search = GridSearchCV(ESTIMATOR, {"share": [None] * 3}, cv=FOLDS)
        cost = search_cost(search, table.groups)
        assert (cost.candidates, cost.fits, cost.clients, cost.delta) == (3, 7, 40, DELTA)
        assert cost.one_fit == pytest.approx(2)
        assert cost.all_fits == pytest.approx(together(2, 7))
        plan = PrivacyRequest(epsilon=2).resolve(40)
        assert cost.publish_best == selection.report({plan: 3})["publish_best"] > 2
        assert "3 settings, 7 fits on 40 clients" in str(cost)

    def test_after_the_search_it_is_the_same(self, table):
        search = GridSearchCV(ESTIMATOR, {"epsilon": [1.0, 4.0]}, cv=FOLDS)
        before = search_cost(search, table.groups)
        search.fit(table.x, table.y, groups=table.groups)
        assert search_cost(search, table.groups) == before

    def test_different_epsilons_are_added_up(self, table):
        search = GridSearchCV(ESTIMATOR, {"epsilon": [1.0, 4.0]}, cv=FOLDS, refit=False)
        squares = sum(2 * gaussian.mu_for(epsilon, DELTA) ** 2 for epsilon in (1.0, 4.0))
        cost = search_cost(search, table.groups)
        assert cost.all_fits == pytest.approx(gaussian.epsilon(math.sqrt(squares), DELTA))

    def test_infinite_epsilon(self, table):
        search = GridSearchCV(ESTIMATOR, {"epsilon": [1.0, math.inf]}, cv=FOLDS)
        assert search_cost(search, table.groups).all_fits == math.inf

    def test_a_random_search(self, table):
        search = RandomizedSearchCV(ESTIMATOR, {"epsilon": [2.0]}, n_iter=4, cv=3)
        assert search_cost(search, table.groups).fits == 13

    def test_what_is_no_search_is_refused(self, table):
        with pytest.raises(PmtlError, match="needs a search such as GridSearchCV"):
            search_cost(ESTIMATOR, table.groups)
        other = GridSearchCV(LogisticRegression(), {"C": [1, 2]})
        with pytest.raises(PmtlError, match="this search fits a LogisticRegression"):
            search_cost(other, np.arange(9))
