"""The loop of a run, its checkpoints and its charges."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pmtl import storage as files
from pmtl.engines.process import graceful_stop, peak_resident_bytes
from pmtl.errors import Interrupted, PmtlError, how_many
from pmtl.privacy.accounting.validation import KIND
from pmtl.runs.budget import Budget, Published
from pmtl.runs.callbacks import Callback, Event, call
from pmtl.runs.config import TrainConfig
from pmtl.runs.facts import RunFacts
from pmtl.runs.folder import RunFolder
from pmtl.runs.personal_file import personal_models
from pmtl.runs.result import Run, statement_of
from pmtl.simulation import Metrics, RoundReport, RunState, Simulation, evaluate
from pmtl.simulation.custom_metrics import find_metrics
from pmtl.views.progress import progress_bar

#: Personal models that are checked together.
_MODELS_AT_A_TIME = 256


def run_to_end(
    simulation: Simulation,
    config: TrainConfig,
    facts: RunFacts,
    folder: RunFolder | None,
    budget: Budget | None,
    show: bool,
    key: bytes = b"",
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run the remaining rounds, then write and return the result.

    In a team every process calls this. Only the leader has a folder and a budget, decides whether
    to continue, to save or to stop, calls callbacks, and returns all models. `key` is the key of
    the digests in `facts`.
    """
    team, plan = simulation.team, simulation.plan
    state = simulation.start(None if folder is None else folder.owned_file)
    secret = facts.production
    if secret and folder is not None:
        simulation.notify_owner = folder.note
    with ExitStack() as stack:
        stack.enter_context(simulation.sites.threads())
        stop = threading.Event()
        if folder is not None:
            stack.enter_context(files.exclusive(folder.lock_file))
            state = folder.load_checkpoint(state, show)
            if budget is not None:
                budget.check_resumable(folder.checkpoint(), folder.metrics.published())
            folder.metrics.drop_after(state.round)
            if secret and state.round == 0:
                _save(folder, state, budget)  # The start is random, and saved nowhere else.
        if folder is not None or not team.leader:
            stop = stack.enter_context(graceful_stop())
        simulation.distribute(state)
        lines = MetricsLines(folder, secret)
        bar = stack.enter_context(progress_bar("training", plan.rounds, state.round, show))
        mine = callbacks if team.leader else ()

        def event() -> Event:
            """The event for callbacks; the lines and the shared model are public in production."""
            written = lines.all()
            return Event(
                round=state.round,
                rounds=plan.rounds,
                metrics=copy.deepcopy(written[-1]) if written else {},
                shared=state.shared.detach().clone() if simulation.algorithm.shares else None,
                path=None if folder is None else folder.public,
            )

        failed = None
        saved = time.monotonic()
        while state.round < plan.rounds:
            reason = None if budget is None else budget.refuses(state.round)
            if not team.agree(reason is None):
                facts = replace(facts, stopped=reason)  # The last model remains the result.
                break
            report = simulation.advance(state)
            measured = _validation(simulation, config, budget, state)
            bar.advance(_describe(measured.get("validation")))
            lines.add(report, measured)
            better = not (config.patience and _has_not_improved(lines.all(), config.patience))
            ends = team.agree(not better)
            failed = call(mine, "on_round", event, ends)
            if ends:
                waited_for = how_many(config.patience or 0, "evaluation")
                facts = replace(facts, stopped=_STOPPED.format(waited_for, state.round))
                if budget is not None:
                    budget.charge_remaining(state.round)
                break
            waited = time.monotonic() - saved >= config.checkpoint_seconds
            due = waited or stop.is_set() or failed is not None
            if team.agree(folder is not None and due):
                simulation.collect(state)
                lines.all()
                if folder is not None:
                    _save(folder, state, budget)
                    failed = failed or call(mine, "on_checkpoint", event)
                saved = time.monotonic()
            if callbacks and team.agree(failed is not None):
                raise failed or PmtlError("A callback failed in the first process of the team.")
            if team.agree(folder is not None and stop.is_set()) and state.round < plan.rounds:
                place = "RUN" if folder is None else quote(str(folder.path))
                raise Interrupted(
                    f"Stopped after round {state.round} of {plan.rounds}; `pmtl resume {place}` "
                    "continues it."
                )
        if state.round < plan.rounds:
            simulation.finish(state)  # It ended early: from what was published.
        simulation.collect(state)
        run = _finish(simulation, facts, folder, budget, state, lines.all(), key)
        at_end = call(mine, "on_end", event, ends=True)
        if failed := failed or at_end:
            raise failed
        return run


class MetricsLines:
    """A run's metrics, one line for each round. A line is written when its numbers are available;
    on a graphics card that is during the next round."""

    def __init__(self, folder: RunFolder | None, secret: bool) -> None:
        self._folder = folder
        self._secret = secret
        self._written = [] if folder is None else folder.metrics.lines()
        self._waiting: list[tuple[RoundReport, dict[str, Any]]] = []

    def add(self, report: RoundReport, measured: dict[str, Any]) -> None:
        """Add a round that is finished or, on a graphics card, submitted."""
        self._waiting.append((report, measured))
        self._write(but=1 if report.pending else 0)

    def all(self) -> list[dict[str, Any]]:
        """All lines, including the last round's; they are then in the folder, too."""
        self._write(but=0)
        return self._written

    def _write(self, but: int) -> None:
        while len(self._waiting) > but:
            report, measured = self._waiting.pop(0)
            line = {"round": report.round} if self._secret else report.to_dict()
            self._written.append(line | measured)
            if self._folder is not None:
                self._folder.save_round(self._written[-1])


