"""`train` and `resume`: from a federation of data to a finished run."""

from __future__ import annotations

import secrets
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pmtl.algorithms import Algorithm, build_algorithm
from pmtl.data import FederatedData, describe, load, public_warnings
from pmtl.errors import PmtlError
from pmtl.models import FlatModel, build_model
from pmtl.privacy.accounting.validation import KIND, evaluations, with_metrics
from pmtl.privacy.ledger.events import TRAINING
from pmtl.privacy.plan import DEFAULT_EPSILON, PrivacyPlan, PrivacyRequest
from pmtl.privacy.statement.warnings import (
    warn_if_drowned,
    warn_of_delta,
    warn_of_empty_cohorts,
    warn_of_noisy_metrics,
)
from pmtl.runs.agreement import refuse_differences
from pmtl.runs.budget import Budget, open_budget
from pmtl.runs.config import IN_MEMORY, TrainConfig, algorithm_spec, part, resolve_device
from pmtl.runs.config_file import read_config
from pmtl.runs.facts import check_data, fingerprint_of
from pmtl.runs.folder import RunFolder, new_key
from pmtl.runs.result import Run, metrics_plan, rebuild_model
from pmtl.runs.session import run_to_end
from pmtl.simulation import (
    ALONE,
    LocalTraining,
    Simulation,
    Team,
    device_of,
    metric_bounds,
    simulate,
)


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
    engine: str = "auto",
    compile: bool | None = None,
    evaluate_every: int = 10,
    patience: int | None = None,
    checkpoint_seconds: float = 10.0,
    out: str | Path | None = None,
    progress: bool = False,
    warn: Callable[[str], None] | None = None,
    team: Team = ALONE,
) -> Run:
    """Train one model per client.

    `data` is a federation or a spec (`visits.csv:client=hospital,target=outcome`), `model` and
    `algorithm` are specs or objects, `privacy` says what it may cost (a number is an ε) and
    `local` how much a client does in a round. With `out`, everything is written to a folder that
    `resume` can continue; without, the run lives in memory.

    `device`, `engine` and `compile` say how it is computed; they change the last bits of sums and
    nothing else.

    An `experiment` is seeded and can be repeated bit for bit. In `production` coins and noise are
    the operating system's, every release is charged to the population's `ledger` before it is
    made, and exact metrics are withheld; average ones are released through the gate.

    In a `team` (`with pmtl.join_team() as team`, under torchrun) every process calls this with the
    same arguments and data, and the first one writes and returns the result. Processes that differ
    in their data, settings or code are refused: they all belong to one owner.
    """
    if isinstance(privacy, (int, float)):
        privacy = PrivacyRequest(epsilon=float(privacy))
    if isinstance(privacy, PrivacyPlan):
        privacy = PrivacyRequest.of(privacy)
    config = TrainConfig(
        data=data if isinstance(data, str) else IN_MEMORY,
        model=model if isinstance(model, str) else IN_MEMORY,
        algorithm=algorithm_spec(algorithm),
        privacy=part(PrivacyRequest, privacy, "privacy"),
        local=part(LocalTraining, local, "local"),
        mode=mode,
        ledger=None if ledger is None else str(ledger),
        seed=seed,
        device=device,
        engine=engine,
        compile=compile,
        evaluate_every=evaluate_every,
        patience=patience,
        checkpoint_seconds=checkpoint_seconds,
    )
    return start(
        config,
        data=None if isinstance(data, str) else data,
        model=None if isinstance(model, str) else model,
        algorithm=None if isinstance(algorithm, str) else algorithm,
        out=out,
        progress=progress,
        warn=warn,
        team=team,
    )


