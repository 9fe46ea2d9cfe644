"""The results of one setting on one data set, and the best result for an ε.

ε follows from σ, γ and the number of rounds, so one curve serves many ε. It is counted in two ways:

- *paper's*: as the authors' code does (Rényi, Poisson sampling, a client added or removed, δ =
  1/m), to compare with the printed numbers. It is not the ε of the paper's own definition.
- *ours*: one client replaced, with the sampling that was used. This one is correct.

As in the paper, experiments use exact metrics and do not pay for choosing the best of many runs
(`pmtl privacy selection` says what that costs).
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
    """A run up to a round."""

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
        """Results are stored in a subfolder of `out`; `data` is a file, a federation, or None for
        the setting's own data."""
        self.setting = setting
        self.out = out / setting.name
        self._runner = TaskRunner(setting, self.out / "cells", data, device)
        title = f"runs on {setting.name}"
        super().__init__(self._runner.read, self._runner.do, title, jobs, show)
        with files.disk_errors(self.out):
            (self.out / "cells").mkdir(parents=True, exist_ok=True)
        self._check_setting(data)

    @property
    def data(self) -> FederatedData:
        return self._runner.data

    def define(self, name: str, algorithm: Algorithm) -> str:
        """Register a name in cells for an algorithm that has no spec; returns the name."""
        self._runner.defined[name] = algorithm
        return name

    def plan(self, sigma: float, clip: float, rounds: int) -> PrivacyPlan:
        """The privacy plan of a run of `rounds` rounds."""
        return self._runner.plan(sigma, clip, rounds)

    def epsilon(self, counting: Counting, cell: Cell, rounds: int) -> float:
        """The ε of a cell's run up to a round; ∞ without noise or without clipping."""
        if cell.sigma == 0 or math.isinf(cell.clip):
            return math.inf
        return _epsilon(counting, self.plan(cell.sigma, cell.clip, rounds))

    def curve(self, cell: Cell) -> list[Result]:
        """The cell's metrics, round by round; empty if they are missing or the run failed."""
        found: list[Result] = self.get(Task("curve", cell)).get("curve", [])
        return found

    def tuned(self, cell: Cell, rounds: int) -> dict[str, Result]:
        """The metrics after fine-tuning the models of a round, by method and start; validation rows
        choose λ."""
        found: dict[str, Result] = self.get(Task("tuned", cell, rounds)).get("tuned", {})
        return found

    def chosen(self, cell: Cell, rounds: int) -> Result | None:
        """The metrics if every client chooses among the models of a round: shared, personal,
        fine-tuned or trained alone; and how often each was chosen."""
        return self.get(Task("chosen", cell, rounds)).get("chosen")

    def fill(self) -> None:
        """Compute what is missing."""
        # Written only now, so that a call with wrong arguments does not bind the folder.
        if self.missing and not self._claim_file.exists():
            files.write_json(self._claim_file, self._claim)
        super().fill()

    def _check_setting(self, given: str | FederatedData | None) -> None:
        """Refuse to mix the results of two settings in one folder."""
        if isinstance(given, FederatedData):
            given = given.fingerprint()
        elif given is not None:
            given = Path(given).name  # Its folder does not matter.
        described: dict[str, Any] = {**asdict(self.setting), "given": given}
        key = sha256(to_json(described).encode()).hexdigest()[:16]
        self._claim = {"setting": described, "key": key}
        self._claim_file = self.out / "setting.json"
        if self._claim_file.exists() and files.read_json(self._claim_file).get("key") != key:
            raise PmtlError(
                f"{self.out} holds results of other settings (such as --quick) or other data: use "
                "another folder (--out)."
            )

    def grid(
        self, family: str, private: bool = True, names: Sequence[str] | None = None
    ) -> list[Cell]:
        """All cells of an algorithm with the first seed: (σ, γ) from the paper's grid or, if not
        `private`, without noise and clipping; with every λ if it has one, or with these `names`."""
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
        """The point with the highest validation accuracy among those with at most this ε, with the
        first seed; None if there is none, or a curve is still missing."""
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
        """Test accuracies of a point, one for each seed whose run did not fail."""
        return [
            accuracy(found, "test", view)
            for cell in self.seeds(point)
            for found in self.curve(cell)
            if found["round"] == point.rounds
        ]

    def seeds(self, point: Point) -> list[Cell]:
        """The runs of a point with all seeds."""
        return [replace(point.cell, seed=seed) for seed in self.setting.seeds]

    def score(
        self, cells: Iterable[Cell], epsilon: float, counting: Counting, view: str
    ) -> Spread | None:
        """Test accuracy, over all seeds, of the best of these cells with at most this ε."""
        point = self.best(cells, epsilon, counting, view)
        return None if point is None else spread(self.reported(point, view))

    def local(self) -> Spread | None:
        """Test accuracy of training alone; validation rows choose the number of rounds."""
        cells = [Cell("local", 0.0, math.inf, self.setting.seeds[0])]
        return self.score(cells, math.inf, "ours", "personal")


@cache
def _epsilon(counting: Counting, plan: PrivacyPlan) -> float:
    from pmtl.privacy.accounting import accountant, poisson

    if counting == "ours":
        return accountant.epsilon(plan)
    return poisson.authors_epsilon(plan.noise_multiplier, plan.rate, plan.rounds, plan.delta)
