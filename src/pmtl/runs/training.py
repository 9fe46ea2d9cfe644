"""`train` and `resume`: from a federation of data to a finished run."""

from __future__ import annotations

import secrets
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pmtl.algorithms import Algorithm, build_algorithm
from pmtl.data import FederatedData, describe, load
from pmtl.errors import Interrupted, PmtlError
from pmtl.models import build_model
from pmtl.privacy.plan import DEFAULT_EPSILON, PrivacyPlan, PrivacyRequest
from pmtl.privacy.statement import warn_if_drowned, warn_of_delta
from pmtl.progress import progress_bar
from pmtl.runs import files
from pmtl.runs.budget import Budget, open_budget
from pmtl.runs.config import (
    IN_MEMORY,
    TrainConfig,
    algorithm_spec,
    part,
    resolve_device,
)
from pmtl.runs.config_file import read_config
from pmtl.runs.folder import RunFolder
from pmtl.runs.result import Run, check_data, rebuild_model, statement_of
from pmtl.simulation import Federation, LocalTraining, Metrics, Progress, evaluate

#: A step of a whole cohort that touches fewer floats than this runs on one thread.
SMALL_STEP = 2**22


def train(
    data: str | FederatedData = "synthetic",
    model: str | Callable[..., nn.Module] = "auto",
    algorithm: str | Algorithm = "pmtl",
    privacy: PrivacyRequest | PrivacyPlan | dict[str, Any] | float | None = None,
    *,
    local: LocalTraining | dict[str, Any] | None = None,
    mode: str = "experiment",
    ledger: str | Path | None = None,
    seed: int | None = None,
    device: str = "auto",
    evaluate_every: int = 10,
    checkpoint_seconds: float = 10.0,
    out: str | Path | None = None,
    progress: bool = False,
    warn: Callable[[str], None] | None = None,
) -> Run:
    """Train one model per client.

    `data` is a federation or a spec (`visits.csv:client=hospital,target=outcome`), `model` and
    `algorithm` are specs or objects, `privacy` says what it may cost (a number is an ε) and
    `local` how much a client does in a round. With `out`, everything is written to a folder that
    `resume` can continue; without, the run lives in memory.

    An `experiment` is seeded and can be repeated bit for bit. In `production` coins and noise are
    the operating system's, every release is charged to the population's `ledger` before it is
    made, and exact metrics are withheld.
    """
    if out is not None:
        RunFolder.refuse_existing(out)
    if isinstance(privacy, (int, float)):
        privacy = PrivacyRequest(epsilon=float(privacy))
    if isinstance(privacy, PrivacyPlan):
        privacy = PrivacyRequest.of(privacy)
    federated = load(data) if isinstance(data, str) else data
    config = TrainConfig(
        data=federated.source or IN_MEMORY,
        model=model if isinstance(model, str) else IN_MEMORY,
        algorithm=algorithm_spec(algorithm),
        privacy=part(PrivacyRequest, privacy, "privacy"),
        local=part(LocalTraining, local, "local"),
        mode=mode,
        ledger=None if ledger is None else str(Path(ledger).resolve()),
        seed=0 if seed is None and mode == "experiment" else seed,
        device=device,
        evaluate_every=evaluate_every,
        checkpoint_seconds=checkpoint_seconds,
    )
    method = build_algorithm(algorithm)
    plan = config.privacy.resolve(federated.m)
    shape = federated.input_shape
    start = secrets.randbits(63) if config.seed is None else config.seed
    flat = build_model(model, shape, federated.outputs, federated.task, start)
    run = uuid.uuid4().hex
    with _account(config, federated, method, run, plan) as budget:
        federation = Federation(
            federated,
            flat,
            method,
            plan,
            config.local,
            config.seed,
            resolve_device(device),
            charge=None if budget is None else budget.charge,
        )
        config = _resolved(config, federation)
        facts = {"id": run, **_facts(config, federation)}
        if warn is not None:
            for sentence in _warnings(federation, config.mode == "production"):
                warn(sentence)
        folder = None if out is None else RunFolder.create(out, config, facts)
        return _run(federation, config, facts, folder, budget, progress)