def start(
    config: TrainConfig,
    *,
    data: FederatedData | None = None,
    model: Callable[..., nn.Module] | None = None,
    algorithm: Algorithm | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    warn: Callable[[str], None] | None = None,
    team: Team = ALONE,
) -> Run:
    """Train as configured; `data`, `model` and `algorithm` stand in for what no spec can name."""
    out = out if team.leader else None
    if out is not None:
        RunFolder.refuse_existing(out)
    federated = _load(config, progress and team.leader) if data is None else data
    config = replace(
        config,
        data=federated.source or IN_MEMORY,
        ledger=None if config.ledger is None else str(Path(config.ledger).resolve()),
        seed=0 if config.seed is None and config.mode == "experiment" else config.seed,
    )
    method = build_algorithm(algorithm or config.algorithm)
    plan, metrics = _plans(config, federated, method)
    config = _resolved(config, plan, metrics)
    begin = secrets.randbits(63) if config.seed is None else config.seed
    begin = int(team.from_leader(torch.tensor([begin])))  # One start, frozen layers included.
    flat = build_model(
        model or config.model, federated.input_shape, federated.outputs, federated.task, begin
    )
    plans = [plan.to_dict(), None if metrics is None else metrics.to_dict()]
    refuse_differences(team, federated, config, plans, flat, method)
    name = uuid.uuid4().hex
    prepared = _prepared(config, federated, flat, method, name, plan, metrics, team)
    with prepared as (federation, budget):
        config = replace(
            config,
            model=flat.name if config.model == "auto" else config.model,
            algorithm=algorithm_spec(method),
            device=str(federation.sites.device),
            engine=federation.sites.engine,
            compile=federation.sites.compile,
        )
        key, secret = new_key(config.mode), config.mode == "production"
        facts = {"id": name, "initialisation": begin, **_facts(config, federation, metrics, key)}
        facts["ledger_id"] = None if budget is None else budget.identity
        if warn is not None and team.leader:
            about_clients = [] if budget is None else budget.notices()
            for sentence in [*_warnings(federation, metrics, secret), *about_clients]:
                warn(sentence)
        folder = None if out is None else RunFolder.create(out, config, facts, key)
        if folder is not None and secret:
            for sentence in federated.for_owner:
                folder.note(sentence)
        run = run_to_end(federation, config, facts, folder, budget, progress and team.leader, key)
    return _told(run)


def resume(
    path: str | Path,
    data: FederatedData | None = None,
    model: Callable[..., nn.Module] | None = None,
    algorithm: Algorithm | None = None,
    *,
    progress: bool = False,
    team: Team = ALONE,
) -> Run:
    """Continue a run from its last checkpoint, to the same bits as if it had not stopped.

    `data`, `model` and `algorithm` are needed only where the run got them from a Python program.
    """
    folder = RunFolder.open(path)
    facts = folder.facts()
    if facts["state"] == "complete":
        raise PmtlError(f"The run at {path} is complete: there is nothing left to resume.")
    if "initialisation" not in facts:
        raise PmtlError(
            f"The run at {path} was started by an earlier version of pmtl, whose noise and files "
            "were others: continue it with that version, or start a new run."
        )
    config = read_config(folder.config_file)
    if config.digest() != facts["config_digest"]:
        raise PmtlError(
            f"{folder.config_file} is not what the run was started with: put it back as it was, or "
            "start a new run with it."
        )
    config = replace(config, ledger=facts["ledger"])  # `pmtl ledger charge` may name another.
    if config.data == IN_MEMORY and data is None:
        raise PmtlError(
            f"The run at {path} was started on data from a Python program: continue it there, "
            "with pmtl.resume(path, data=…)."
        )
    if config.algorithm == IN_MEMORY and algorithm is None:
        raise PmtlError(f"The run at {path} needs its algorithm object again: algorithm=….")
    federated = _load(config, progress and team.leader) if data is None else data
    method = build_algorithm(algorithm or config.algorithm)
    plan, metrics = PrivacyPlan.from_dict(facts["plan"]), metrics_plan(facts)
    flat = rebuild_model(facts, model)
    plans = [facts["plan"], facts["metrics_plan"]]
    refuse_differences(team, federated, config, plans, flat, method, facts["id"])
    check_data(federated, facts, folder.key)
    prepared = _prepared(config, federated, flat, method, facts["id"], plan, metrics, team)
    with prepared as (federation, budget):
        if federation.server.billboard.digest() != facts["board"]:
            raise PmtlError(
                f"The clusters or relations of clients are not those that the run at {path} was "
                "started with."
            )
        if config.seed is not None and federation.noise_key.text != facts["noise_key"]:
            raise PmtlError(
                f"The run at {path} cannot go on to the same bits: the code of its model or "
                "algorithm, or the version of pmtl, is not the one it was started with. Put that "
                "back, or start a new run."
            )
        if budget is not None:
            budget.check_identity(facts.get("ledger_id"))
        own = folder if team.leader else None
        show = progress and team.leader
        run = run_to_end(federation, config, facts, own, budget, show, folder.key)
    return _told(run)


def _told(run: Run) -> Run:
    """The run; who called from Python is warned if its models are not finite. All is saved."""
    if run.not_finite is not None:
        warnings.warn(run.not_finite, RuntimeWarning, stacklevel=3)
    return run


def _load(config: TrainConfig, progress: bool) -> FederatedData:
    """The data of a run; in production no row of it can refuse the run for everybody."""
    return load(config.data, progress=progress, production=config.mode == "production")


