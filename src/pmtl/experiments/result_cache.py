"""Keeps what experiments ask for: every task's result is a file, and asked again it is read.

Experiments just ask. What is not there yet is put down, and the answer is empty; when it has been
computed (several tasks at once, if so wished), the experiment is run again, until nothing is
missing. A task that fails says so in its file, and the others go on.

The budget is in no file: ε follows from σ, γ and the number of rounds, so that one curve serves
every ε that is passed on its way. These are experiments on data that one already has: they look at
exact metrics, and choosing the best of many runs is not paid for, as in the paper.
`pmtl privacy selection` says what that would cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from pmtl import storage as files
from pmtl.algorithms import Algorithm
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.experiments.process_pool import run_tasks
from pmtl.experiments.settings import Setting
from pmtl.experiments.tasks import Cell, Result, Task, Work
from pmtl.jsontext import to_json
from pmtl.privacy.plan import PrivacyPlan
from pmtl.progress import progress_bar


class ResultCache:
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
        """`jobs` tasks are done at once; `show` is for a progress bar."""
        if jobs < 1:
            raise PmtlError(f"There is at least one job at a time, and not {jobs}.")
        self.setting = setting
        self.out = out / setting.name
        self.missing: dict[Task, None] = {}  #: asked for and not there, in order
        self.failures: dict[str, str] = {}  #: what was tried in vain, and why
        self._work = Work(setting, data, device)
        self._jobs = jobs
        self._show = show
        with files.disk_errors(self.out):
            (self.out / "cells").mkdir(parents=True, exist_ok=True)
        self._check_same(data)

    def define(self, name: str, algorithm: Algorithm) -> str:
        """Give an algorithm that no spec can name a name for cells; returns the name."""
        self._work.defined[name] = algorithm
        return name

    @property
    def data(self) -> FederatedData:
        return self._work.data

    def plan(self, sigma: float, clip: float, rounds: int) -> PrivacyPlan:
        """What such a run of so many rounds pays for."""
        return self._work.plan(sigma, clip, rounds)

    def curve(self, cell: Cell) -> list[Result]:
        """The cell's metrics, round by round; empty if they are missing or it failed."""
        found: list[Result] = self._kept(Task("curve", cell)).get("curve", [])
        return found

    def tuned(self, cell: Cell, rounds: int) -> Mapping[str, Result]:
        """The metrics after fine-tuning the models of that round, by method and start; λ is chosen
        by validation rows."""
        found: dict[str, Result] = self._kept(Task("tuned", cell, rounds)).get("tuned", {})
        return found

    def chosen(self, cell: Cell, rounds: int) -> Result | None:
        """The metrics when every client chooses for itself among the models of that round, shared,
        personal, fine-tuned or its own alone; and how often each was chosen."""
        return self._kept(Task("chosen", cell, rounds)).get("chosen")

    def lacks(self, cells: Iterable[Cell]) -> bool:
        """Whether any of these curves is still to be computed."""
        return any(Task("curve", cell) in self.missing for cell in cells)

    def fill(self) -> None:
        """Compute what is missing."""
        tasks, self.missing = list(self.missing), {}
        if not tasks:
            return
        self._claim()
        with progress_bar(f"runs on {self.setting.name}", len(tasks), show=self._show) as bar:
            for task, result in run_tasks(self._work, tasks, self._jobs):
                files.write_json(self._file(task), result)
                if "error" in result:
                    self.failures[task.name()] = result["error"]
                bar.advance(task.name())

    def _kept(self, task: Task) -> Result:
        """The task's result, if it is there."""
        file = self._file(task)
        kept = files.read_json(file) if file.exists() else {"error": "not yet"}
        if "error" not in kept and kept.get("rule") != task.rule:
            kept = {"error": "of another rule"}
        if "error" in kept and task.name() not in self.failures:
            self.missing[task] = None
        return kept

    def _file(self, task: Task) -> Path:
        return self.out / "cells" / f"{task.name()}.json"

    def _check_same(self, given: str | FederatedData | None) -> None:
        """Refuse to mix the results of two settings in one folder."""
        told: dict[str, Any] = {**asdict(self.setting), "given": _words(given)}
        self._told = {"setting": told, "key": sha256(to_json(told).encode()).hexdigest()[:16]}
        file = self.out / "setting.json"
        if file.exists() and files.read_json(file).get("key") != self._told["key"]:
            raise PmtlError(
                f"{self.out} holds results of other settings (--quick has its own) or other data: "
                "use another folder (--out)."
            )

    def _claim(self) -> None:
        """Say whose results the folder holds, once there are some: a mistake claims nothing."""
        if not (self.out / "setting.json").exists():
            files.write_json(self.out / "setting.json", self._told)


def _words(given: str | FederatedData | None) -> str | None:
    """What data was given, without the folder it lies in."""
    if isinstance(given, FederatedData):
        return given.fingerprint()
    return None if given is None else Path(given).name
