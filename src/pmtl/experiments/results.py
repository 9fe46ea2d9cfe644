"""The results of one setting on one data set, and the best that an ε buys.

A curve's file holds no ε: that follows from σ, γ and the number of rounds, so that one curve serves
every ε that it passes. ε is counted in two ways:

- *paper's*: as the authors' code counts (Rényi, Poisson coins, a client added or removed, δ = 1/m).
  For comparison with the printed numbers only: it is not the ε of the paper's own definition.
- *ours*: one client replaced, the coins that were really thrown. This one holds.

These are experiments on data that one already has: they look at exact metrics, and choosing the
best of many runs is not paid for, as in the paper. `pmtl privacy selection` says what that costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pmtl import storage as files
from pmtl.algorithms import Algorithm
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.experiments.result_cache import Result, ResultCache
from pmtl.experiments.settings import Setting
from pmtl.experiments.sheet import Spread, spread
from pmtl.experiments.tasks import Cell, Task, TaskRunner, accuracy
from pmtl.jsontext import to_json
from pmtl.privacy.plan import PrivacyPlan

Counting = Literal["paper's", "ours"]
COUNTINGS: tuple[Counting, ...] = ("paper's", "ours")

#: What λ is called by the algorithms that have one.
_LAM = {"pmtl": "lam", "ditto": "lam", "fedprox": "mu"}


@dataclass(frozen=True)
class Point:
    """A run up to a round: what is chosen between."""

    cell: Cell
    rounds: int


class Results(ResultCache[Task]):
    """One setting on one data set, with a folder of results."""

    def __init__(
        self,
        setting: Setting,
        out: Path,
        data: str | FederatedData | None = None,
        device: str = "auto",
        jobs: int = 1,
        show: bool = False,
    ) -> None:
        """The results lie in a subfolder of `out`; `data` is a file, a federation, or None for the
        setting's own data."""
        self.setting = setting
        self.out = out / setting.name
        self._runner = TaskRunner(setting, self.out / "cells", data, device)
        title = f"runs on {setting.name}"
        super().__init__(self._runner.read, self._runner.do, title, jobs, show)
        with files.disk_errors(self.out):
            (self.out / "cells").mkdir(parents=True, exist_ok=True)
        self._check_same(data)

    @property
    def data(self) -> FederatedData:
        return self._runner.data

    def define(self, name: str, algorithm: Algorithm) -> str:
        """Give an algorithm that no spec can name a name for cells; returns the name."""
        self._runner.defined[name] = algorithm
        return name

    def plan(self, sigma: float, clip: float, rounds: int) -> PrivacyPlan:
        """What such a run of so many rounds pays for."""
        return self._runner.plan(sigma, clip, rounds)

    def epsilon(self, counting: Counting, cell: Cell, rounds: int) -> float:
        """The ε of a cell's run up to a round; ∞ without noise or without a clip."""
        if cell.sigma == 0 or math.isinf(cell.clip):
            return math.inf
        return _epsilon(counting, self.plan(cell.sigma, cell.clip, rounds))

    def curve(self, cell: Cell) -> list[Result]:
        """The cell's metrics, round by round; empty if they are missing or it failed."""
        found: list[Result] = self.get(Task("curve", cell)).get("curve", [])
        return found

    def tuned(self, cell: Cell, rounds: int) -> dict[str, Result]:
        """The metrics after fine-tuning the models of that round, by method and start; λ is chosen
        by validation rows."""
        found: dict[str, Result] = self.get(Task("tuned", cell, rounds)).get("tuned", {})
        return found

    def chosen(self, cell: Cell, rounds: int) -> Result | None:
        """The metrics when every client chooses for itself among the models of that round, shared,
        personal, fine-tuned or its own alone; and how often each was chosen."""
        return self.get(Task("chosen", cell, rounds)).get("chosen")

    def fill(self) -> None:
        """Compute what is missing."""
        # Only now, so that a mistake does not claim the folder for its setting.
        if self.missing and not self._claim_file.exists():
            files.write_json(self._claim_file, self._claim)
        super().fill()

    def _check_same(self, given: str | FederatedData | None) -> None:
        """Refuse to mix the results of two settings in one folder."""
        if isinstance(given, FederatedData):
            given = given.fingerprint()
        elif given is not None:
            given = Path(given).name  # The folder it lies in does not matter.
        described: dict[str, Any] = {**asdict(self.setting), "given": given}
        key = sha256(to_json(described).encode()).hexdigest()[:16]
        self._claim = {"setting": described, "key": key}
        self._claim_file = self.out / "setting.json"
        if self._claim_file.exists() and files.read_json(self._claim_file).get("key") != key:
            raise PmtlError(
                f"{self.out} holds results of other settings (--quick has its own) or other data: "
                "use another folder (--out)."
            )

    def grid(
        self, family: str, private: bool = True, names: Sequence[str] | None = None
    ) -> list[Cell]:
        """All cells of the first seed of an algorithm with (σ, γ) from the paper's grid, or, if not
        `private`, without noise and clip; with every λ where it has one, or with these `names`."""
        setting = self.setting
        if names is None and family not in _LAM:
            names = [family]
        if names is None:
            lams = setting.lams if private else setting.free_lams or setting.lams
            server = ""
            if family == "pmtl" and setting.at_the_mean:
                server = f",server={min(setting.cohort, self.data.m) / self.data.m:.6g}"
            names = [f"{family}:{_LAM[family]}={lam:g}{server}" for lam in lams]
        pairs = [(0.0, math.inf)]
        if private:
            pairs = [(sigma, clip) for sigma in setting.sigmas for clip in setting.clips]
        rounds = None if private else setting.free_rounds
        seed = setting.seeds[0]
        return [Cell(name, sigma, clip, seed, rounds) for name in names for sigma, clip in pairs]

    def best(
        self, cells: Iterable[Cell], epsilon: float, counting: Counting, view: str
    ) -> Point | None:
        """The point with the highest validation accuracy among those that ε pays for; None if there
        is none, or not all curves are there yet. Only the first seed is looked at."""
        curves = {cell: self.curve(cell) for cell in cells}
        affordable = [
            (accuracy(point, "validation", view), -point["round"], cell)
            for cell, curve in curves.items()
            for point in curve
            if self.epsilon(counting, cell, point["round"]) <= epsilon
        ]
        if not affordable or any(Task("curve", cell) in self.missing for cell in curves):
            return None
        _, minus_rounds, cell = max(affordable, key=lambda found: found[:2])
        return Point(cell, -minus_rounds)

    def reported(self, point: Point, view: str) -> list[float]:
        """Test accuracies of a chosen point, one for each seed whose run did not fail."""
        return [
            accuracy(found, "test", view)
            for cell in self.seeds(point)
            for found in self.curve(cell)
            if found["round"] == point.rounds
        ]

    def seeds(self, point: Point) -> list[Cell]:
        """The runs of a chosen point with all seeds."""
        return [replace(point.cell, seed=seed) for seed in self.setting.seeds]

    def score(
        self, cells: Iterable[Cell], epsilon: float, counting: Counting, view: str
    ) -> Spread | None:
        """Test accuracy of the best of these cells that ε pays for, over all seeds."""
        point = self.best(cells, epsilon, counting, view)
        return None if point is None else spread(self.reported(point, view))

    def local(self) -> Spread | None:
        """Test accuracy of training alone, for as many rounds as validation says."""
        cells = [Cell("local", 0.0, math.inf, self.setting.seeds[0])]
        return self.score(cells, math.inf, "ours", "personal")


@cache
def _epsilon(counting: Counting, plan: PrivacyPlan) -> float:
    from pmtl.privacy.accounting import accountant, poisson

    if counting == "ours":
        return accountant.epsilon(plan)
    return poisson.authors_epsilon(plan.noise_multiplier, plan.rate, plan.rounds, plan.delta)
