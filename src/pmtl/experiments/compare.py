"""Algorithms × ε × seeds: every cell is an ordinary run, and a comparison can be resumed.

If several settings of one algorithm are given (`pmtl:lam=0.1`, `pmtl:lam=0.3`), validation rows
choose one for each ε, and test rows report. This choice uses exact scores of private data, which
the ε of a single run does not cover: a comparison is an experiment. `selection` in the results says
what the choice would cost (`privacy/accounting/selection.py`). Seeds are repetitions, not
candidates.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pmtl import storage as files
from pmtl.algorithms import build_algorithm
from pmtl.data import FederatedData, Split, load
from pmtl.engines.process import graceful_stop
from pmtl.errors import Interrupted, PmtlError
from pmtl.experiments.compare_verdict import verdicts
from pmtl.experiments.result_cache import Result, ResultCache
from pmtl.models import build_model
from pmtl.privacy.accounting import selection
from pmtl.privacy.plan import PrivacyRequest, check_epsilon
from pmtl.report.comparison import Comparison
from pmtl.report.verdict import Floats
from pmtl.runs.config import IN_MEMORY, TrainConfig, parse_config, resolve_device
from pmtl.runs.folder import RunFolder
from pmtl.runs.result import Run, load_run
from pmtl.runs.training import resume, start, with_absolute_paths
from pmtl.sharing import PublicInputs, share_part
from pmtl.simulation import check_engine
from pmtl.spec import parse_spec
from pmtl.streams import name_key

PLAN_FILE = "comparison.json"
RESULT_FILE = "results.json"


@dataclass(frozen=True)
class Grid:
    """What is compared, and the settings that all runs share.

    Args:
        algorithms: Specs of algorithms, such as `pmtl:lam=0.1`.
        epsilons: The ε of the runs; ∞ means no privacy.
        seeds: The seeds; one run for each.
        base: All other settings.
    """

    algorithms: tuple[str, ...] = ("pmtl", "fedavg", "local")
    epsilons: tuple[float, ...] = (0.5, 2.0, 8.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    base: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if not (self.algorithms and self.epsilons and self.seeds):
            raise PmtlError("A comparison needs at least one algorithm, one ε and one seed.")
        for name in ("algorithms", "epsilons", "seeds"):  # Without duplicates.
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        for epsilon in self.epsilons:
            check_epsilon(epsilon)
        if self.base.mode != "experiment":
            raise PmtlError(
                "A comparison is an experiment: it uses exact metrics of every run. Leave the mode "
                "out."
            )
        if self.base.privacy.epsilon is not None or self.base.privacy.noise is not None:
            raise PmtlError("A comparison sets ε itself: leave epsilon and noise out of privacy.")

    def cells(self) -> list[Cell]:
        """All runs; an algorithm that shares nothing has no ε and is run once for each seed."""
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

    def __str__(self) -> str:
        """The name of its folder: a readable name, with a key if that may be ambiguous."""
        name = "".join(c if c.isalnum() or c in "._=-" else "-" for c in self.algorithm)
        budget = "" if self.epsilon is None else f"-eps{self.epsilon!r}"
        key = "" if name == self.algorithm else f"-{name_key(self.algorithm) % 16**6:06x}"
        return f"{name}{key}{budget}-seed{self.seed}"


def compare(
    grid: Grid, out: str | Path, data: FederatedData | None = None, *, progress: bool = False
) -> Comparison:
    """Compare algorithms.

    Args:
        grid: What is compared.
        out: A new folder for all runs and `results.json`.
        data: The federation, if `grid.base.data` does not name it.
        progress: Whether to show a progress bar.

    Returns:
        The content of `results.json`: `runs`, their `summary` over seeds, the setting `chosen` by
        validation for each method, what that `selection` would cost, and the `verdict`.
    """
    out = Path(out)
    RunFolder.refuse_existing(out)
    grid = replace(grid, base=with_absolute_paths(grid.base))
    federated = load(grid.base.data) if data is None else data
    _check(grid, federated)
    with files.disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    plan = asdict(grid)
    plan["base"]["data"] = federated.source or IN_MEMORY
    files.write_json(out / PLAN_FILE, plan)
    return _run(grid, out, federated, progress)


def resume_comparison(
    out: str | Path, data: FederatedData | None = None, *, progress: bool = False
) -> Comparison:
    """Finish the remaining runs of a comparison; arguments and result are those of `compare`."""
    values = files.read_json(Path(out) / PLAN_FILE)
    base = parse_config(values["base"], str(Path(out) / PLAN_FILE))
    grid = Grid(
        tuple(values["algorithms"]),
        tuple(float(epsilon) for epsilon in values["epsilons"]),
        tuple(values["seeds"]),
        base,
    )
    return _run(grid, Path(out), load(base.data) if data is None else data, progress)


def _check(grid: Grid, data: FederatedData) -> None:
    """Refuse what no cell can run, before anything is written."""
    base = grid.base
    public = PublicInputs.read(base.init, base.share)
    sizes = (data.input_shape, data.outputs, data.task)
    model = build_model(base.model, *sizes, seed=0, init=public.start, frozen=base.frozen)
    rows = public.fitted(model).rows
    for algorithm in grid.algorithms:
        share_part(build_algorithm(algorithm), base.share, model, rows).billboard(data.clients)
    check_engine(base.engine, base.compile, resolve_device(base.device))
    for epsilon in grid.epsilons:
        replace(base.privacy, epsilon=epsilon).resolve(data.m)


def _run(grid: Grid, out: Path, data: FederatedData, show: bool) -> Comparison:
    cells = grid.cells()
    with graceful_stop() as stop:
        runner = CellRunner(grid.base, out / "runs", data, stop)
        cache: ResultCache[Cell] = ResultCache(runner.read, runner.do, "comparing", show=show)
        for cell in cells:
            cache.get(cell)
        try:
            cache.fill()
        except Interrupted:
            done = f"{len(cells) - len(cache.missing)} of {len(cells)}"
            raise Interrupted(
                f"Stopped after {done} runs; continue with `pmtl resume {out}`."
            ) from None
    rows = [cache.get(cell) for cell in cells]
    results = {"task": data.task, "clients": data.m, "runs": rows, **_summaries(rows, data.task)}
    results["selection"] = _selection(results["summary"], grid.base.privacy, data.m)
    results["verdict"] = verdicts(
        results, data, grid.base.privacy, partial(runner.losses, grid.seeds)
    )
    files.write_json(out / RESULT_FILE, results)
    return Comparison(results)


@dataclass(frozen=True)
class CellRunner:
    """Runs the cells of a comparison; the result of each is its run folder."""

    base: TrainConfig
    folder: Path
    data: FederatedData
    stop: threading.Event  #: set when the user asked to stop

    def read(self, cell: Cell) -> Result | None:
        path = self.folder / str(cell)
        if not path.exists() or not RunFolder.open(path).facts().complete:
            return None
        return _row(cell, load_run(path, self.data))

    def do(self, cell: Cell) -> Result:
        if self.stop.is_set():
            raise Interrupted
        path = self.folder / str(cell)
        if path.exists():
            return _row(cell, resume(path, self.data))
        epsilon = float("inf") if cell.epsilon is None else cell.epsilon
        config = replace(
            self.base,
            algorithm=cell.algorithm,
            privacy=replace(self.base.privacy, epsilon=epsilon),
            seed=cell.seed,
        )
        return _row(cell, start(config, data=self.data, out=path))

    def losses(
        self, seeds: Sequence[int], algorithm: str, epsilon: float | None, split: Split
    ) -> Floats:
        """[seeds, m] the losses of the clients' models in finished runs."""
        cells = [Cell(algorithm, epsilon, seed) for seed in seeds]
        runs = [load_run(self.folder / str(cell), self.data) for cell in cells]
        return np.stack([run.client_losses(split)["personal"] for run in runs])


