"""Algorithms × settings × ε × seeds: every cell is an ordinary run; comparisons can be resumed.

If several settings of one algorithm are given (`pmtl:lam=0.1`, `pmtl:lam=0.3`, or a grid),
validation rows choose one for each ε, and test rows report. This choice uses exact scores of
private data, which the ε of a single run does not cover: a comparison is an experiment. `selection`
in the results has the cost of such a choice (`privacy/accounting/selection.py`), and
`sweep/choice.py` makes a private one. Seeds are repetitions, not candidates. A run that fails is
reported in the results and does not stop the others.
"""

from __future__ import annotations

import math
import threading
import warnings
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from pmtl import storage as files
from pmtl.algorithms import build_algorithm
from pmtl.data import FederatedData, Split, load
from pmtl.engines.choose import check_engine
from pmtl.engines.process import graceful_stop, resolve_device
from pmtl.errors import Interrupted, PmtlError, memory_errors
from pmtl.experiments.compare_verdict import verdicts
from pmtl.experiments.result_cache import Result, ResultCache
from pmtl.experiments.sweep.grid import Candidate, Cell, Grid, config_of
from pmtl.experiments.sweep.summary import Row, prices, summarise
from pmtl.experiments.sweep.table import Comparison
from pmtl.jsontext import to_json
from pmtl.models import FlatModel, build_model, check_model
from pmtl.plugins import check_signature, errors_of_own_code, named_code, signature
from pmtl.privacy.plan import PrivacyPlan
from pmtl.report.verdict import Floats
from pmtl.runs.config import IN_MEMORY, TrainConfig, parse_config
from pmtl.runs.folder import RunFolder
from pmtl.runs.preparation import default_algorithm, wants_scaling
from pmtl.runs.result import Run, load_run
from pmtl.runs.training import resume, start, with_absolute_paths
from pmtl.sharing import PublicInputs, share_part
from pmtl.spec import from_values, take_format
from pmtl.views.frames import csv_text
from pmtl.views.progress import progress_bar

__all__ = ["Cell", "CellRunner", "Grid", "compare", "resume_comparison"]

PLAN_FILE = "comparison.json"
FORMAT = 1  #: of this file
RESULT_FILE = "results.json"
TABLE_FILE = "results.csv"


def compare(
    grid: Grid,
    out: str | Path,
    data: FederatedData | None = None,
    *,
    jobs: int = 1,
    progress: bool = False,
) -> Comparison:
    """Compare algorithms and settings.

    Args:
        grid: What is compared.
        out: A new folder for all runs, `results.json` and `results.csv`.
        data: The federation, if `grid.base.data` does not name it.
        jobs: How many runs are made at once, each in a process of its own.
        progress: Whether to show a progress bar.

    Returns:
        The content of `results.json`: `runs`, their `summary` over seeds, the setting `chosen` by
        validation for each method, what that `selection` would cost, `failures` and the `verdict`.
        `to_frame()` gives one line for each run, split, view and metric.
    """
    out = Path(out)
    RunFolder.refuse_existing(out)
    _check_jobs(grid, jobs)
    grid, federated = resolve_grid(replace(grid, base=with_absolute_paths(grid.base)), data)
    check(grid, federated)
    write_plan(grid, out / PLAN_FILE, federated)
    return _run(grid, out, federated, jobs, progress)


def resume_comparison(
    out: str | Path, data: FederatedData | None = None, *, jobs: int = 1, progress: bool = False
) -> Comparison:
    """Finish the remaining runs of a comparison.

    Args:
        out: The folder that `compare` made.
        data: The federation, if the comparison was given one.
        jobs: How many runs are made at once, each in a process of its own.
        progress: Whether to show a progress bar.

    Returns:
        What `compare` returns.
    """
    grid = read_plan(Path(out) / PLAN_FILE)
    _check_jobs(grid, jobs)
    grid, federated = resolve_grid(grid, data)
    return _run(grid, Path(out), federated, jobs, progress)


def write_plan(grid: Grid, file: Path, data: FederatedData) -> None:
    """Write what is compared to a file in a new folder, so that it can be resumed."""
    with files.disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    grid = replace(grid, base=replace(grid.base, data=data.source or IN_MEMORY))
    values: dict[str, Any] = {"format": FORMAT, **asdict(grid)}
    if _named_code(grid):
        values["code_signature"] = signature(to_json(values))
    files.write_json(file, values)