def _plans(
    config: TrainConfig, data: FederatedData, method: Algorithm
) -> tuple[PrivacyPlan, PrivacyPlan | None]:
    """What is paid for the models and for the metrics: together, the ε that was asked for."""
    asked = replace(config.privacy, metrics=config.metrics_share if method.shares else 0.0)
    views = 2 if method.personal else 1
    values = views * len(metric_bounds(data.task, data.outputs, asked.loss_bound))
    times = evaluations(asked.rounds, config.evaluate_every)
    plan, metrics = with_metrics(asked, data.m, times, values)
    if config.patience is not None and metrics is None:
        raise PmtlError(
            "Stopping early looks at metrics that pass the gate, and this run has none: nothing is "
            "shared, or it is not private anyway. Leave patience out."
        )
    return plan, metrics


@contextmanager
def _prepared(
    config: TrainConfig,
    data: FederatedData,
    model: FlatModel,
    method: Algorithm,
    run: str,
    plan: PrivacyPlan,
    metrics: PrivacyPlan | None,
    team: Team,
) -> Iterator[tuple[Simulation, Budget | None]]:
    """The federation of a run, and its account with its ledger if it has one and shares anything;
    in a team the leader keeps it."""
    ledger = config.ledger if method.shares and team.leader else None
    reproducible = config.mode == "experiment"
    with open_budget(ledger, data.clients, run, plan, metrics, reproducible) as budget:
        if budget is not None:
            budget.refuse_unaffordable()
        federation = simulate(
            data,
            model,
            method,
            plan,
            config.local,
            config.seed,
            device_of(team, resolve_device(config.device)),
            charge=_charge(budget, team, TRAINING),
            hardened=bool(config.privacy.hardened),
            team=team,
            engine=config.engine,
            compile=config.compile,
        )
        if metrics is not None:
            charge = _charge(budget, team, KIND)
            federation.show_metrics(
                metrics, config.privacy.loss_bound, charge, config.evaluate_every
            )
        if config.mode == "production":
            federation.rehearse()
        yield federation, budget


def _charge(budget: Budget | None, team: Team, kind: str) -> Callable[[int], None] | None:
    """How a release is put down; who does not lead has none to make."""
    if budget is not None:
        return partial(budget.charge, kind=kind)
    return None if team.leader else _refuse


def _refuse(round: int) -> None:
    raise PmtlError("Only the first process of a team publishes.")


def _warnings(federation: Simulation, metrics: PrivacyPlan | None, secret: bool) -> list[str]:
    """What a user should know before anything is spent. In production all that rests on public
    numbers (clients, plan, parameters) and nothing that rests on rows."""
    data, plan, method = federation.data, federation.plan, federation.algorithm
    sentences: list[str | None] = [
        *(public_warnings(data) if secret else describe(data)["warnings"])
    ]
    if method.shares:
        smallest = float(federation.server.billboard.members.min() / data.m)
        sentences += [
            warn_of_delta(plan),
            warn_of_empty_cohorts(plan),
            warn_of_noisy_metrics(metrics),
            warn_if_drowned(plan, federation.model.size, smallest),
            method.warning(plan.clients, plan.cohort, plan.rounds),
        ]
    return [sentence for sentence in sentences if sentence]


def _resolved(config: TrainConfig, plan: PrivacyPlan, metrics: PrivacyPlan | None) -> TrainConfig:
    """The configuration with every default about privacy spelled out, as the run's folder has
    it."""
    asked = config.privacy
    aim = DEFAULT_EPSILON if asked.epsilon is None and asked.noise is None else asked.epsilon
    hardened = asked.hardened
    if hardened is None:
        hardened = config.mode == "production" and plan.private
    return replace(
        config,
        privacy=replace(
            asked,
            epsilon=aim,
            delta=plan.delta,
            sampling=plan.sampling,
            cohort=plan.cohort,
            hardened=hardened,
            metrics=config.metrics_share if metrics is not None else asked.metrics,
        ),
    )


def _facts(
    config: TrainConfig, federation: Simulation, metrics: PrivacyPlan | None, key: bytes
) -> dict[str, Any]:
    """What `run.json` keeps: enough to continue, to evaluate and to predict. The digest of the
    data is made with `key`."""
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
        "relations": algorithm.relations,
        "task": data.task,
        "outputs": data.outputs,
        "input_shape": list(data.input_shape),
        "labels": None if data.labels is None else list(data.labels),
        "feature_names": None if data.feature_names is None else list(data.feature_names),
        "text": None if data.text is None else data.text.to_dict(),
        "disclosed": list(data.disclosed),
        "pixels": bool(data.x.dtype == np.uint8),
        "parameters": federation.model.size,
        "plan": federation.plan.to_dict(),
        "metrics_plan": None if metrics is None else metrics.to_dict(),
        "hardened": bool(config.privacy.hardened),
        "fingerprint": fingerprint_of(data, key),
        "clients": list(data.clients),
        "blocks": federation.server.billboard.blocks.tolist(),
        "board": federation.server.billboard.digest(),
        "noise_key": None if config.seed is None else federation.noise_key.text,
    }
