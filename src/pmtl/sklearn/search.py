"""What it costs to fit again and again on the rows of the same clients.

Every fit publishes. A search over k settings with c folds fits k · c models and one more, and each
of them is released at the estimator's ε. `note_fit` counts the fits of this process and warns at the
second, fourth, eighth, … fit on the same clients; `search_cost` computes the cost of a search.

Choosing by cross-validation scores is a release of its own: the scores are exact numbers from
held-out rows, which no ε covers. `pmtl privacy selection` has a protocol with noisy scores whose
cost is proven (`privacy/accounting/selection.py`).
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.model_selection import ParameterGrid, check_cv

from pmtl.data.client_names import encode
from pmtl.errors import PmtlError, PmtlWarning
from pmtl.privacy.accounting import composition, selection
from pmtl.privacy.ledger.charges import total
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan, PrivacyRequest
from pmtl.runs.result import Run

_SEARCHED = (
    "This is private fit number {fits} in this process on the same clients ({clients} names in "
    "common with earlier fits). One fit costs ε = {one:.3g}; all of them together cost ε = "
    "{all:.3g} at δ = {delta:.2g} if their models are seen by anybody. Choosing by scores of "
    "clients' rows is not covered by any of these numbers: see pmtl.sklearn.search_cost and "
    "`pmtl privacy selection`. (If these are other clients of the same names, ignore this.)"
)

#: The private fits of this process: the clients' names, and what was released about them.
_fits: list[tuple[frozenset[str], Counter[GaussianEvent]]] = []


def note_fit(run: Run) -> None:
    """Remember a fit, and warn if it is one of many on the same clients."""
    events = _events(run)
    if not events:
        return
    names = frozenset(run.clients)
    before = [(others, spent) for others, spent in _fits if not names.isdisjoint(others)]
    _fits.append((names, events))
    fits = len(before) + 1
    if fits < 2 or fits & (fits - 1):  # Powers of two: a long search does not warn at every fit.
        return
    delta = run.facts.plan.delta
    try:
        one, together = (
            composition.epsilon(spent, delta)
            for spent in (events, total([events, *(spent for _, spent in before)]))
        )
    except ImportError:  # Secret coins need dp-accounting.
        return
    common = len(names & frozenset().union(*(others for others, _ in before)))
    sentence = _SEARCHED.format(fits=fits, clients=common, one=one, all=together, delta=delta)
    warnings.warn(PmtlWarning(sentence), stacklevel=4)


def _events(run: Run) -> Counter[GaussianEvent]:
    """What a run released, or nothing if it shares nothing or has no finite ε."""
    if not run.facts.shares or not run.facts.plan.private:
        return Counter()
    return Counter({GaussianEvent.of(run.facts.plan): run.facts.plan.rounds})


@dataclass(frozen=True)
class SearchCost:
    """What a search costs every client. `str` says it in words."""

    candidates: int  #: settings that compete
    fits: int  #: models that are trained: candidates × folds, and the refit
    clients: int
    delta: float
    one_fit: float  #: ε of one fit; the largest, if candidates differ
    all_fits: float  #: ε of all fits, if their models are seen by anybody
    publish_best: float  #: ε of a private choice among the candidates, by the `protocol`
    protocol: str

    def __str__(self) -> str:
        return (
            f"{self.candidates} settings, {self.fits} fits on {self.clients} clients. One fit: "
            f"ε = {self.one_fit:.3g}. All fits: ε = {self.all_fits:.3g} at δ = {self.delta:.2g}, "
            "if their models are seen by anybody; the search's scores are exact, and what is "
            "chosen by them is not covered. A private choice among these settings costs "
            f"ε = {self.publish_best:.3g}. {self.protocol}"
        )


def search_cost(search: Any, groups: Any) -> SearchCost:
    """The cost of a `GridSearchCV` or `RandomizedSearchCV` over an estimator of this package,
    before or after it is fitted. Every client is counted in every fit, which is never too little.

    Args:
        search: the search; its estimator may be a pipeline that ends in one of ours.
        groups: the client of each row.
    """
    estimator = getattr(search, "estimator", None)
    if estimator is None:
        raise PmtlError(
            f"search_cost needs a search such as GridSearchCV, but a {type(search).__name__} was "
            "given."
        )
    settings = _settings(search)
    clients = len(encode(np.asarray(groups), "group").names)
    plans = [_plan(estimator, changes, clients) for changes in settings]
    folds = check_cv(search.cv, classifier=True).get_n_splits(groups=groups)
    if hasattr(search, "n_splits_"):
        folds = search.n_splits_
    fits = [(plan, folds) for plan in plans]
    delta = max(plan.delta for plan in plans)
    each = [Counter({GaussianEvent.of(plan): plan.rounds * times}) for plan, times in fits]
    dearest = max(plans, key=lambda plan: composition.epsilon(_one(plan), delta))
    if search.refit:
        each.append(_one(dearest))
    priced = selection.report(dearest, len(plans)) if dearest.private else None
    return SearchCost(
        candidates=len(plans),
        fits=len(plans) * folds + bool(search.refit),
        clients=clients,
        delta=delta,
        one_fit=composition.epsilon(_one(dearest), delta),
        all_fits=composition.epsilon(total(each), delta),
        publish_best=math.inf if priced is None else priced["publish_best"],
        protocol="" if priced is None else priced["protocol"],
    )


def _one(plan: PrivacyPlan) -> Counter[GaussianEvent]:
    return Counter({GaussianEvent.of(plan): plan.rounds})


def _settings(search: Any) -> list[Mapping[str, Any]]:
    """The candidates of a search."""
    if hasattr(search, "cv_results_"):
        return list(search.cv_results_["params"])
    if hasattr(search, "param_grid"):
        return list(ParameterGrid(search.param_grid))
    if hasattr(search, "n_iter"):  # Drawn when it is fitted; their number is what counts.
        return [{}] * int(search.n_iter)
    raise PmtlError(
        f"The candidates of a {type(search).__name__} are not known before it is fitted: fit it, or "
        "use GridSearchCV."
    )


def _plan(estimator: Any, changes: Mapping[str, Any], clients: int) -> PrivacyPlan:
    """The plan of one fit with these settings: by its ε and δ, in a single release."""
    from sklearn.base import clone

    from pmtl.sklearn.base import PMTLEstimator

    made = clone(estimator).set_params(**changes)
    last = made.steps[-1][1] if hasattr(made, "steps") else made
    if not isinstance(last, PMTLEstimator):
        raise PmtlError(
            f"search_cost is for PMTLClassifier and PMTLRegressor, and this search fits a "
            f"{type(last).__name__}."
        )
    asked = {"rounds": 1, **last._privacy()}
    return PrivacyRequest(**asked).resolve(clients)
