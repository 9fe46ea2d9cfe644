"""From σ, γ and rounds to ε, counted in two ways; and the best that an ε buys.

- *paper's*: as the authors' code counts (Rényi, Poisson coins, a client added or removed, δ = 1/m).
  For comparison with the printed numbers only: it is not the ε of the paper's own definition.
- *ours*: one client replaced, the coins that were really thrown. This one holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pmtl import storage as files
from pmtl.experiments.result_cache import ResultCache
from pmtl.experiments.tasks import Cell, accuracy

Counting = Literal["paper's", "ours"]
COUNTINGS: tuple[Counting, ...] = ("paper's", "ours")


class Epsilons:
    """ε of any point of a lab's curves, remembered in a file."""

    def __init__(self, lab: ResultCache) -> None:
        self._lab = lab
        self._file = lab.out / "epsilons.json"
        self._known: dict[str, float] = {}
        if self._file.exists():
            told = files.read_json(self._file)
            self._known = {name: float(told[name]) for name in told if name != "digest"}

    def __call__(self, counting: Counting, sigma: float, clip: float, rounds: int) -> float:
        """∞ without noise or without a clip."""
        if sigma == 0 or math.isinf(clip):
            return math.inf
        plan = self._lab.plan(sigma, clip, rounds)
        name = f"{counting} z={plan.noise_multiplier:.6g} p={plan.rate:.6g} T={rounds}"
        if name not in self._known:
            self._known[name] = _epsilon(counting, plan)
            files.write_json(self._file, self._known)
        return self._known[name]


def _epsilon(counting: Counting, plan: object) -> float:
    from pmtl.privacy.accounting import accountant, poisson
    from pmtl.privacy.plan import PrivacyPlan

    assert isinstance(plan, PrivacyPlan)
    if counting == "ours":
        return accountant.epsilon(plan)
    return poisson.authors_epsilon(plan.noise_multiplier, plan.rate, plan.rounds, plan.delta)


#: What λ is called where there is one.
_LAM = {"pmtl": "lam", "ditto": "lam", "fedprox": "mu"}


@dataclass(frozen=True)
class Point:
    """A run up to a round: what is chosen between."""

    cell: Cell
    rounds: int


def grid(
    lab: ResultCache, family: str, private: bool = True, names: Sequence[str] | None = None
) -> list[Cell]:
    """All cells of the first seed of an algorithm with (σ, γ) from the paper's grid, or, if it is
    not private, without noise and clip; with every λ where it has one, unless they are `names`."""
    setting, seed = lab.setting, lab.setting.seeds[0]
    if names is None and family not in _LAM:
        names = [family]
    if names is None:
        lams = setting.lams if private else setting.free_lams or setting.lams
        server = ""
        if family == "pmtl" and setting.at_the_mean:
            server = f",server={min(setting.cohort, lab.data.m) / lab.data.m:.6g}"
        names = [f"{family}:{_LAM[family]}={lam:g}{server}" for lam in lams]
    pairs = [(0.0, math.inf)]
    if private:
        pairs = [(sigma, clip) for sigma in setting.sigmas for clip in setting.clips]
    rounds = None if private else setting.free_rounds
    return [Cell(name, sigma, clip, seed, rounds) for name in names for sigma, clip in pairs]


def best(
    lab: ResultCache,
    epsilons: Epsilons,
    cells: Iterable[Cell],
    epsilon: float,
    counting: Counting,
    view: str,
) -> Point | None:
    """The point with the highest validation accuracy among those that ε pays for; None if there is
    none, or not all curves are there yet. Only the first seed is looked at, and all of them are
    reported."""
    curves = {cell: lab.curve(cell) for cell in cells}
    affordable = [
        (accuracy(point, "validation", view), -point["round"], cell)
        for cell, curve in curves.items()
        for point in curve
        if epsilons(counting, cell.sigma, cell.clip, point["round"]) <= epsilon
    ]
    if lab.lacks(curves) or not affordable:
        return None
    _, minus_rounds, cell = max(affordable, key=lambda found: found[:2])
    return Point(cell, -minus_rounds)


def reported(lab: ResultCache, point: Point, view: str) -> list[float]:
    """Test accuracies of a chosen point, one for each seed whose run did not fail."""
    found = []
    for seed in lab.setting.seeds:
        curve = lab.curve(replace(point.cell, seed=seed))
        found += [accuracy(p, "test", view) for p in curve if p["round"] == point.rounds]
    return found
