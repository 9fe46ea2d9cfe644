"""A private choice between settings, whose cost `privacy/accounting/selection.py` computes.

1. The number of runs K is drawn, with the number of settings as its mean. It stays secret.
2. K times: a setting is drawn at random, trained with noise of its own, and scored. The score is
   1 − loss/bound, averaged over clients: each client measures its own personal model on its own
   validation rows, its score lies in [0, 1], and the average gets noise in the gate. Replacing one
   client moves the average by at most 1/m.
3. Only the run with the best noisy score is kept. All other runs are deleted.

The ε that is asked for covers all of this, for training and for validation rows: each run is
trained at a smaller one. It holds for an experiment on one trusted machine. The ledger counts
single releases and has no entry for "the best of a secret number of runs", so production is
refused.
"""

from __future__ import annotations

import math
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np

from pmtl import storage as files
from pmtl.algorithms import build_algorithm
from pmtl.data import FederatedData
from pmtl.errors import Interrupted, PmtlError
from pmtl.experiments.compare import check, read_plan, resolve_grid, write_plan
from pmtl.experiments.sweep.grid import Candidate, Cell, Grid, config_of
from pmtl.experiments.sweep.terms import Terms, terms_of
from pmtl.privacy.accounting import selection
from pmtl.privacy.noise import seeded_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.runs.config import TrainConfig
from pmtl.runs.folder import RunFolder, save_statement
from pmtl.runs.result import Run, load_run, statement_of
from pmtl.runs.training import start, with_absolute_paths
from pmtl.simulation import ReleasedMetrics, metric_bounds
from pmtl.streams import subseed
from pmtl.views.progress import progress_bar

PLAN_FILE, RESULT_FILE = "selection.json", "choice.json"
BEST, TRIED = "best", "trying"


def select(
    grid: Grid,
    out: str | Path,
    data: FederatedData | None = None,
    *,
    progress: bool = False,
) -> dict[str, Any]:
    """Choose between settings privately, and keep the best run only.

    Args:
        grid: the settings, with one seed and one ε, the ε of the whole choice.
        out: a new folder for the best run, in `best`, and `choice.json`.
        data: the federation, if `grid.base.data` does not name it.
        progress: whether to show that work goes on.

    Returns:
        The content of `choice.json`: what was `chosen`, its noisy `score`, the cost of the choice
        and its terms. Neither the number of runs nor anything about the others is in it.
    """
    out = Path(out)
    RunFolder.refuse_existing(out)
    grid, federated = resolve_grid(replace(grid, base=with_absolute_paths(grid.base)), data)
    _refuse(grid, federated)
    check(grid, federated, all_of_them=True)
    with progress_bar("pricing", None, show=progress):
        terms = terms_of(grid, federated)
    write_plan(grid, out / PLAN_FILE, federated)
    return _choose(grid, terms, out, federated, progress)


def resume_selection(
    out: str | Path, data: FederatedData | None = None, *, progress: bool = False
) -> dict[str, Any]:
    """Start a stopped choice again, with the same draws; arguments as for `select`. Its runs were
    deleted when it stopped."""
    out = Path(out)
    if (out / RESULT_FILE).exists():
        raise PmtlError(f"The choice at {out} is complete: there is nothing left to resume.")
    grid, federated = resolve_grid(read_plan(out / PLAN_FILE), data)
    return _choose(grid, terms_of(grid, federated), out, federated, progress)


def _refuse(grid: Grid, data: FederatedData) -> None:
    """Refuse what the protocol does not allow."""
    if len(grid.epsilons) > 1 or len(grid.seeds) > 1:
        raise PmtlError(
            "A private choice publishes one run, at one ε and with one seed: give one --epsilon, "
            "and leave out --seeds."
        )
    if math.isinf(grid.epsilons[0]):
        raise PmtlError(
            "Without privacy a choice costs nothing: leave out --select, or give a finite ε."
        )
    if grid.base.ledger is not None:
        raise PmtlError(
            "A ledger would record every run, but this choice is private only if the other runs "
            "stay secret, and a ledger has no entry for its cost. Leave out the ledger."
        )
    if grid.base.metrics_share:
        raise PmtlError(
            "A private choice releases one score for each run and no other metrics: leave metrics "
            "out of privacy."
        )
    if alone := [c for c in grid.candidates() if not build_algorithm(c.algorithm).shares]:
        raise PmtlError(
            f"{alone[0]} shares nothing, so each client can choose it for itself without any cost "
            "(pmtl finetune --method select): leave it out."
        )
    if len(grid.candidates()) < 2:
        raise PmtlError(
            "There is only one candidate, and nothing to choose: give several settings, such as "
            "--grid lr=0.1,0.3."
        )
    if not data.rows("validation").counts.sum():
        raise PmtlError(
            "There are no validation rows to choose by: read the data with validation=0.2."
        )