def resume(
    path: str | Path,
    data: FederatedData | None = None,
    model: Callable[..., nn.Module] | None = None,
    algorithm: Algorithm | None = None,
    *,
    progress: bool = False,
) -> Run:
    """Continue a run from its last checkpoint, to the same bits as if it had not stopped.

    `data`, `model` and `algorithm` are needed only where the run got them from a Python program.
    """
    folder = RunFolder.open(path)
    facts = folder.facts()
    if facts["state"] == "complete":
        raise PmtlError(f"The run at {path} is complete: there is nothing left to resume.")
    config = read_config(folder.config_file)
    if config.digest() != facts["config_digest"]:
        raise PmtlError(
            f"{folder.config_file} is not what the run was started with: put it back as it was, or "
            "start a new run with it."
        )
    if config.data == IN_MEMORY and data is None:
        raise PmtlError(
            f"The run at {path} was started on data from a Python program: continue it there, "
            "with pmtl.resume(path, data=…)."
        )
    if config.algorithm == IN_MEMORY and algorithm is None:
        raise PmtlError(f"The run at {path} needs its algorithm object again: algorithm=….")
    federated = load(config.data) if data is None else data
    check_data(federated, facts)
    method, plan = (
        build_algorithm(algorithm or config.algorithm),
        PrivacyPlan.from_dict(facts["plan"]),
    )
    with _account(config, federated, method, facts["id"], plan) as budget:
        federation = Federation(
            federated,
            rebuild_model(facts, model),
            method,
            plan,
            config.local,
            config.seed,
            resolve_device(config.device),
            charge=None if budget is None else budget.charge,
        )
        if federation.blocks.tolist() != facts["blocks"]:
            raise PmtlError(f"The clusters are not those that the run at {path} was started with.")
        return _run(federation, config, facts, folder, budget, progress)


@contextmanager
def _account(
    config: TrainConfig, data: FederatedData, method: Algorithm, run: str, plan: PrivacyPlan
) -> Iterator[Budget | None]:
    """The run's account with its ledger, if it has one and shares anything."""
    ledger = config.ledger if method.shares else None
    with open_budget(ledger, data.clients, run, plan, config.mode == "experiment") as budget:
        if budget is not None:
            budget.refuse_unaffordable()
        yield budget


def _warnings(federation: Federation, secret: bool) -> list[str]:
    """What a user should know before anything is spent; in production, only what is public."""
    data, plan, method = federation.data, federation.plan, federation.algorithm
    sentences: list[str | None] = [] if secret else [*describe(data)["warnings"]]
    if method.shares:
        smallest = float(np.bincount(federation.blocks).min() / data.m)
        sentences += [
            warn_of_delta(plan),
            warn_if_drowned(plan, federation.model.size, smallest),
            method.warning(plan.clients, plan.cohort, plan.rounds),
        ]
    return [sentence for sentence in sentences if sentence]


def _run(
    federation: Federation,
    config: TrainConfig,
    facts: dict[str, Any],
    folder: RunFolder | None,
    budget: Budget | None,
    show: bool,
) -> Run:
    """Run what is left of the rounds, then write and return the result."""
    state = federation.start()
    metrics: list[dict[str, Any]] = []
    secret = config.mode == "production"
    with ExitStack() as stack:
        stack.enter_context(_threads_for(federation))
        stop = threading.Event()
        if folder is not None:
            stack.enter_context(files.exclusive(folder.lock_file))
            stop = stack.enter_context(graceful_stop())
            state = folder.load_checkpoint(state)
            if budget is not None:
                budget.check_checkpoint(state.round, folder.checkpoint_digest())
            if secret and state.round == 0:
                _save(folder, state, budget)  # The start is random, and written down nowhere else.
        bar = stack.enter_context(
            progress_bar("training", federation.plan.rounds, state.round, show)
        )
        saved = time.monotonic()
        while state.round < federation.plan.rounds:
            if budget is not None and (reason := budget.refuses(state.round)):
                facts = {**facts, "stopped": reason}  # The last model stays usable.
                break
            report = federation.advance(state)
            validation = None if secret else _validation(federation, config, state)
            bar.advance(_describe(validation))
            line = {"round": report.round} if secret else asdict(report)
            line |= {} if validation is None else {"validation": validation}
            if folder is None:
                metrics.append(line)
                continue
            folder.save_round(line)
            if stop.is_set() or time.monotonic() - saved >= config.checkpoint_seconds:
                _save(folder, state, budget)
                saved = time.monotonic()
            if stop.is_set() and state.round < federation.plan.rounds:
                raise Interrupted(
                    f"Stopped after round {state.round} of {federation.plan.rounds}; "
                    f"`pmtl resume {folder.path}` continues it."
                )
        return _finish(federation, facts, folder, budget, state, metrics)


