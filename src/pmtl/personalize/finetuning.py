"""`finetune`: every client of a finished run trains its model further, at no privacy cost."""

from __future__ import annotations

import copy
import secrets
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from pmtl.algorithms import Algorithm
from pmtl.engines.process import resolve_device
from pmtl.errors import PmtlError
from pmtl.options import declared, rounds_only, takes_settings
from pmtl.personalize.choosing import FEWEST_ROWS, FRESH, LAMS, candidates, choose
from pmtl.personalize.methods import SELECT, build_method, needs_published
from pmtl.personalize.result import Finetuned, FinetunedFacts, refuse_existing, save_finetuned
from pmtl.personalize.settings import FinetuneSettings
from pmtl.personalize.tuning import Workspace, tune
from pmtl.runs.folder import RunFolder
from pmtl.runs.result import Run, load_run
from pmtl.simulation import LocalTraining, RowTensors, Weights
from pmtl.spec import explain_wrong_calls, unknown

#: What fine-tuning may begin with: the paper's "Global" and "MTL".
STARTS = ("shared", "personal")


@explain_wrong_calls()
@takes_settings(LocalTraining, *rounds_only(LocalTraining))
@takes_settings(FinetuneSettings)
def finetune(
    run: Run | str | Path,
    method: str = FinetuneSettings.method,
    start: str | None = FinetuneSettings.start,
    *,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Finetuned:
    """Let every client of a finished run train its model further, at no privacy cost.

    Args:
        run: A run, or its folder.
        out: A new folder for the result; `folder_of` gives the default of the command line. Without
            it, the result stays in memory.
        progress: Whether to show a progress bar.
        **settings: fields of `FinetuneSettings` and `LocalTraining`, which `help(pmtl.finetune)`
            lists.
    """
    run = run if isinstance(run, Run) else load_run(run)
    if isinstance(run, Finetuned):
        raise PmtlError("This is a fine-tuned result already: fine-tune the run it came from.")
    local = LocalTraining(**{n: settings.pop(n) for n in declared(LocalTraining) if n in settings})
    asked = FinetuneSettings(method, start, **settings, local=local)
    lam = asked.lam
    how = None if method == SELECT else build_method(method, lam)
    if start is not None or how is not None:
        start = check_start(run, method, start, how)
    production = run.facts.production
    seed = _seed(run, asked.seed)
    if out is not None:
        refuse_existing(out)
    where, dtype = torch.device(resolve_device(asked.device)), run.shared_weights.dtype
    # A copy, so that the run's own model stays on its device.
    model = copy.deepcopy(run.flat_model).to(where, dtype)
    tensors = RowTensors(run.data, where, dtype)
    space = Workspace(run.data, tensors, model, seed, asked.engine, production, progress)
    about = FinetunedFacts(
        run=run.facts.id,
        method=method,
        start=start,
        lam=getattr(how, "lam", lam),
        local=asdict(local),
        seed=None if production else seed,
    )
    if how is None:
        weights, more = _select(run, space, start, lam, local)
    else:
        views, more = run.views(), {}
        anchor = views.get("shared", views["personal"])  # Only used by methods that need "shared".
        weights = tune(space, how, views[str(start)], anchor, local).gather
    tuned = Finetuned(run, model, weights, replace(about, **more))
    return tuned if out is None else save_finetuned(tuned, out)


def folder_of(run: Run, method: str, start: str | None, name: str | None = None) -> Path:
    """The default folder of a result: `RUN/finetuned/METHOD-START`, in production
    `RUN/private/finetuned/METHOD-START`; `name` replaces METHOD-START."""
    if run.path is None:
        raise PmtlError("This run is in memory only and has no folder: train with out=….")
    if name is not None and (Path(name).name != name or name in (".", "..")):
        raise PmtlError(f"The name {name!r} is not a folder's name: use one without slashes.")
    if start is None and method != SELECT:
        start = check_start(run, method, None, build_method(method))
    return RunFolder(run.path).finetuned / (
        name or (method if start is None else f"{method}-{start}")
    )


def check_start(run: Run, method: str, start: str | None, how: Algorithm | None) -> str:
    """The start of fine-tuning; refuses a start or method for which the run lacks the models."""
    algorithm = run.facts.algorithm.partition(":")[0]
    if start is not None and start not in STARTS:
        raise unknown("start", start, STARTS)
    if start == "personal" and not run.facts.personal:
        raise PmtlError(
            f"The clients of a run of {algorithm} have no personal models to start from: use "
            "--start shared."
        )
    if start == "shared" and not run.facts.shares:
        raise PmtlError(
            f"Nothing was shared in this run of {algorithm}, so there is no shared model to start "
            "from: use --start personal."
        )
    if how is not None and needs_published(how) and not run.facts.shares:
        raise PmtlError(
            f"Nothing was shared in this run of {algorithm}, so there is no published model for "
            f"the method {method!r} to stay near: use vanilla or select."
        )
    return start or ("personal" if run.facts.personal else "shared")


def _seed(run: Run, seed: int | None) -> int:
    if run.facts.production:
        if seed is not None:
            raise PmtlError(
                f"Production takes its randomness from the operating system, but the seed {seed} "
                "was given: leave it out."
            )
        return secrets.randbits(63)
    return (run.facts.seed or 0) if seed is None else seed


def _select(
    run: Run, space: Workspace, start: str | None, lam: float | None, local: LocalTraining
) -> tuple[Weights, dict[str, Any]]:
    views = run.views()
    if not run.facts.personal:
        views = {"shared": views["shared"]}
    names = [name for name in STARTS if name in views]
    lams = LAMS if lam is None else dict.fromkeys(LAMS, (lam,))
    offered = candidates(names, local, None if start is None else [start], lams)
    default, fewest = names[-1], 1
    if run.facts.releases is not None:
        # An exact algorithm has chosen for each client between sharing and training alone: its
        # model is the baseline, and a few rows are no reason to leave it.
        offered.sort(key=lambda candidate: (candidate.name != default, candidate.start == FRESH))
        fewest = FEWEST_ROWS
    chosen = choose(space, offered, views, default, fewest)
    about: dict[str, Any] = {"candidates": tuple(candidate.name for candidate in offered)}
    if not run.facts.production:  # In production choices are private.
        about["picks"] = tuple(chosen.picks.tolist())
    return chosen.store.gather, about
