"""`train` and `resume`: from a federation of data to a finished run."""

from __future__ import annotations

import secrets
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pmtl.algorithms import Algorithm, ExactAlgorithm, build_algorithm
from pmtl.data import FederatedData, load
from pmtl.data.checks import not_a_federation
from pmtl.engines.process import resolve_device
from pmtl.errors import PmtlError, PmtlWarning, kind_of
from pmtl.models import build_model, check_model, start_warnings
from pmtl.options import takes_settings
from pmtl.plugins import errors_of_own_code
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import PrivacyRequest
from pmtl.privacy.schemes import find_scheme
from pmtl.runs.callbacks import Callback, build_callbacks
from pmtl.runs.config import (
    IN_MEMORY,
    TrainConfig,
    algorithm_spec,
    part,
    privacy_of,
    read_config,
)
from pmtl.runs.facts import (
    as_trained,
    check_data,
    check_own_code,
    find_own_modules,
    model_identity,
    rebuild_model,
)
from pmtl.runs.folder import KEY_BYTES, RunFolder
from pmtl.runs.preparation import (
    default_algorithm,
    facts_of,
    plans_of,
    prepare,
    refuse_differences,
    settle,
    wants_scaling,
    warn_of_start,
    warnings_of,
    with_privacy_defaults,
)
from pmtl.runs.result import Run
from pmtl.runs.session import run_to_end
from pmtl.server.resolve import WHY_PMTL
from pmtl.sharing import PublicInputs, absolute, share_part
from pmtl.simulation import ALONE, LocalTraining, Team
from pmtl.simulation.custom_metrics import find_metrics
from pmtl.spec import explain_wrong_calls
from pmtl.storage import as_path

_FRAMES = (
    "make a federation of a frame first, with pmtl.FederatedData.from_frame(frame, client=…, "
    "target=…), or write a spec, visits.csv:client=…,target=…"
)


@explain_wrong_calls(
    {"client": _FRAMES, "target": _FRAMES}, privacy=PrivacyRequest, local=LocalTraining
)
@takes_settings(TrainConfig)
def train(
    data: str | Path | FederatedData = "synthetic",
    model: str | Callable[..., nn.Module] = "auto",
    algorithm: str | Algorithm | type[Algorithm] = "auto",
    privacy: PrivacyRequest | PrivacyPlan | dict[str, Any] | float | None = None,
    *,
    local: LocalTraining | dict[str, Any] | None = None,
    out: str | Path | None = None,
    callbacks: Sequence[Callback | str] = (),
    progress: bool = False,
    warn: Callable[[str], None] | None = None,
    team: Team = ALONE,
    **settings: Any,
) -> Run:
    """Train one model per client.

    An `experiment` is seeded and can be repeated bit for bit. In `production` cohorts and noise are
    drawn with the operating system's randomness, every release is charged to the clients' `ledger`
    before it is made, exact metrics are withheld, and average metrics pass the gate.

    Args:
        data: a federation, or a spec (`visits.csv:client=hospital,target=outcome`).
        model: a spec, or a factory of modules (called with the input shape and the outputs).
        algorithm: a spec (`pmtl:lam=0.5`), an algorithm or its class; "auto" is pooling for linear
            models and anchored for others.
        privacy: the privacy that is asked for: an ε, or the fields of `PrivacyRequest`.
        local: a client's work in a round: the fields of `LocalTraining`.
        out: a new folder, from which `resume` can continue; by default the run is in memory only.
        callbacks: callbacks (`pmtl.Callback`), or their names.
        progress: whether to show a progress bar.
        warn: called with each warning, before anything is spent; by default a warning of Python
            (`PmtlWarning`).
        team: this process's rank under torchrun (`with pmtl.join_team() as team`). Every process
            calls this with the same arguments and data; the first writes and returns the result.
            Processes that differ in data, settings or code are refused.
        **settings: the other fields of `TrainConfig`, which `help(pmtl.train)` lists.
    """
    if isinstance(data, Path):
        data = str(data)
    if not isinstance(data, (str, FederatedData)):
        raise not_a_federation(data)
    check_model(model)
    if not isinstance(algorithm, str):
        algorithm = build_algorithm(algorithm)
    if warn is not None and not callable(warn):
        raise PmtlError(f"warn is a function of a sentence, but {kind_of(warn)} was given.")
    if not isinstance(team, Team):
        raise PmtlError(f"team comes from pmtl.join_team(), but {kind_of(team)} was given.")
    config = TrainConfig(
        data=data if isinstance(data, str) else IN_MEMORY,
        model=model if isinstance(model, str) else IN_MEMORY,
        algorithm=algorithm_spec(algorithm),
        privacy=privacy_of(privacy),
        local=part(LocalTraining, local, "local"),
        **settings,
    )
    return start(
        config,
        data=None if isinstance(data, str) else data,
        model=None if isinstance(model, str) else model,
        algorithm=None if isinstance(algorithm, str) else algorithm,
        out=out,
        callbacks=callbacks,
        progress=progress,
        warn=warn or _warn,
        team=team,
    )


