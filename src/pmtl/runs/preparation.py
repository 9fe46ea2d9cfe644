"""Decisions, checks and warnings before the first round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from pmtl.algorithms import Algorithm, ExactAlgorithm
from pmtl.billboard import Billboard
from pmtl.data import Bounds, FederatedData, describe, public_warnings
from pmtl.engines.process import resolve_device
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.models import FlatModel
from pmtl.models.library import Linear
from pmtl.models.linear.last_layer import last_layer
from pmtl.plugins import named_code, signature
from pmtl.privacy.accounting.validation import KIND, evaluations, with_metrics
from pmtl.privacy.ledger.events import TRAINING
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import DEFAULT_EPSILON, DEFAULT_ROUNDS
from pmtl.privacy.sampling import SamplingScheme
from pmtl.privacy.statement.warnings import (
    warn_if_noise_exceeds_signal,
    warn_of_delta,
    warn_of_empty_cohorts,
    warn_of_noisy_metrics,
)
from pmtl.runs.budget import Budget
from pmtl.runs.config import TrainConfig
from pmtl.runs.facts import RunFacts, fingerprint_of, signed_text, versions
from pmtl.server.resolve import auto_algorithm, resolve_algorithm, sizes_of
from pmtl.sharing import named
from pmtl.simulation import Simulation, Team, code_digest, device_of, metric_bounds, simulate


def plans_of(
    config: TrainConfig, data: FederatedData, method: Algorithm
) -> tuple[PrivacyPlan, PrivacyPlan | None]:
    """The plans of the models and of the metrics; together they cost the requested ε."""
    asked = replace(config.privacy, metrics=config.metrics_share if method.shares else 0.0)
    rounds = DEFAULT_ROUNDS if asked.rounds is None else asked.rounds
    if isinstance(method, ExactAlgorithm):
        rounds = method.releases
        asked = replace(asked, rounds=rounds, clip=1.0)
    views = 2 if method.personal and method.shows_model else 1
    values = views * len(metric_bounds(data.task, data.outputs, asked.loss_bound))
    # Clients of an exact algorithm have models after the last release only.
    times = 1 if method.exact else evaluations(rounds, config.evaluate_every)
    times = times if config.evaluate_every else 0
    plan, metrics = with_metrics(asked, data.m, times, values)
    if config.patience is not None and metrics is None:
        raise PmtlError(
            "Stopping early needs metrics that pass the gate, and this run has none: it shares "
            "nothing, or it is not private. Leave patience out."
        )
    return plan, metrics


def settle(
    method: Algorithm, config: TrainConfig, data: FederatedData, model: FlatModel
) -> Algorithm:
    """The algorithm with the settings that follow from public numbers: clients, sizes, budget."""
    known = data.bounds or Bounds()
    sizes = sizes_of(
        model,
        data.input_shape,
        data.task,
        data.outputs,
        bounded=bool(known.features),
        target_range=known.target,
        public_start=config.init is not None,
    )
    return resolve_algorithm(method, config.privacy, data.m, sizes)


def default_algorithm(config: TrainConfig, data: FederatedData, model: FlatModel) -> str:
    """What `algorithm=auto` means for this run."""
    linear = last_layer(model, data.input_shape) is not None
    return auto_algorithm(config.privacy, config.local, config.share, linear)


def wants_scaling(
    method: Algorithm, data: FederatedData, model: FlatModel, public_start: bool
) -> bool:
    """Whether the clients should scale their features first: for tables of numbers, wherever they
    are: that depends on how many rows the clients have.

    A network with a public start, or one that looks rows up, reads its features as they are.
    """
    table = isinstance(data.x, np.ndarray)
    as_they_are = public_start or model.traits.looks_up or len(data.input_shape) > 1
    network = isinstance(method, ExactAlgorithm) and method.uses_start and not as_they_are
    return (
        method.exact
        and not data.is_scaled
        and (type(model.module) is Linear or network)
        and table
        and data.x.dtype != np.uint8
    )


def warn_of_start(method: Algorithm, model: FlatModel, start: Iterable[str]) -> list[str]:
    """A sentence if the algorithm does not begin with trained weights that the start has."""
    given = set(start)
    names = [part.name for part in model.layout.parameters if part.name in given]
    if not isinstance(method, ExactAlgorithm) or method.begins_at_start or not names:
        return []
    return [
        f"The algorithm {method.name!r} computes {' and '.join(names)} itself and ignores the "
        "start's values of them: it uses only frozen parts of a start. Name another algorithm "
        "(pmtl, ditto, fedavg) to begin with these weights."
    ]


def with_privacy_defaults(
    config: TrainConfig, plan: PrivacyPlan, metrics: PrivacyPlan | None
) -> TrainConfig:
    """The configuration with all defaults about privacy filled in, for the run's folder."""
    asked = config.privacy
    epsilon = DEFAULT_EPSILON if asked.epsilon is None and asked.noise is None else asked.epsilon
    hardened = asked.hardened
    if hardened is None:
        hardened = config.mode == "production" and plan.private
    return replace(
        config,
        privacy=replace(
            asked,
            epsilon=epsilon,
            delta=plan.delta,
            sampling=plan.sampling,
            cohort=plan.cohort,
            hardened=hardened,
            metrics=config.metrics_share if metrics is not None else asked.metrics,
        ),
    )