def _row(cell: Cell, run: Run) -> Result:
    assert run.path is not None
    file = RunFolder(run.path).result_file
    return {
        **asdict(cell),
        "privacy_epsilon": run.privacy.epsilon,
        "run": run.path.name,
        "not_finite": run.not_finite,
        **(files.read_json(file) if file.exists() else run.evaluate()),
    }


def _summaries(rows: list[dict[str, Any]], task: str) -> dict[str, Any]:
    """Mean and standard deviation over seeds, and the setting that validation chose."""
    metric = "rmse" if task == "regression" else "accuracy"
    groups: defaultdict[tuple[str, float | None], list[Result]] = defaultdict(list)
    for row in rows:
        groups[row["algorithm"], row["epsilon"]].append(row)
    order = [row["algorithm"] for row in rows]
    summary = []
    for algorithm, epsilon in sorted(groups, key=lambda key: (order.index(key[0]), key[1] or 0.0)):
        runs = groups[algorithm, epsilon]
        line: dict[str, Any] = {"algorithm": algorithm, "epsilon": epsilon, "seeds": len(runs)}
        for split in ("test", "validation"):
            for view in ("personal", "shared"):
                values = [run[split][view] for run in runs if run[split] and view in run[split]]
                if values:
                    line[f"{split}_{view}"] = _spread(values)
        summary.append(line)
    return {"metric": metric, "summary": summary, "chosen": _choose(summary, metric)}


def _spread(values: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """For each metric the mean and the sample standard deviation over seeds (0 for one seed)."""
    # In a file, numbers that are not finite are null: float() makes them NaN.
    table = {name: np.array([value[name] for value in values], float) for name in values[0]}
    return {
        name: {"mean": float(v.mean()), "std": float(v.std(ddof=1)) if len(v) > 1 else 0.0}
        for name, v in table.items()
    }


def _method(algorithm: str) -> str:
    """The algorithm's name without its settings."""
    return parse_spec(algorithm)[0]


def _choose(summary: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """The best setting of each method at each ε."""
    sign = -1 if metric == "rmse" else 1
    chosen: dict[tuple[str, float | None], dict[str, Any]] = {}
    for line in summary:
        key = (_method(line["algorithm"]), line["epsilon"])
        split = "validation" if "validation_personal" in line else "test"

        def value(entry: dict[str, Any], split: str = split) -> float:
            return float(sign * entry[f"{split}_personal"][metric]["mean"])

        if key not in chosen or value(line) > value(chosen[key]):
            chosen[key] = line
    return [{"method": name, **line} for (name, _), line in chosen.items()]


def _selection(
    summary: list[dict[str, Any]], privacy: PrivacyRequest, clients: int
) -> list[dict[str, Any]]:
    """What choosing a method's setting would cost at each ε, if several settings were given. If
    nothing is shared (ε is None), each client can choose for itself, which is free."""
    settings = Counter((_method(line["algorithm"]), line["epsilon"]) for line in summary)
    prices = []
    for (method, epsilon), candidates in settings.items():
        if epsilon is not None and candidates > 1:
            plan = replace(privacy, epsilon=epsilon).resolve(clients)
            price = selection.report(plan, candidates)
            prices.append({"method": method, "epsilon": epsilon, **price})
    return prices