def _warn(sentence: str) -> None:
    """Warn at the line that called `train`, which called the decorated `start`, which
    calls this."""
    warnings.warn(PmtlWarning(sentence), stacklevel=6)


@errors_of_own_code((SystemExit,))
def start(
    config: TrainConfig,
    *,
    data: FederatedData | None = None,
    model: Callable[..., nn.Module] | None = None,
    algorithm: Algorithm | None = None,
    out: str | Path | None = None,
    callbacks: Sequence[Callback | str] = (),
    progress: bool = False,
    warn: Callable[[str], None] | None = None,
    team: Team = ALONE,
) -> Run:
    """Train as configured; `data`, `model` and `algorithm` are objects that no spec can name."""
    show, secret = progress and team.leader, config.mode == "production"
    called = build_callbacks(callbacks)
    find_metrics(config.metric)  # An unknown metric is refused before anything is spent.
    out = out if team.leader else None
    if out is not None:
        RunFolder.refuse_existing(out)
    # Reading the data may take minutes: what can be refused without them is refused now.
    check_model(model or config.model)
    if algorithm is None and config.algorithm != "auto":
        build_algorithm(config.algorithm)
    if config.privacy.sampling is not None:
        find_scheme(config.privacy.sampling)
    resolve_device(config.device)
    config = with_absolute_paths(config)
    public = PublicInputs.read(config.init, config.share)
    federated = _load(config, show) if data is None else data
    find_metrics(config.metric, federated.task)
    config = replace(
        config,
        data=federated.source or IN_MEMORY,
        seed=config.seed if secret else config.seed or 0,
    )
    begin = secrets.randbits(63) if config.seed is None else config.seed
    begin = int(team.from_leader(torch.tensor([begin])))  # All processes start from one model.
    sizes = (federated.input_shape, federated.outputs, federated.task)
    flat = build_model(model or config.model, *sizes, begin, public.start, config.frozen)
    about_start = start_warnings(flat.module, public.start or {}) if config.init else []
    public = public.fitted(flat)
    code = model_identity(flat)  # Training may change the module.
    if algorithm is None and config.algorithm == "auto":
        config = replace(config, algorithm=default_algorithm(config, federated, flat))
        about_start += [WHY_PMTL] if config.algorithm == "pmtl" else []
    method = build_algorithm(algorithm or config.algorithm)
    if wants_scaling(method, federated, flat, config.init is not None):
        federated = federated.scaled()
        config = replace(config, data=federated.source or IN_MEMORY)
    settled = settle(method, config, federated, flat)
    about_start += warn_of_start(settled, flat, public.start or {})
    if config.share is None and isinstance(settled, ExactAlgorithm):
        config = replace(config, share=settled.default_share)
    shared = share_part(settled, config.share, flat, public.rows)
    plan, metrics = plans_of(config, federated, shared)
    config = with_privacy_defaults(config, plan, metrics)
    refuse_differences(team, federated, config, [plan, metrics], flat, shared)
    name = uuid.uuid4().hex
    prepared = prepare(config, federated, flat, shared, name, plan, metrics, team)
    with prepared as (simulation, budget):
        config = replace(
            config,
            model=flat.name if config.model == "auto" else config.model,
            algorithm=algorithm_spec(method),
            device=str(simulation.sites.device),
            engine=simulation.sites.engine,
            compile=simulation.sites.compile,
        )
        key = secrets.token_bytes(KEY_BYTES) if secret else b""
        ledger_id = None if budget is None else budget.ledger.identity
        known: dict[str, Any] = {"id": name, "initialisation": begin, "ledger_id": ledger_id}
        known |= {"public_files": dict(public.about), "start_digest": public.digest()}
        known |= {"model_identity": code}
        known["noise_key"] = None if config.seed is None else simulation.noise_key.text
        facts = facts_of(
            config=config,
            data=simulation.data,
            model=simulation.model,
            algorithm=simulation.algorithm,
            billboard=simulation.server.billboard,
            plan=simulation.plan,
            metrics=metrics,
            key=key,
            **known,
        )
        if warn is not None and team.leader:
            about_clients = [] if budget is None else budget.ledger.notices()
            usual = warnings_of(simulation, metrics, secret)
            for sentence in [*about_start, *usual, *about_clients]:
                warn(sentence)
        folder = None if out is None else RunFolder.create(out, config, facts, key, public)
        if folder is not None and secret:
            for sentence in federated.for_owner:
                folder.note(sentence)
        run = run_to_end(simulation, config, facts, folder, budget, show, key, called)
    return _warn_if_not_finite(run, 6)  # As in `_warn`.