def _save(folder: RunFolder, state: RunState, budget: Budget | None) -> None:
    digest = folder.save_checkpoint(state, {} if budget is None else budget.history())
    if budget is not None:
        budget.saved(state.round, digest)


def _finish(
    simulation: Simulation,
    facts: RunFacts,
    folder: RunFolder | None,
    budget: Budget | None,
    state: RunState,
    metrics: list[dict[str, Any]],
    key: bytes,
) -> Run:
    data, delta = simulation.data, simulation.plan.delta
    views = simulation.final_views(state)
    weights = views["personal"] if simulation.team.leader else _not_in_this_process
    # If nothing is personal, the weights come from what was published, as in a run that is read.
    own = weights if simulation.algorithm.personal or not simulation.team.leader else None
    alone = views.get("alone") if simulation.team.leader else None
    facts = replace(facts, state="complete", not_finite=not_finite(simulation, state, facts.mode))
    if (spans := simulation.algorithm.target_spans(state.shared)) is not None:
        known = bool(np.isfinite(spans).all())
        shows = facts.shows_model and known
        facts = replace(facts, target_spans=tuple(spans) if known else None, shows_model=shows)
    if not facts.production:  # Who was sampled is private, and so is the number of sampled clients.
        store = state.store
        clients = len(store.seen)
        owned = {"clients": clients, "bytes": clients * store.start.nbytes, "in": store.where}
        memory = {"peak_resident_bytes": peak_resident_bytes(), "owned": owned}
        facts = replace(facts, memory=memory)
    if budget is not None:
        released = [line["round"] for line in metrics if "noise" in line]
        budget.ledger.verify()
        budget.check_published(Published(state.round, released))
        facts = replace(facts, **budget.spent(delta))
    run = Run(
        facts,
        simulation.model,
        personal_weights=own,
        shared_weights=simulation.published(state),
        privacy=statement_of(facts),
        metrics=metrics,
        data=data,
        path=None if folder is None else folder.path,
        scaling=data.scaling,
        billboard=simulation.server.billboard,
        digest_key=key,
        alone=alone,
    )
    if folder is not None:
        _save(folder, state, budget)
        personal = personal_models(
            algorithm=simulation.algorithm,
            store=state.store,
            shared=state.shared,
            weights=weights,
            alone=alone,
            mixed=simulation.server.billboard.mixture is not None,
        )
        result = None if facts.production else run.evaluate()
        shown = simulation.published(state) if simulation.algorithm.exact else state.shared
        published = {"weights": shown, **simulation.server.billboard.tensors()}
        folder.save_result(facts, personal, published, data.scaling, run.privacy, result)
    return run


def not_finite(simulation: Simulation, state: RunState, mode: str) -> str | None:
    """A sentence if some weights are infinite or NaN; else None.

    In production it depends on the shared model only: a personal model is private, and predicting
    with it reports the problem. In an experiment personal models count, too.
    """
    if not bool(state.shared.isfinite().all()):
        what = "the shared model is not finite"
    elif mode == "production" or not simulation.team.leader:
        return None
    else:
        seen = state.store.seen
        wrong = sum(
            int((~simulation.predictors(state, some).isfinite().all(dim=1)).sum())
            for some in np.array_split(seen, -(-len(seen) // _MODELS_AT_A_TIME) or 1)
        )
        if wrong == 0:
            return None
        what = f"{wrong} of {len(seen)} personal models are not finite"
    return (
        f"Training diverged: {what} (infinite or NaN weights) and cannot predict. Releases stay "
        "charged. Train again with features scaled to a size near 1 (--scale client), a smaller "
        "step (--lr) or a smaller λ."
    )


def _not_in_this_process(clients: NDArray[np.int64]) -> Tensor:
    raise PmtlError("This process has only a part of the models: use the first of the team.")


def _validation(
    simulation: Simulation, config: TrainConfig, budget: Budget | None, state: RunState
) -> dict[str, Any]:
    """A round's metrics on validation rows: released through the gate if there is a plan for it,
    else exact in an experiment and none in production."""
    every = config.evaluate_every
    last = state.round == simulation.plan.rounds
    due = last or (state.round % max(1, every) == 0 and not simulation.algorithm.exact)
    if not every or not due:  # Clients of an exact algorithm have models after the last round only.
        return {}
    if simulation.released_metrics is not None:
        refused = budget is not None and budget.refuses(state.round, KIND) is not None
        if simulation.team.agree(refused):
            return {}
        deviations = simulation.released_metrics.deviations
        released = simulation.measure(state)
        return {"validation": released, "noise": deviations} if released else {}
    if config.mode == "production":
        return {}
    tensors, model, views = simulation.sites.tensors, simulation.model, simulation.views(state)
    own = find_metrics(config.metric)
    exact = evaluate(tensors, model, views, "validation", simulation.team, own)
    return {} if exact is None else {"validation": exact}


_STOPPED = "The released loss was not lower for {}, after round {}."


def _has_not_improved(metrics: list[dict[str, Any]], patience: int) -> bool:
    """Whether none of the last `patience` released losses is below the lowest one before them."""
    views = [line["validation"] for line in metrics if "validation" in line]
    losses = [(view.get("personal") or view["shared"])["loss_mean"] for view in views]
    return len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])


def _describe(validation: dict[str, Metrics] | None) -> str | None:
    if validation is None:
        return None
    values = validation.get("personal") or validation["shared"]
    names = ("accuracy", "rmse", "accuracy_mean", "loss_mean")
    name = next(name for name in names if name in values)
    return f"validation {name.removesuffix('_mean')} {values[name]:.3f}"
