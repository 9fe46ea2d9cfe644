"""The terms of a private choice, fixed before it: what each run releases, and the total cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pmtl.algorithms import build_algorithm
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.experiments.compare import build
from pmtl.experiments.sweep.grid import Candidate, Cell, Grid, config_of
from pmtl.privacy.accounting import selection
from pmtl.privacy.plan import LEAST_EPSILON, PrivacyPlan
from pmtl.privacy.request import PrivacyRequest
from pmtl.privacy.statement.meaning import stated_deltas
from pmtl.runs.config import TrainConfig
from pmtl.runs.preparation import plans_of, settle
from pmtl.sharing import share_part

#: The relative distance of the price from the ε that is asked for; it is never larger than that ε.
_PRICE_TOLERANCE, _MAX_GUESSES = 1e-3, 25


@dataclass(frozen=True)
class Terms:
    """The fixed terms of a private choice."""

    epsilon: float  #: of each run by itself
    price: tuple[tuple[float, float], ...]  #: δ and ε of the whole choice, at δ and at smaller ones
    shape: float  #: of the distribution of the number of runs
    score: PrivacyPlan  #: of the release of one run's score
    plans: Mapping[Candidate, PrivacyPlan]  #: of each candidate's run
    report: dict[str, Any]  #: `selection.report` for these runs


def terms_of(grid: Grid, data: FederatedData) -> Terms:
    """The terms with the largest ε of a run with which the whole choice costs at most what was
    asked for, the ε of the grid."""
    (target,) = grid.epsilons
    low, high, guess = 0.0, target, target / 2
    found: Terms | None = None
    for _ in range(_MAX_GUESSES):
        if guess < LEAST_EPSILON:
            break
        terms = _terms(grid, data, guess)
        price = terms.report["publish_best"]
        if price <= target:
            low, found = guess, terms
            if price >= (1 - _PRICE_TOLERANCE) * target:
                break
        else:
            high = guess
        guess *= (1 - _PRICE_TOLERANCE / 2) * target / price  # The price is almost proportional.
        if not low < guess < high:
            guess = (low + high) / 2
    if found is None:
        raise PmtlError(
            f"No private choice between {len(grid.candidates())} settings costs as little as ε = "
            f"{target:g}: ask for a larger ε, or for fewer settings."
        )
    return found


def _terms(grid: Grid, data: FederatedData, epsilon: float) -> Terms:
    cells = [Cell(candidate, epsilon, grid.seeds[0]) for candidate in grid.candidates()]
    known: dict[PrivacyRequest, PrivacyPlan] = {}
    each = {cell.candidate: _plan(config_of(grid.base, cell), data, known) for cell in cells}
    plans = Counter(each.values())
    report = selection.report(plans)
    mixture, score = selection.releases(plans, report["one_run"])
    shape = next(eta for eta, name in selection.SHAPES.items() if name == report["runs_drawn"])
    delta = report["delta"]
    price = [(delta, report["publish_best"])]
    for smaller in stated_deltas(delta)[1:]:
        price.append((smaller, selection.epsilon(mixture, smaller, len(cells), shape)))
    plan = PrivacyPlan(
        clients=score.clients,
        cohort=score.cohort,
        sampling=score.sampling,
        clip_norm=score.clip_norm,
        noise_std=score.noise_std,
        rounds=1,
        delta=delta,
    )
    return Terms(epsilon, tuple(price), shape, plan, each, report)


def _plan(
    config: TrainConfig, data: FederatedData, known: dict[PrivacyRequest, PrivacyPlan]
) -> PrivacyPlan:
    """The plan of a run, as `train` makes it. Without an exact algorithm it depends on the privacy
    that is asked for only, and is looked up in `known`."""
    method = build_algorithm(config.algorithm)
    if not method.exact and config.privacy in known:
        return known[config.privacy]
    model, public = build(config, data)
    shared = share_part(settle(method, config, data, model), config.share, model, public.rows)
    plan = plans_of(config, data, shared)[0]
    if not method.exact:
        known[config.privacy] = plan
    return plan