@explain_wrong_calls()
@errors_of_own_code((SystemExit,))
def resume(
    path: str | Path,
    data: FederatedData | None = None,
    model: Callable[..., nn.Module] | None = None,
    algorithm: Algorithm | None = None,
    *,
    callbacks: Sequence[Callback | str] = (),
    progress: bool = False,
    team: Team = ALONE,
) -> Run:
    """Continue a run from its last checkpoint; an experiment gives the same bits as if it had not
    stopped.

    Args:
        path: the run's folder.
        data: the federation, if the run got it from a Python program.
        model: the factory of modules, if the run got it from a Python program.
        algorithm: the algorithm, if no spec can name it.
        callbacks: callbacks (`pmtl.Callback`) for the rest of the run, or their names.
        progress: whether to show a progress bar.
        team: this process's rank under torchrun, as for `train`.
    """
    show = progress and team.leader
    called = build_callbacks(callbacks)
    folder = RunFolder.open(path)
    facts = folder.facts()
    if facts.complete:
        raise PmtlError(f"The run at {path} is complete: there is nothing left to resume.")
    if facts.initialisation is None:
        raise PmtlError(
            f"The run at {path} was started by an earlier version of pmtl with other noise and "
            "files: continue it with that version, or start a new run."
        )
    check_own_code(facts, path)
    config = read_config(folder.config_file)
    if facts.config_digest != config.digest():
        raise PmtlError(
            f"{folder.config_file} is not what the run was started with: put it back as it was, or "
            "start a new run with it."
        )
    config = replace(config, ledger=facts.ledger)  # `pmtl ledger charge` may name another.
    if config.data == IN_MEMORY and data is None:
        raise PmtlError(
            f"The run at {path} was started on data from a Python program: continue it there, "
            "with pmtl.resume(path, data=…)."
        )
    if config.algorithm == IN_MEMORY and algorithm is None:
        raise PmtlError(f"The run at {path} needs its algorithm object again: algorithm=….")
    find_own_modules(facts)
    facts = replace(facts, plan=facts.plan.with_code())
    plan, metrics = facts.plan, facts.metrics_plan
    federated = _load(config, show, facts.schema) if data is None else data
    method = build_algorithm(algorithm or config.algorithm)
    public = folder.load_public(facts)
    flat = rebuild_model(facts, model, public)
    federated = as_trained(federated, facts)
    method = settle(method, config, federated, flat)
    method = share_part(method, facts.share, flat, public.rows)
    refuse_differences(team, federated, config, [plan, metrics], flat, method, facts.id)
    check_data(federated, facts, folder.key)
    prepared = prepare(config, federated, flat, method, facts.id, plan, metrics, team)
    with prepared as (simulation, budget):
        if simulation.server.billboard.digest() != facts.board:
            raise PmtlError(
                f"The clusters or relations of clients are not those with which the run at {path} "
                "was started."
            )
        if config.seed is not None and simulation.noise_key.text != facts.noise_key:
            raise PmtlError(
                f"The run at {path} cannot continue to the same bits: the code of its model, "
                "algorithm or sampling scheme, the version of pmtl, or (with dropout) the device "
                "or the number of processes has changed since it was started. Restore what it "
                "was, or start a new run."
            )
        if budget is not None:
            budget.check_identity(facts.ledger_id)
        own = folder if team.leader else None
        run = run_to_end(simulation, config, facts, own, budget, show, folder.key, called)
    return _warn_if_not_finite(run, 5)


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The configuration with absolute paths, for use from any folder."""
    init = None if config.init is None else str(as_path(config.init, "init").absolute())
    ledger = None if config.ledger is None else str(as_path(config.ledger, "The ledger").resolve())
    return replace(config, init=init, ledger=ledger, share=absolute(config.share))


def _warn_if_not_finite(run: Run, stacklevel: int) -> Run:
    """The run, after a warning if its models are not finite, `stacklevel` calls above this one."""
    if run.not_finite is not None:
        warnings.warn(run.not_finite, RuntimeWarning, stacklevel=stacklevel)
    return run


def _load(config: TrainConfig, progress: bool, schema: Any = None) -> FederatedData:
    """The data of a run, with its `schema` if it is continued; in production no row can stop it."""
    secret = config.mode == "production"
    return load(config.data, progress=progress, production=secret, schema=schema)
