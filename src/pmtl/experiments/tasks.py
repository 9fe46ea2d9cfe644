"""The tasks of experiments.

A *cell* is one training run. Its curve has, after each of a few rounds, the metrics of personal and
shared models on validation and test rows. A *task* is a cell's curve, or fine-tuning or choosing
with the models of one of its rounds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pmtl import storage as files
from pmtl.algorithms import Algorithm, build_algorithm
from pmtl.data import FederatedData, Split, load
from pmtl.engines.process import resolve_device
from pmtl.errors import PmtlError, memory_errors
from pmtl.experiments.result_cache import Result
from pmtl.experiments.settings import Setting, measured_rounds
from pmtl.models import FlatModel, build_model
from pmtl.models.hog import HogLinear
from pmtl.personalize.choosing import candidates, choose
from pmtl.personalize.methods import METHODS, build_method
from pmtl.personalize.tuning import Workspace, tune
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.schemes import default_sampling
from pmtl.simulation import RowTensors, Simulation, Weights, evaluate, simulate


@dataclass(frozen=True)
class Cell:
    algorithm: str
    sigma: float
    clip: float
    seed: int
    rounds: int | None = None  #: the setting's unless given

    def __str__(self) -> str:
        """The name of its file."""
        plain = "".join(c if c.isalnum() or c in ".=-" else "-" for c in self.algorithm)
        length = "" if self.rounds is None else f"-of{self.rounds}"
        return f"{plain}-sigma{self.sigma:g}-clip{self.clip:g}-seed{self.seed}{length}"


@dataclass(frozen=True)
class Task:
    """Something to compute; its result is stored in a file."""

    kind: Literal["curve", "tuned", "chosen"]
    cell: Cell
    rounds: int | None = None  #: the round whose models are fine-tuned or chosen from

    def __str__(self) -> str:
        """The name of its file."""
        if self.kind == "curve":
            return str(self.cell)
        return f"{self.cell}-rounds{self.rounds}-{self.kind}"


@dataclass
class TaskRunner:
    """Does the tasks of one setting on one data set."""

    setting: Setting
    folder: Path  #: of results
    given: str | FederatedData | None = None  #: a file or a federation; None: the setting's own
    device: str = "auto"
    defined: dict[str, Algorithm] = field(default_factory=dict)  #: algorithms without a spec

    @cached_property
    def data(self) -> FederatedData:
        given = self.given
        loaded = given if isinstance(given, FederatedData) else load(self.setting.spec(given))
        return histograms(loaded) if self.setting.hog else loaded

    def plan(self, sigma: float, clip: float, rounds: int) -> PrivacyPlan:
        """The privacy plan of a run of `rounds` rounds; δ is 1/m, as in the paper."""
        m = self.data.m
        cohort = min(self.setting.cohort, m)
        sampling = default_sampling(m, cohort)
        return PrivacyPlan(
            clients=m,
            cohort=cohort,
            sampling=sampling,
            clip_norm=clip,
            noise_std=sigma,
            rounds=rounds,
            delta=1 / m,
        )

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which opens rows on disk again."""
        state = dict(self.__dict__)
        if "data" in state and isinstance(state["data"].x, np.memmap):
            del state["data"]
        return state

    def read(self, task: Task) -> Result | None:
        """The stored result; None if there is none, or the task failed."""
        file = self._file(task)
        stored = files.read_json(file) if file.exists() else {}
        return stored if task.kind in stored else None

    def do(self, task: Task) -> Result:
        """Compute and store the task's result, or the error."""
        begun = time.perf_counter()
        work = {"curve": self._train, "tuned": self._tune, "chosen": self._choose}[task.kind]
        try:
            with memory_errors("There was not enough memory: use fewer --jobs."):
                result: Result = {task.kind: work(task)}
        except PmtlError as error:  # Other tasks go on; the next command tries this one again.
            result = {"error": str(error)}
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # For the other processes.
        result["seconds"] = round(time.perf_counter() - begun, 1)
        device = resolve_device(self.device)
        result["device"] = torch.cuda.get_device_name(device) if "cuda" in device else "cpu"
        files.write_json(self._file(task), result)
        return files.read_json(self._file(task))  # JSON has no NaN: the same as when read later.

    def _file(self, task: Task) -> Path:
        return self.folder / f"{task}.json"

    def _length(self, cell: Cell) -> int:
        return self.setting.rounds if cell.rounds is None else cell.rounds

    def _simulation(self, cell: Cell) -> Simulation:
        data, setting = self.data, self.setting
        model = build_model(setting.model, data.input_shape, data.outputs, data.task, cell.seed)
        algorithm = self.defined.get(cell.algorithm) or build_algorithm(cell.algorithm)
        plan = self.plan(cell.sigma, cell.clip, self._length(cell))
        device = resolve_device(self.device)
        return simulate(data, model, algorithm, plan, setting.local, cell.seed, device)

    def _train(self, task: Task) -> list[Result]:
        run, points = self._simulation(task.cell), []
        measured, state = measured_rounds(self._length(task.cell)), run.start()
        with run.sites.threads():
            for report in run.rounds(state):
                if report.round in measured:
                    point = {"round": report.round, "train_loss": report.train_loss}
                    points.append(point | _metrics(run.sites.tensors, run.model, run.views(state)))
        return points

    def _models(self, task: Task) -> tuple[Workspace, dict[str, Weights]]:
        """The models of a task's run up to its round."""
        # The noise depends on the plan with all of its rounds, so this is the run of the curve.
        run = self._simulation(task.cell)
        state = run.start()
        with run.sites.threads():
            while state.round < (task.rounds or 0):
                run.advance(state)
        views = dict(run.views(state))
        if not run.algorithm.personal:
            del views["personal"]
        return Workspace(run.data, run.sites.tensors, run.model, task.cell.seed), views

    def _tune(self, task: Task) -> dict[str, Result]:
        space, views = self._models(task)
        start = "personal" if "personal" in views else "shared"

        def tuned(name: str, lam: float | None) -> Result:
            method = build_method(name, lam)
            store = tune(space, method, views[start], views["shared"], self.setting.tune)
            return {"lam": lam, **_metrics(space.tensors, space.model, {"personal": store.gather})}

        return {
            f"{name}-{start}": max(
                (tuned(name, lam) for lam in self.setting.lams_of(name)),
                key=lambda result: accuracy(result, "validation"),
            )
            for name in METHODS
        }

    def _choose(self, task: Task) -> Result:
        space, views = self._models(task)
        names = [view for view in ("shared", "personal") if view in views]
        tuned, alone, longest = self.setting.shortest_training()
        offered = candidates(
            names,
            tuned,
            lams={name: self.setting.lams_of(name) for name in METHODS},
            alone=sorted({max(1, longest // share) for share in (1, 4, 16)}, reverse=True),
            alone_with=alone,
        )
        chosen = choose(space, offered, views, default=names[-1])
        counts = {c.name: int((chosen.picks == n).sum()) for n, c in enumerate(offered)}
        metrics = _metrics(space.tensors, space.model, {"personal": chosen.store.gather})
        return {**metrics, "picked": {name: count for name, count in counts.items() if count}}


def _metrics(tensors: RowTensors, model: FlatModel, views: Mapping[str, Weights]) -> Result:
    splits: tuple[Split, ...] = ("validation", "test")
    return {split: evaluate(tensors, model, views, split) for split in splits}


def histograms(data: FederatedData) -> FederatedData:
    """The same federation with every image replaced by its histograms of gradients
    (`models/hog.py`), which the model `hog` would compute again in every step."""
    hog = HogLinear(data.input_shape, data.outputs)
    splits: tuple[Split, ...] = ("train", "validation", "test")
    parts = [data.rows(split) for split in splits]
    order = np.concatenate([rows.order for rows in parts])
    features = np.empty((len(order), hog.head.in_features), dtype=np.float32)
    with torch.no_grad():
        for first in range(0, len(order), 1024):
            x, _ = data.gather(order[first : first + 1024])
            features[first : first + 1024] = hog.features(torch.from_numpy(x)).numpy()
    owners = np.concatenate([np.repeat(data.clients, rows.counts) for rows in parts])
    split = np.repeat(splits, [len(rows.order) for rows in parts])
    return FederatedData.from_arrays(
        features, data.y[order], owners, split, task=data.task, outputs=data.outputs
    )


def accuracy(result: Result, split: str, view: str = "personal") -> float:
    """The accuracy, which the paper reports; for regression, the negative error."""
    values = (result.get(split) or {}).get(view)
    if values is None:
        return float("-inf")
    return float(values["accuracy"]) if "accuracy" in values else -float(values["rmse"])