def _save(folder: RunFolder, state: Progress, budget: Budget | None) -> None:
    digest = folder.save_checkpoint(state)
    if budget is not None:
        budget.saved(state.round, digest)


def _finish(
    federation: Federation,
    facts: dict[str, Any],
    folder: RunFolder | None,
    budget: Budget | None,
    state: Progress,
    metrics: list[dict[str, Any]],
) -> Run:
    algorithm, plan = federation.algorithm, federation.plan
    everybody = np.arange(federation.data.m, dtype=np.int64)
    personal = federation.predictors(state, everybody)
    facts = facts | {"state": "complete", "releases": plan.rounds}
    if budget is not None:
        facts["releases"] = budget.charges
        facts["population_epsilon"] = budget.population_epsilon(plan.delta)
    statement = statement_of(facts)
    if folder is not None:
        metrics = folder.metrics()
    run = Run(
        facts,
        federation.model,
        personal,
        state.shared,
        statement,
        metrics,
        federation.data,
        None if folder is None else folder.path,
        federation.data.scaling,
    )
    if folder is not None:
        _save(folder, state, budget)
        folder.save_scaling(federation.data.scaling)
        owned = personal if algorithm.personal else None
        result = None if facts["mode"] == "production" else run.evaluate()
        folder.save_result(facts, owned, state.shared, statement, result)
    return run


def _resolved(config: TrainConfig, federation: Federation) -> TrainConfig:
    """The configuration with every default spelled out, as it is written to the run's folder."""
    asked, plan = config.privacy, federation.plan
    aim = DEFAULT_EPSILON if asked.epsilon is None and asked.noise is None else asked.epsilon
    return replace(
        config,
        model=federation.model.name if config.model == "auto" else config.model,
        algorithm=algorithm_spec(federation.algorithm),
        device=str(federation.device),
        privacy=replace(
            asked, epsilon=aim, delta=plan.delta, sampling=plan.sampling, cohort=plan.cohort
        ),
    )


def _facts(config: TrainConfig, federation: Federation) -> dict[str, Any]:
    """What `run.json` keeps: enough to continue, to evaluate and to predict."""
    data, algorithm = federation.data, federation.algorithm
    return {
        "mode": config.mode,
        "ledger": config.ledger,
        "data": config.data,
        "model": config.model,
        "model_folder": str(Path.cwd()) if ":" in config.model else None,
        "algorithm": config.algorithm,
        "config_digest": config.digest(),
        "seed": config.seed,
        "shares": algorithm.shares,
        "personal": algorithm.personal,
        "task": data.task,
        "outputs": data.outputs,
        "input_shape": list(data.input_shape),
        "labels": None if data.labels is None else list(data.labels),
        "feature_names": None if data.feature_names is None else list(data.feature_names),
        "pixels": bool(data.x.dtype == np.uint8),
        "parameters": federation.model.size,
        "plan": federation.plan.to_dict(),
        "fingerprint": data.fingerprint(),
        "clients": list(data.clients),
        "blocks": federation.blocks.tolist(),
    }


def _validation(
    federation: Federation, config: TrainConfig, state: Progress
) -> dict[str, Metrics] | None:
    every = config.evaluate_every
    last = state.round == federation.plan.rounds
    if not every or not (last or state.round % every == 0):
        return None
    views = federation.views(state)
    return evaluate(federation.data, federation.feed, federation.model, views, "validation")


def _describe(validation: dict[str, Metrics] | None) -> str | None:
    if validation is None:
        return None
    personal = validation["personal"]
    name = "accuracy" if "accuracy" in personal else "rmse"
    return f"validation {name} {personal[name]:.3f}"


@contextmanager
def _threads_for(federation: Federation) -> Iterator[None]:
    """One thread for small steps: waking a second one costs more than it saves (on a busy machine
    several times more), and sums come out the same whatever the machine's default is."""
    before = torch.get_num_threads()
    if federation.step_floats < SMALL_STEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_stops: list[threading.Event] = []


@contextmanager
def graceful_stop() -> Iterator[threading.Event]:
    """Let Ctrl-C and SIGTERM end a run after the present round; a second one ends it at once.

    Within a comparison, which asks for this itself, all its runs look at the same event.
    """
    if _stops:
        yield _stops[-1]
        return
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Only the main thread may handle signals.
        return

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    _stops.append(stop)
    try:
        yield stop
    finally:
        _stops.pop()
        for number, handler in before.items():
            signal.signal(number, handler)
