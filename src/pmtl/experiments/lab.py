"""Runs what experiments ask for, once: every cell's result is a file, and asked again it is read.

A *cell* is one training run with all that decides it. Its result is a curve: after each of a few
rounds, the metrics of personal and shared models on validation and test rows. The budget is not in
it: ε follows from σ, γ and the number of rounds, so that one curve serves every ε that is passed on
its way. A cell that fails says so in its file, and the others go on.

These are experiments on data that one already has: they look at exact metrics, and choosing the
best of many runs is not paid for, as in the paper. `pmtl privacy selection` says what that would
cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pmtl.algorithms import Algorithm, build_algorithm
from pmtl.data import FederatedData, Split, load
from pmtl.errors import PmtlError
from pmtl.experiments.settings import Setting
from pmtl.jsontext import to_json
from pmtl.models import build_model
from pmtl.models.hog import HogLinear
from pmtl.personalize.choosing import candidates, choose
from pmtl.personalize.methods import METHODS, build_method
from pmtl.personalize.tuning import tune
from pmtl.privacy.plan import PrivacyPlan, Sampling
from pmtl.runs import files
from pmtl.runs.config import resolve_device
from pmtl.runs.process import threads_for
from pmtl.simulation import Federation, Progress, Weights, evaluate

Result = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One training run."""

    algorithm: str
    sigma: float
    clip: float
    seed: int

    def name(self) -> str:
        """What its file is called."""
        plain = "".join(c if c.isalnum() or c in ".=-" else "-" for c in self.algorithm)
        return f"{plain}-sigma{self.sigma:g}-clip{self.clip:g}-seed{self.seed}"


