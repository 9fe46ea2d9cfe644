"""Algorithms × ε × seeds: every cell is an ordinary run, and the whole can be continued.

Validation rows choose, test rows report: where several settings of one algorithm are given
(`pmtl:lam=0.1`, `pmtl:lam=0.3`), the one with the best validation value stands for it at each ε.
That choice looks at private data, by exact scores, because a comparison is an experiment; the ε of
a single run does not count it. `selection` in the results says what such a choice would cost if it
were made in a way that has a price (`privacy/accounting/selection.py`): per method and ε, where
several settings competed. Seeds are repetitions for the error bar and not candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from pmtl import storage as files
from pmtl.algorithms import build_algorithm
from pmtl.data import FederatedData, load
from pmtl.errors import Interrupted, PmtlError
from pmtl.models import build_model
from pmtl.privacy.accounting import selection
from pmtl.privacy.plan import PrivacyRequest, check_epsilon
from pmtl.progress import progress_bar
from pmtl.runs.config import IN_MEMORY, TrainConfig, parse_config, resolve_device
from pmtl.runs.folder import RunFolder
from pmtl.runs.process import graceful_stop
from pmtl.runs.result import load_run
from pmtl.runs.training import resume, start
from pmtl.simulation import check_engine
from pmtl.streams import name_key

PLAN_FILE = "comparison.json"
RESULT_FILE = "results.json"


@dataclass(frozen=True)
class Grid:
    """What is compared, and the settings that all cells share."""

    algorithms: tuple[str, ...] = ("pmtl", "fedavg", "local")
    epsilons: tuple[float, ...] = (0.5, 2.0, 8.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    base: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if not (self.algorithms and self.epsilons and self.seeds):
            raise PmtlError("A comparison needs at least one algorithm, one ε and one seed.")
        for name in ("algorithms", "epsilons", "seeds"):  # Given twice is compared once.
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        for epsilon in self.epsilons:
            check_epsilon(epsilon)
        if self.base.mode != "experiment":
            raise PmtlError(
                "A comparison is an experiment: it looks at exact metrics of every run. Leave the "
                "mode out."
            )
        if self.base.privacy.epsilon is not None or self.base.privacy.noise is not None:
            raise PmtlError("A comparison sets ε itself: leave epsilon and noise out of privacy.")

    def cells(self) -> list[Cell]:
        """Every run; what shares nothing needs no ε and is run once a seed."""
        cells = []
        for algorithm in self.algorithms:
            epsilons = self.epsilons if build_algorithm(algorithm).shares else (None,)
            cells += [Cell(algorithm, e, s) for e in epsilons for s in self.seeds]
        return cells


@dataclass(frozen=True)
class Cell:
    """One run of the grid; `epsilon` is None for an algorithm that shares nothing."""

    algorithm: str
    epsilon: float | None
    seed: int

    @property
    def folder(self) -> str:
        """A file name of its own: what one can read, and a key where that may be ambiguous."""
        name = "".join(c if c.isalnum() or c in "._=-" else "-" for c in self.algorithm)
        budget = "" if self.epsilon is None else f"-eps{self.epsilon!r}"
        key = "" if name == self.algorithm else f"-{name_key(self.algorithm) % 16**6:06x}"
        return f"{name}{key}{budget}-seed{self.seed}"


def compare(
    grid: Grid, out: str | Path, data: FederatedData | None = None, *, progress: bool = False
) -> dict[str, Any]:
    """Start a comparison in the new folder `out`; returns what its `results.json` holds."""
    out = Path(out)
    RunFolder.refuse_existing(out)
    cells = grid.cells()
    federated = load(grid.base.data) if data is None else data
    _check(grid, federated)
    with files.writing(out):
        out.mkdir(parents=True, exist_ok=True)
    plan = asdict(grid)
    plan["base"]["data"] = federated.source or IN_MEMORY
    files.write_json(out / PLAN_FILE, plan)
    return _run(grid, cells, out, federated, progress)


def _check(grid: Grid, data: FederatedData) -> None:
    """Refuse what no cell could run, before anything is written."""
    base = grid.base
    build_model(base.model, data.input_shape, data.outputs, data.task, seed=0)
    check_engine(base.engine, base.compile, resolve_device(base.device))
    for epsilon in grid.epsilons:
        replace(base.privacy, epsilon=epsilon).resolve(data.m)
    for algorithm in grid.algorithms:
        build_algorithm(algorithm).blocks(data.clients)


def resume_comparison(
    out: str | Path, data: FederatedData | None = None, *, progress: bool = False
) -> dict[str, Any]:
    """Run the cells that are not finished yet."""
    values = files.read_json(Path(out) / PLAN_FILE)
    base = parse_config(values["base"], str(Path(out) / PLAN_FILE))
    grid = Grid(
        tuple(values["algorithms"]),
        tuple(float(epsilon) for epsilon in values["epsilons"]),
        tuple(values["seeds"]),
        base,
    )
    federated = load(base.data) if data is None else data
    return _run(grid, grid.cells(), Path(out), federated, progress)


def _run(
    grid: Grid, cells: Sequence[Cell], out: Path, data: FederatedData, show: bool
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    with progress_bar("comparing", len(cells), 0, show) as bar, graceful_stop() as stop:
        for cell in cells:
            try:
                rows.append(_run_cell(grid.base, cell, out / "runs" / cell.folder, data))
            except Interrupted:
                stop.set()
            if stop.is_set() and len(rows) < len(cells):
                raise Interrupted(
                    f"Stopped after {len(rows)} of {len(cells)} runs; `pmtl resume {out}` goes on."
                )
            bar.advance(cell.folder)
    results = {"task": data.task, "clients": data.m, "runs": rows, **_summaries(rows, data.task)}
    results["selection"] = _selection(results["summary"], grid.base.privacy, data.m)
    files.write_json(out / RESULT_FILE, results)
    return results


def _run_cell(base: TrainConfig, cell: Cell, path: Path, data: FederatedData) -> dict[str, Any]:
    if not path.exists():
        epsilon = float("inf") if cell.epsilon is None else cell.epsilon
        config = replace(
            base,
            algorithm=cell.algorithm,
            privacy=replace(base.privacy, epsilon=epsilon),
            seed=cell.seed,
        )
        run = start(config, data=data, out=path)
    elif RunFolder.open(path).facts().complete:
        run = load_run(path, data)
    else:
        run = resume(path, data)
    return {
        **asdict(cell),
        "privacy_epsilon": run.privacy.epsilon,
        "run": path.name,
        "not_finite": run.not_finite,
        **_scores(run),
    }


def _scores(run: Any) -> dict[str, Any]:
    if run.path is not None and (file := RunFolder(run.path).result_file).exists():
        return files.read_json(file)
    scores: dict[str, Any] = run.evaluate()
    return scores


def metric_of(task: str) -> str:
    """The number that a comparison is about."""
    return "rmse" if task == "regression" else "accuracy"


def _summaries(rows: list[dict[str, Any]], task: str) -> dict[str, Any]:
    """Mean and standard deviation over seeds, and which setting validation chose."""
    metric = metric_of(task)
    summary = []

    def key(row: dict[str, Any]) -> tuple[str, float]:
        return row["algorithm"], -1.0 if row["epsilon"] is None else row["epsilon"]

    for _, group in groupby(sorted(rows, key=key), key):
        runs = list(group)
        line: dict[str, Any] = {
            "algorithm": runs[0]["algorithm"],
            "epsilon": runs[0]["epsilon"],
            "seeds": len(runs),
        }
        for split in ("test", "validation"):
            for view in ("personal", "shared"):
                values = [run[split][view] for run in runs if run[split] and view in run[split]]
                if values:
                    line[f"{split}_{view}"] = _spread(values)
        summary.append(line)
    order = {row["algorithm"]: i for i, row in reversed(list(enumerate(rows)))}
    summary.sort(key=lambda line: (order[line["algorithm"]], line["epsilon"] or 0.0))
    return {"metric": metric, "summary": summary, "chosen": _choose(summary, metric)}


def _spread(values: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Per metric the mean over seeds and the sample standard deviation (0 for one seed)."""
    # A file has null where a number was not finite.
    table = {name: np.array([value[name] for value in values], float) for name in values[0]}
    return {
        name: {"mean": float(v.mean()), "std": float(v.std(ddof=1)) if len(v) > 1 else 0.0}
        for name, v in table.items()
    }