def warnings_of(simulation: Simulation, metrics: PrivacyPlan | None, secret: bool) -> list[str]:
    """Warnings before anything is spent. In production they depend only on public numbers (clients,
    plan, parameters), and not on rows."""
    data, plan, method = simulation.data, simulation.plan, simulation.algorithm
    about_data = public_warnings(data) if secret else describe(data, not method.exact)["warnings"]
    sentences: list[str | None] = [*about_data]
    if method.shares:
        smallest = float(simulation.server.billboard.members.min() / data.m)
        sentences += [
            warn_of_delta(plan),
            warn_of_empty_cohorts(plan),
            warn_of_noisy_metrics(metrics),
            None
            if method.exact  # It shares less instead, and reports that.
            else warn_if_noise_exceeds_signal(
                plan, method.billboard_size(simulation.model.layout), smallest
            ),
            method.warning(plan.clients, plan.cohort, plan.rounds),
        ]
    return [sentence for sentence in sentences if sentence]


def facts_of(
    config: TrainConfig,
    data: FederatedData,
    model: FlatModel,
    algorithm: Algorithm,
    billboard: Billboard,
    plan: PrivacyPlan,
    metrics: PrivacyPlan | None,
    key: bytes,
    **more: Any,
) -> RunFacts:
    """What is known of a new run. The digest of the data is made with `key`; `more` are facts that
    do not follow from the others."""
    facts = RunFacts(
        mode=config.mode,
        ledger=config.ledger,
        data=config.data,
        model=config.model,
        plugin_folder=str(Path.cwd()) if _has_own_modules(config, plan) else None,
        algorithm=config.algorithm,
        config_digest=config.digest(),
        seed=config.seed,
        metric=config.metric,
        shares=algorithm.shares,
        personal=algorithm.personal,
        relations=algorithm.relations,
        task=data.task,
        outputs=data.outputs,
        input_shape=tuple(data.input_shape),
        labels=None if data.labels is None else tuple(data.labels),
        feature_names=None if data.feature_names is None else tuple(data.feature_names),
        text=None if data.text is None else asdict(data.text),
        releases=algorithm.in_words if isinstance(algorithm, ExactAlgorithm) else None,
        scaled=data.is_scaled,
        schema=None if data.schema is None else data.schema.to_dict(),
        bounds=None if data.bounds is None else data.bounds.to_dict(),
        shows_model=algorithm.shows_model,
        disclosed=tuple(data.disclosed),
        pixels=bool(data.x.dtype == np.uint8),
        parameters=model.size,
        frozen=config.frozen,
        share=named(config.share),
        shared_numbers=None if config.share is None else algorithm.billboard_size(model.layout),
        plan=plan,
        metrics_plan=metrics,
        hardened=bool(config.privacy.hardened),
        fingerprint=fingerprint_of(data, key),
        clients=tuple(data.clients),
        blocks=tuple(billboard.blocks.tolist()),
        board=billboard.digest(),
        **more,
    )
    if facts.plugin_folder is None:
        return facts
    return replace(facts, code_signature=signature(signed_text(facts)))