class Lab:
    """One setting on one data set, with a folder of results."""

    def __init__(
        self,
        setting: Setting,
        out: Path,
        data: str | FederatedData | None = None,
        device: str = "auto",
        note: Callable[[str], None] = lambda said: None,
    ) -> None:
        """`note` is told what is done next."""
        self.setting = setting
        self.out = out / setting.name
        self._given = data
        self._device = device
        self._note = note
        self._defined: dict[str, Algorithm] = {}
        self._failed: set[str] = set()
        with files.writing(self.out):
            (self.out / "cells").mkdir(parents=True, exist_ok=True)
        self._check_same()

    def define(self, name: str, algorithm: Algorithm) -> str:
        """Give an algorithm that no spec can name a name for cells; returns the name."""
        self._defined[name] = algorithm
        return name

    @cached_property
    def data(self) -> FederatedData:
        given = self._given
        made = given if isinstance(given, FederatedData) else load(self.setting.spec(given))
        return histograms(made) if self.setting.hog else made

    @property
    def delta(self) -> float:
        """1/m, as in all of the paper's experiments."""
        return 1 / self.data.m

    def plan(self, sigma: float, clip: float, rounds: int) -> PrivacyPlan:
        """What such a run of so many rounds pays for."""
        cohort = min(self.setting.cohort, self.data.m)
        sampling: Sampling = "full" if cohort == self.data.m else "poisson"
        return PrivacyPlan(self.data.m, cohort, sampling, clip, sigma, rounds, self.delta)

    def curve(self, cell: Cell) -> list[Result]:
        """The cell's metrics, round by round; empty if it failed."""
        kept = self._kept(cell.name(), lambda: {"curve": self._train(cell)})
        found: list[Result] = kept.get("curve", [])
        return found

    def tuned(self, cell: Cell, rounds: int) -> Mapping[str, Result]:
        """The metrics after fine-tuning the models of that round, by method and start; λ is chosen
        by validation rows."""
        name = f"{cell.name()}-rounds{rounds}-tuned"
        kept = self._kept(name, lambda: {"tuned": self._tune(cell, rounds)})
        found: dict[str, Result] = kept.get("tuned", {})
        return found

    def chosen(self, cell: Cell, rounds: int) -> Result | None:
        """The metrics when every client chooses for itself among the models of that round, shared,
        personal, fine-tuned or its own alone; and how often each was chosen."""
        name = f"{cell.name()}-rounds{rounds}-chosen"
        return self._kept(name, lambda: {"chosen": self._choose(cell, rounds)}).get("chosen")

    # --- the work ---

    def _federation(self, cell: Cell, rounds: int) -> Federation:
        data = self.data
        model = build_model(
            self.setting.model, data.input_shape, data.outputs, data.task, cell.seed
        )
        algorithm = self._defined.get(cell.algorithm) or build_algorithm(cell.algorithm)
        plan = self.plan(cell.sigma, cell.clip, rounds)
        device = resolve_device(self._device)
        return Federation(data, model, algorithm, plan, self.setting.local, cell.seed, device)

    def _train(self, cell: Cell) -> list[Result]:
        made, points = self._federation(cell, self.setting.rounds), []
        progress = made.start()
        with threads_for(made):
            for report in made.rounds(progress):
                if report.round in self.setting.evaluated():
                    point = {"round": report.round, "train_loss": report.train_loss}
                    points.append(point | self._measured(made, made.views(progress)))
        return points

    def _measured(self, made: Federation, views: Mapping[str, Weights]) -> Result:
        parts = (made.data, made.feed, made.model)
        return {split: evaluate(*parts, views, split) for split in ("validation", "test")}

    def _models(self, cell: Cell, rounds: int) -> tuple[Federation, Progress]:
        # The plan's length decides nothing of what is published, but it is part of what the noise
        # is keyed by: so this is the run whose curve was looked at, up to here.
        made = self._federation(cell, self.setting.rounds)
        progress = made.start()
        with threads_for(made):
            while progress.round < rounds:
                made.advance(progress)
        return made, progress

    def _tune(self, cell: Cell, rounds: int) -> dict[str, Result]:
        made, progress = self._models(cell, rounds)
        views = dict(made.views(progress))
        starts = ["personal"] if made.algorithm.personal else ["shared"]
        found: dict[str, Result] = {}
        for start in starts:
            for name, kind in METHODS.items():
                found[f"{name}-{start}"] = max(
                    (
                        self._tuned(made, views, start, name, lam, cell.seed)
                        for lam in ((None,) if kind is METHODS["vanilla"] else self.setting.lams)
                    ),
                    key=lambda result: accuracy(result, "validation"),
                )
        return found

    def _tuned(
        self,
        made: Federation,
        views: Mapping[str, Weights],
        start: str,
        name: str,
        lam: float | None,
        seed: int,
    ) -> Result:
        parts = (made.data, made.feed, made.model, build_method(name, lam))
        store = tune(*parts, views[start], views["shared"], self.setting.tune, seed)
        return {"lam": lam, **self._measured(made, {"personal": store.gather})}

    def _choose(self, cell: Cell, rounds: int) -> Result:
        made, progress = self._models(cell, rounds)
        views = dict(made.views(progress))
        if not made.algorithm.personal:
            del views["personal"]
        names = [view for view in ("shared", "personal") if view in views]
        least = self.setting.local  # As training alone does it, lest it be at a disadvantage.
        offered = candidates(names, least, None, self.setting.lams)
        parts = (made.data, made.feed, made.model, offered, views, cell.seed)
        picked = choose(*parts, default=names[-1])
        counts = {c.name: int((picked.picks == n).sum()) for n, c in enumerate(offered)}
        told = self._measured(made, {"personal": picked.store.gather})
        return {**told, "picked": {name: count for name, count in counts.items() if count}}

    # --- the files ---

    def _kept(self, name: str, work: Callable[[], Result]) -> Result:
        """The result of this name, read or made now."""
        file = self.out / "cells" / f"{name}.json"
        if file.exists():
            kept = files.read_json(file)
            if "error" not in kept or name in self._failed:
                return kept
        self._note(name)
        begun = time.perf_counter()
        try:
            result = work()
        except PmtlError as error:  # The others go on; it is tried again the next time.
            result = {"error": str(error)}
            self._failed.add(name)
            self._note(f"failed: {error}")
        result["seconds"] = round(time.perf_counter() - begun, 1)
        result["device"] = _device_name(resolve_device(self._device))
        files.write_json(file, result)
        return result

    def _check_same(self) -> None:
        """Refuse to mix the results of two settings in one folder."""
        told = {**asdict(self.setting), "given": _words(self._given)}
        known = sha256(to_json(told).encode()).hexdigest()[:16]
        file = self.out / "setting.json"
        if not file.exists():
            files.write_json(file, {"setting": told, "key": known})
        elif files.read_json(file).get("key") != known:
            raise PmtlError(
                f"{self.out} holds results of other settings or other data: use another folder."
            )


def histograms(data: FederatedData) -> FederatedData:
    """The same federation with every image as its histograms of gradients (`models/hog.py`): what
    the model `hog` would compute again in every step."""
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
    """The share of rows answered rightly, which is what the paper reports; for regression, the
    negative error."""
    values = (result.get(split) or {}).get(view)
    if values is None:
        return float("-inf")
    return float(values["accuracy"]) if "accuracy" in values else -float(values["rmse"])


def _words(given: str | FederatedData | None) -> str | None:
    """What data was given, without the folder it lies in."""
    if isinstance(given, FederatedData):
        return given.fingerprint()
    return None if given is None else Path(given).name


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