def read_plan(file: Path) -> Grid:
    """What `write_plan` wrote, checked. If it names code, this user must have signed it."""
    values = files.read_json(file)
    signed = values.pop("code_signature", None)
    text = to_json(values)
    values = {"axes": {}} | values
    take_format(values, str(file), FORMAT)
    if isinstance(values.get("base"), dict):
        values["base"] = parse_config(values["base"], str(file))
    if isinstance(values.get("epsilons"), list):  # JSON has no infinity.
        values["epsilons"] = [math.inf if e == "inf" else e for e in values["epsilons"]]
    for name in ("algorithms", "epsilons", "seeds", "base"):
        if name not in values:
            raise PmtlError(f"There is no entry {name!r} in {file}, so it cannot be used.")
    grid = from_values(Grid, values, str(file))
    if named := _named_code(grid):
        words = f"The comparison {file} names code of its own ({', '.join(named)})"
        check_signature(words, text, signed)
    return grid


def _named_code(grid: Grid) -> list[str]:
    """What the runs of a grid would import."""
    base, varied = grid.base, [str(value) for axis in grid.axes.values() for value in axis]
    own = (base.model, base.algorithm, base.privacy.sampling or "", *(base.metric or "").split("+"))
    return named_code([*grid.algorithms, *own, *varied], base.data)


def resolve_grid(grid: Grid, given: FederatedData | None) -> tuple[Grid, FederatedData]:
    """The grid with `auto` replaced by an algorithm, and the data that all its runs read: those
    that are `given` or that the grid names, scaled inside the clients if a method needs that."""
    base = grid.base
    check_model(base.model)  # Reading the data may take minutes.
    for name in grid.algorithms:
        if name != "auto":
            build_algorithm(name)
    resolve_device(base.device)
    data = load(base.data) if given is None else given
    if "auto" in grid.algorithms:
        default = default_algorithm(base, data, build(base, data)[0])
        names = (default if name == "auto" else name for name in grid.algorithms)
        grid = replace(grid, algorithms=tuple(names))
    for candidate in grid.candidates():
        method = build_algorithm(candidate.algorithm)
        if not method.exact:
            continue
        try:
            model, _ = build(config_of(base, Cell(candidate, None, 0)), data)
        except PmtlError:
            continue  # `check` reports it.
        if wants_scaling(method, data, model, base.init is not None):
            return grid, data.scaled()
    return grid, data


def check(grid: Grid, data: FederatedData, *, all_of_them: bool = False) -> None:
    """Refuse a grid that cannot be run, before anything is written. If it has axes, it is refused
    only if no candidate can be run; with `all_of_them`, if one cannot."""
    errors = []
    candidates = grid.candidates()
    for candidate in candidates:
        try:
            _check(config_of(grid.base, Cell(candidate, None, 0)), data)
        except PmtlError as error:
            if not grid.axes or all_of_them:
                raise
            errors.append(error)
    if len(errors) == len(candidates):
        raise errors[0]
    if not grid.axes:
        for epsilon in grid.epsilons:
            replace(grid.base.privacy, epsilon=epsilon).resolve(data.m)


def _check(config: TrainConfig, data: FederatedData) -> None:
    model, public = build(config, data)
    method = share_part(build_algorithm(config.algorithm), config.share, model, public.rows)
    method.billboard(data.clients)
    check_engine(config.engine, config.compile, resolve_device(config.device))
    config.privacy.resolve(data.m)  # Its ε is ∞, so that nothing is calibrated.


def build(config: TrainConfig, data: FederatedData) -> tuple[FlatModel, PublicInputs]:
    """The model of a run, and what it takes from public files."""
    public = PublicInputs.read(config.init, config.share)
    sizes = (data.input_shape, data.outputs, data.task)
    model = build_model(config.model, *sizes, seed=0, init=public.start, frozen=config.frozen)
    return model, public.fitted(model)


def _check_jobs(grid: Grid, jobs: int) -> None:
    if jobs < 1:
        raise PmtlError(f"jobs must be at least 1, but {jobs} was given.")
    if jobs > 1 and grid.base.ledger is not None:
        raise PmtlError(
            "A ledger has one writer, so its runs are made one after the other: leave out --jobs, "
            "or the ledger."
        )