class Tried(NamedTuple):
    """A run that was made."""

    score: float  #: with noise
    candidate: Candidate
    path: Path


def _choose(grid: Grid, terms: Terms, out: Path, data: FederatedData, show: bool) -> dict[str, Any]:
    (seed,), tried = grid.seeds, out / TRIED
    shutil.rmtree(tried, ignore_errors=True)
    best: Tried | None = None
    try:
        # The bar has no numbers, since the number of runs is secret.
        with progress_bar("choosing", None, show=show):
            for number, candidate in enumerate(
                draw_candidates(grid.candidates(), terms.shape, seed)
            ):
                cell = Cell(candidate, terms.epsilon, subseed(seed, "try", number))
                path = tried / str(number)
                score = try_candidate(config_of(grid.base, cell), path, data, terms)
                worse: Path | None = path
                if best is None or score > best.score:
                    worse, best = best and best.path, Tried(score, candidate, path)
                if worse is not None:
                    shutil.rmtree(worse)
        if best is not None:
            _publish(best.path, out / BEST, terms)
    except Interrupted:
        raise Interrupted(
            f"Stopped, and all runs are deleted; `pmtl resume {quote(str(out))}` starts again "
            "with the same draws."
        ) from None
    finally:
        shutil.rmtree(tried, ignore_errors=True)
    results = _results(grid, terms, best)
    if best is not None:
        results |= load_run(out / BEST, data).evaluate()
    files.write_json(out / RESULT_FILE, results)
    return results


def draw_candidates(candidates: list[Candidate], shape: float, seed: int) -> list[Candidate]:
    """A random number of candidates, each drawn at random."""
    random = np.random.default_rng(subseed(seed, "choice"))
    runs = selection.draw_number_of_runs(len(candidates), shape, random)
    return [candidates[place] for place in random.integers(len(candidates), size=runs)]


def try_candidate(config: TrainConfig, path: Path, data: FederatedData, terms: Terms) -> float:
    """The noisy score of a run, which is made in the folder `path`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Training diverged", RuntimeWarning)
        run = start(config, data=data, out=path)
    if run.facts.plan not in terms.plans.values() or run.facts.metrics_plan is not None:
        raise PmtlError(
            "A run of this choice made other releases than were priced, so nothing is published. "
            "This is an error in pmtl: please report it."
        )
    return noisy_score(run, data, terms.score, config.privacy.loss_bound)


def noisy_score(
    run: Run, data: FederatedData, plan: PrivacyPlan, loss_bound: float | None = None
) -> float:
    """The average score of the clients' models on validation rows, with noise from the gate. A
    client without rows counts as ½, and one whose model diverged as 0. Losses are bounded by
    `loss_bound`, or by default as for released metrics."""
    target = None if data.bounds is None else data.bounds.target
    bound = metric_bounds(data.task, data.outputs, loss_bound, target)["loss"]
    losses = run.client_losses("validation")["personal"]
    there = np.asarray(data.rows("validation").counts) > 0
    values = np.where(np.isfinite(losses), losses, bound)
    source = seeded_source(run.facts.seed or 0, f"{run.facts.noise_key} choice")
    gate = ReleasedMetrics(plan, ("personal",), {"loss": bound}, source, run.facts.hardened, None)
    released = gate.release(run.facts.plan.rounds, {"personal": ({"loss": values}, there)})
    return 1 - released["personal"]["loss_mean"] / bound


def _publish(tried: Path, best: Path, terms: Terms) -> None:
    """Move the best run to its place, with a statement that covers the choice."""
    folder = RunFolder(tried)
    choice = {
        "costs": [list(pair) for pair in terms.price],
        "candidates": terms.report["candidates"],
        "one_run": terms.epsilon,
        "protocol": terms.report["protocol"],
    }
    facts = replace(folder.facts(), choice=choice)
    save_statement(folder.public, statement_of(facts))
    folder.save_facts(facts)
    with files.disk_errors(best):
        tried.rename(best)


def _results(grid: Grid, terms: Terms, best: Tried | None) -> dict[str, Any]:
    delta, epsilon = terms.price[0]
    return {
        "candidates": [str(candidate) for candidate in grid.candidates()],
        "chosen": None if best is None else str(best.candidate),
        "score": None if best is None else best.score,
        "score_noise": terms.score.noise_std,
        "run": None if best is None else BEST,
        "epsilon": epsilon,
        "delta": delta,
        "one_run": terms.epsilon,
        "runs_drawn": terms.report["runs_drawn"],
        "chance_of_no_choice": terms.report["chance_of_no_choice"],
        "protocol": terms.report["protocol"],
    }
