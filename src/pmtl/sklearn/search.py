"""The cost of several fits on the rows of the same clients.

Every fit publishes. A search over k settings with c folds fits k · c models and one more, and each
of them is released at the estimator's ε. A search reports its cost before its first fit
(`warn_of_search`). Fits outside a search are counted (`note_fit`), with a warning at the second,
fourth, eighth, … fit of this process on the same clients.

Choosing by cross-validation scores is a release of its own: the scores are exact numbers from
held-out rows, which no ε covers. `pmtl privacy selection` has a protocol with noisy scores whose
cost is proven (`privacy/accounting/selection.py`).
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid, check_cv
from sklearn.model_selection._search import BaseSearchCV

from pmtl.data.client_names import encode
from pmtl.errors import PmtlError, PmtlWarning
from pmtl.privacy.accounting import composition, selection
from pmtl.privacy.ledger.events import Events, GaussianEvent, total
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.result import Run

_SEARCH = (
    "This search makes {0.fits} private fits on {0.clients} clients. One costs "
    "ε = {0.one_fit:.3g}; all of them together cost ε = {0.all_fits:.3g} at δ = {0.delta:.2g} if "
    "their models are shown to anyone, and the choice among {0.candidates} settings by scores of "
    "clients' rows is not covered by these numbers. A private choice costs "
    "ε = {0.publish_best:.3g}: see pmtl.sklearn.search_cost."
)
_AGAIN = (
    "This is private fit number {fits} in this process on clients of the same names. One fit costs "
    "ε = {one:.3g}; all of them together cost ε = {all:.3g} at δ = {delta:.2g} if their models are "
    "shown to anyone. A choice among them by scores of clients' rows costs more: see "
    "`pmtl privacy selection`. (If these are other clients of the same names, ignore this.)"
)


@dataclass(frozen=True)
class SearchCost:
    """What a search costs every client; `str` gives it as text."""

    candidates: int  #: settings that compete
    fits: int  #: models that are trained: candidates × folds, and the refit
    clients: int  #: clients of the federation
    delta: float  #: δ of all ε here
    one_fit: float  #: ε of one fit; the largest, if candidates differ
    all_fits: float  #: ε of all fits, if their models are shown to anyone
    publish_best: float  #: ε of a private choice among the candidates, by the `protocol`
    protocol: str  #: the rules of a private choice, as text

    def __str__(self) -> str:
        return (
            f"{self.candidates} settings, {self.fits} fits on {self.clients} clients. One fit: "
            f"ε = {self.one_fit:.3g}. All fits: ε = {self.all_fits:.3g} at δ = {self.delta:.2g}, "
            "if their models are shown to anyone; the search's scores are exact, and what is "
            "chosen by them is not covered. A private choice among these settings costs "
            f"ε = {self.publish_best:.3g}. {self.protocol}"
        )


def search_cost(search: Any, groups: Any) -> SearchCost:
    """The cost of a `GridSearchCV` or `RandomizedSearchCV` over an estimator of this package,
    before or after it is fitted. Every client counts in every fit, so the cost is never too low.

    Args:
        search: the search; its estimator may be a pipeline that ends in one of ours.
        groups: the client of each row.
    """
    if not isinstance(search, BaseSearchCV):
        raise PmtlError(
            f"search_cost needs a search such as GridSearchCV, but a {type(search).__name__} was "
            "given."
        )
    clients = len(encode(np.asarray(groups), "group").names)
    if hasattr(search, "n_splits_"):
        folds = int(search.n_splits_)
    else:
        folds = int(check_cv(search.cv, classifier=True).get_n_splits(groups, groups, groups))
    return _cost(search, _settings(search), folds, clients)


def _cost(
    search: Any, settings: Sequence[Mapping[str, Any]], folds: int, clients: int
) -> SearchCost:
    plans = [_plan(search.estimator, changes, clients) for changes in settings]
    delta = max(plan.delta for plan in plans)
    dearest = max(plans, key=lambda plan: composition.epsilon(_events(plan), delta))
    spent = [_events(plan, folds) for plan in plans] + [_events(dearest)] * bool(search.refit)
    nothing: dict[str, Any] = {"publish_best": math.inf, "protocol": "ε is infinite."}
    chosen = selection.report({dearest: len(plans)}) if dearest.private else nothing
    return SearchCost(
        candidates=len(plans),
        fits=len(spent) + len(plans) * (folds - 1),
        clients=clients,
        delta=delta,
        one_fit=composition.epsilon(_events(dearest), delta),
        all_fits=composition.epsilon(total(spent), delta),
        publish_best=chosen["publish_best"],
        protocol=chosen["protocol"],
    )


def _settings(search: Any) -> list[Mapping[str, Any]]:
    """The candidates of a search."""
    if hasattr(search, "cv_results_"):
        return list(search.cv_results_["params"])
    halving = hasattr(search, "factor")
    if hasattr(search, "param_grid") and not halving:
        return list(ParameterGrid(search.param_grid))
    if hasattr(search, "n_iter"):  # Drawn when it is fitted; their number is what counts.
        return [{}] * int(search.n_iter)
    raise PmtlError(
        f"The fits of a {type(search).__name__} are not known before it is fitted: fit it "
        "first, or use GridSearchCV."
    )


def _plan(estimator: Any, changes: Mapping[str, Any], clients: int) -> PrivacyPlan:
    """The plan of one fit with these settings, by its ε and δ. (With full participation all plans
    of one ε and δ cost the same, also together, however many rounds they have.)"""
    from pmtl.sklearn.base import PMTLEstimator

    made = clone(estimator).set_params(**changes)
    last = made.steps[-1][1] if hasattr(made, "steps") else made
    if not isinstance(last, PMTLEstimator):
        raise PmtlError(
            f"search_cost is for PMTLClassifier and PMTLRegressor, but this search fits a "
            f"{type(last).__name__}."
        )
    return PrivacyRequest(**last._privacy()).resolve(clients)


def _events(plan: PrivacyPlan, times: int = 1) -> Events:
    return Counter({GaussianEvent.of(plan): plan.rounds * times})


#: The candidates of searches that have announced their cost.
_announced: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def warn_of_search(clients: int) -> bool:
    """Warn, before anything is spent, of the cost of the search that this fit is part of. Returns
    whether this fit is part of a search whose cost has been reported.

    Joblib's sequential backend calls `fit` below the search's own methods, where it is found. Fits
    in other processes are only counted.
    """
    search, candidates, folds = _search_above()
    if search is None:
        return False
    if candidates is None or _announced.get(search) is candidates:
        return search in _announced  # None: the refit, at the end.
    try:
        cost = _cost(search, candidates, folds, clients)
    except (PmtlError, ImportError):  # Another estimator; no library to compute it with.
        return False
    _announced[search] = candidates
    if cost.one_fit < math.inf:
        warnings.warn(PmtlWarning(_SEARCH.format(cost)), stacklevel=4)
    return True


def _search_above() -> tuple[Any, list[Any] | None, int]:
    """The search that is running, its candidates and its number of folds, from the local names of
    `evaluate_candidates` in scikit-learn's searches."""
    frame: FrameType | None = sys._getframe(1)
    candidates, folds = None, 0
    while frame is not None:
        name = frame.f_code.co_name
        known = frame.f_locals if name in ("fit", "evaluate_candidates") else {}
        if name == "evaluate_candidates":
            candidates, folds = known.get("candidate_params"), known.get("n_splits", 0)
        if isinstance(known.get("self"), BaseSearchCV):
            return known["self"], candidates, folds
        frame = frame.f_back
    return None, None, 0


#: The private fits of this process: how many, and what they released, by the clients' names.
_fits: dict[frozenset[str], list[PrivacyPlan]] = {}


def note_fit(run: Run, announced: bool) -> None:
    """Count a fit and, unless its search was `announced`, warn of others on the same clients."""
    plan = run.facts.plan
    if not run.facts.shares or not plan.private:
        return
    names = frozenset(run.clients)
    _fits.setdefault(names, []).append(plan)
    plans = [each for others in _fits for each in _fits[others] if not names.isdisjoint(others)]
    fits = len(plans)
    if announced or fits < 2 or fits & (fits - 1):  # Powers of two, so that loops are not flooded.
        return
    try:
        one = composition.epsilon(_events(plan), plan.delta)
        together = composition.epsilon(total(map(_events, plans)), plan.delta)
    except ImportError:  # Secret coins need dp-accounting.
        return
    sentence = _AGAIN.format(fits=fits, one=one, all=together, delta=plan.delta)
    warnings.warn(PmtlWarning(sentence), stacklevel=4)