def _run(grid: Grid, out: Path, data: FederatedData, jobs: int, show: bool) -> Comparison:
    cells = grid.cells()
    with ExitStack() as stack:
        # Processes end at once after Ctrl-C; one process ends after the round.
        stop = stack.enter_context(graceful_stop()) if jobs == 1 else None
        runner = CellRunner(grid, out / "runs", data, stop)
        cache = ResultCache(runner.read, runner.do, "comparing", jobs, show)
        for cell in cells:
            cache.get(cell)
        try:
            cache.fill()
        except (Interrupted, KeyboardInterrupt) as error:
            if jobs == 1 and isinstance(error, KeyboardInterrupt):
                raise
            done = f"{len(cells) - len(cache.missing)} of {len(cells)}"
            raise Interrupted(
                f"Stopped after {done} runs; continue with `pmtl resume {quote(str(out))}`."
            ) from None
    rows = [
        cache.get(cell) or {**cell.to_dict(), "run": str(cell), "error": cache.failures[str(cell)]}
        for cell in cells
    ]
    if all("error" in row for row in rows):
        raise PmtlError(rows[0]["error"])
    results = Comparison(task=data.task, clients=data.m, runs=rows, **summarise(rows, data.task))
    results["notes"] = grid.notes()
    with progress_bar("pricing", None, show=show and len(results["summary"]) > 1):
        results["selection"] = prices(results["summary"], runner.plan)
        results["verdict"] = verdicts(results, data, runner.plan, runner.losses)
    files.write_json(out / RESULT_FILE, results)
    files.write_text(out / TABLE_FILE, csv_text(results.lines()))
    return results


@dataclass(frozen=True)
class CellRunner:
    """Runs the cells of a comparison; the result of each is its run folder.

    In the methods:
        - cell: one run of the grid.
        - line: one line of the summary over seeds.
    """

    grid: Grid  #: what is compared
    folder: Path  #: the folder of all runs
    data: FederatedData  #: the federation
    stop: threading.Event | None  #: set when the user asked to stop; None in a process of many

    def read(self, cell: Cell) -> Result | None:
        """The result of a finished run; None if the run is not finished."""
        if not self._is_complete(cell):
            return None
        return _row(cell, load_run(self.folder / str(cell), self.data))

    def do(self, cell: Cell) -> Result:
        """Make or finish a run, and return its result."""
        if self.stop is not None and self.stop.is_set():
            raise Interrupted
        path = self.folder / str(cell)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Training diverged", RuntimeWarning)
            try:
                no_memory = "There was not enough memory for this run."
                with memory_errors(no_memory), errors_of_own_code():
                    if path.exists():
                        return _row(cell, resume(path, self.data))
                    config = config_of(self.grid.base, cell)
                    return _row(cell, start(config, data=self.data, out=path))
            except PmtlError as error:
                return {"error": str(error)}

    def plan(self, line: Row) -> PrivacyPlan:
        """The privacy plan of the runs of a line; seeds do not matter to it."""
        return RunFolder.open(self._runs(line)[0]).facts().plan

    def losses(self, line: Row, split: Split, view: str) -> Floats:
        """[seeds, m] the losses of the clients' models in finished runs.

        Args:
            split: the rows that are measured.
            view: which models: personal or alone.
        """
        runs = [load_run(path, self.data) for path in self._runs(line)]
        return np.stack([run.client_losses(split)[view] for run in runs])

    def _runs(self, line: Row) -> list[Path]:
        """The folders of a line's finished runs."""
        candidate = Candidate(line["algorithm"], tuple(line["settings"].items()))
        cells = [Cell(candidate, line["epsilon"], seed) for seed in self.grid.seeds]
        return [self.folder / str(cell) for cell in cells if self._is_complete(cell)]

    def _is_complete(self, cell: Cell) -> bool:
        path = self.folder / str(cell)
        return path.exists() and RunFolder.open(path).facts().complete


def _row(cell: Cell, run: Run) -> Result:
    assert run.path is not None
    file = RunFolder(run.path).result_file
    return {
        **cell.to_dict(),
        "privacy_epsilon": run.privacy.epsilon,
        "run": run.path.name,
        "not_finite": run.not_finite,
        **(files.read_json(file) if file.exists() else run.evaluate()),
    }