def _has_own_modules(config: TrainConfig, plan: PrivacyPlan) -> bool:
    """Whether the run names anything as `package.module:Name`."""
    names = (config.model, config.algorithm, plan.sampling, *(config.metric or "").split("+"))
    return bool(named_code(names, config.data))


@contextmanager
def prepare(
    config: TrainConfig,
    data: FederatedData,
    model: FlatModel,
    method: Algorithm,
    run: str,
    plan: PrivacyPlan,
    metrics: PrivacyPlan | None,
    team: Team,
) -> Iterator[tuple[Simulation, Budget | None]]:
    """The simulation of a run, and its account with its ledger, if it has a ledger and shares
    anything. In a team, only the leader has the account."""
    with ExitStack() as stack:
        budget = None
        if config.ledger is not None and method.shares and team.leader:
            ledger = stack.enter_context(Ledger.open(config.ledger, data.clients))
            budget = Budget(ledger, run, plan, metrics, config.mode == "experiment")
            budget.refuse_unaffordable()
        if isinstance(method, ExactAlgorithm):
            method = method.with_noise(plan.noise_std)
        simulation = simulate(
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
            simulation.prepare_metrics(
                metrics, config.privacy.loss_bound, charge, config.evaluate_every
            )
        if config.mode == "production":
            simulation.dry_run()
        yield simulation, budget


def _charge(budget: Budget | None, team: Team, kind: str) -> Callable[[int], None] | None:
    """The function that charges a release; only the leader of a team makes releases."""
    if budget is not None:
        return partial(budget.charge, kind=kind)
    return None if team.leader else _refuse


def _refuse(round: int) -> None:
    raise PmtlError("Only the first process of a team publishes.")


def refuse_differences(
    team: Team,
    data: FederatedData,
    config: TrainConfig,
    plans: Sequence[PrivacyPlan | None],
    model: FlatModel,
    method: Algorithm,
    run: str = "",
) -> None:
    """Refuse, in every process of the team, to start if the processes differ.

    Data, start and algorithm are compared by content and not by path. The ledger is not compared:
    only the leader uses it. `plans` are the privacy plans; `run` is the run to resume.
    """
    if team.size == 1:
        return
    ledger = None if config.ledger is None else ""
    settings = replace(
        config, data="", algorithm="", ledger=ledger, init=None, share=None
    ).to_toml()
    promised = [None if plan is None else plan.to_dict() for plan in plans]
    software = versions()
    differing = team.differing(
        {
            "the data": data.fingerprint(),
            "the settings": to_json([settings, promised, run]),
            "the model": code_digest(model.module, model.start()),
            "the algorithm": code_digest(method, _billboard_description(method, data)),
            "the sampling scheme": code_digest(_schemes(plans)),
            "the version of pmtl": f"{software.pop('pmtl')} {_sources()}",
            "the version of Python or torch": to_json(software),
        }
    )
    if differing:
        raise PmtlError(
            f"The processes of this job differ in {' and in '.join(differing)}. Nothing was "
            "trained, charged or written. torchrun is for the machines of one owner with the same "
            "files, and not for a federation between organisations: start every process with the "
            "same data, settings and installation."
        )


def _schemes(plans: Sequence[PrivacyPlan | None]) -> list[SamplingScheme]:
    return [plan.with_code().scheme for plan in plans if plan is not None]


def _billboard_description(method: Algorithm, data: FederatedData) -> Any:
    """The description of the algorithm's billboard; None if the algorithm is for other clients."""
    try:
        return method.billboard(data.clients).description()
    except PmtlError:
        return None


@cache
def _sources() -> str:
    """A digest of the installed package's source files."""
    state, package = blake2b(digest_size=16), Path(__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        for content in (str(file.relative_to(package)).encode(), file.read_bytes()):
            state.update(len(content).to_bytes(8, "little") + content)
    return state.hexdigest()