def _method(algorithm: str) -> str:
    """What several settings of one algorithm have in common."""
    return algorithm.partition(":")[0]


def _choose(summary: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    sign = -1 if metric == "rmse" else 1
    chosen: dict[tuple[str, float | None], dict[str, Any]] = {}
    for line in summary:
        place = (_method(line["algorithm"]), line["epsilon"])
        split = "validation" if "validation_personal" in line else "test"

        def value(entry: dict[str, Any], split: str = split) -> float:
            return float(sign * entry[f"{split}_personal"][metric]["mean"])

        if place not in chosen or value(line) > value(chosen[place]):
            chosen[place] = line
    return [{"method": name, **line} for (name, _), line in chosen.items()]


def _selection(
    summary: list[dict[str, Any]], privacy: PrivacyRequest, clients: int
) -> list[dict[str, Any]]:
    """What choosing a method's setting would cost at each ε; nothing where there is no choice, and
    nothing where nothing is shared: then each client can choose by itself, which is free."""
    settings = Counter((_method(line["algorithm"]), line["epsilon"]) for line in summary)
    prices = []
    for (method, epsilon), candidates in settings.items():
        if epsilon is not None and candidates > 1:
            plan = replace(privacy, epsilon=epsilon).resolve(clients)
            price = selection.report(plan, candidates)
            prices.append({"method": method, "epsilon": epsilon, **price})
    return prices
