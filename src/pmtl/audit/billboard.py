"""The billboard game: all other clients' models, against one client's data.

Billboard privacy promises that the published models and the personal models of all clients *except
k* hardly depend on k's data. The adversary sees all of these and guesses which of two data sets
client k had. The runs are real, with targets of k so large that its upload is clipped in every
round. Fisher's discriminant is trained on half of the runs and measured on the other half.

Many runs are computed as blocks of one (`replicas.py`). A leak outside of the billboard might cross
into another block, so two scenarios run one by one. There the adversary may select runs and clients
by the other clients' coins, which are independent of k's. In production no selection is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.audit.estimators import Bits, Floats, discriminant
from pmtl.audit.replicas import Replicas, rows_of_clients, side_by_side
from pmtl.audit.result import AuditResult, Finding, gaussian_curve, has_blocks, seed_of
from pmtl.audit.setup import AuditSetup
from pmtl.data import FederatedData
from pmtl.privacy.plan import PrivacyPlan
from pmtl.streams import name_keys

GAME = "billboard"

#: More clients would only take longer: what matters is the share that is drawn.
_MOST_CLIENTS = 6
#: m, q and the sampling of scenarios that run one by one: nearly all clients take part, so k mostly
#: does, and one client is left to join later.
_ONE_BY_ONE_PLAN: dict[str, Any] = {"clients": 12, "cohort": 11, "sampling": None}
#: Absent clients are selected from 40 times as many candidates.
_CANDIDATES = 40
#: With the model's offset, the squared norm of the row (1, ½) is 2¼. A step of 0.05 removes a fifth
#: of the error, so that the upload stays far longer than γ.
_ROW, _LR = (1.0, 0.5), 0.05


@dataclass(frozen=True)
class Scenario:
    """The data of client k under D and under D′: `rows` rows with this target."""

    name: str
    first: float  #: the target under D
    second: float  #: the target under D′
    rows: int = 1
    sampled: bool = False  #: whether cohorts are drawn as the setup says; otherwise all take part
    newcomers: bool = False  #: one run at a time; a client joins after round 0
    alone: bool = False  #: one run at a time; only k takes part in round 0


SCENARIOS = (
    Scenario("opposite targets, cohorts as asked", 1e3, -1e3, sampled=True),
    Scenario("opposite targets", 1e3, -1e3),
    Scenario("opposite targets, 50 times the rows", 1e3, -1e3, rows=50),
    Scenario("a gradient that overflows", 3e38, -1e3),
    Scenario("newcomers after k", 1e3, -1e3, newcomers=True),
    Scenario("only k takes part in round 0", 1e3, -1e3, alone=True),
)


def billboard(setup: AuditSetup) -> AuditResult:
    """Play all scenarios of the billboard."""
    clients = min(setup.clients, _MOST_CLIENTS)
    # With full participation, the first two scenarios are the same.
    asked = setup.plan(setup.rounds, clients=clients)
    scenarios: tuple[Scenario, ...] = SCENARIOS[1:] if gaussian_curve(asked) else SCENARIOS
    if setup.noise_seed is None:
        scenarios = tuple(scenario for scenario in scenarios if not scenario.alone)
    findings = []
    for scenario in scenarios:
        plan = setup.plan(setup.rounds, clients=clients, full_participation=not scenario.sampled)
        selected = scenario.newcomers or scenario.alone
        if selected:
            rounds = 2 if scenario.newcomers else 1
            plan = replace(setup, **_ONE_BY_ONE_PLAN).plan(rounds, delta=plan.delta)
        bits = np.arange(setup.trials // 4) % 2 == 1
        seed = seed_of(setup.noise_seed, GAME + scenario.name)
        run = play if has_blocks(plan) and not selected else _one_by_one
        scores = discriminant(run(plan, scenario, bits, seed, setup.on_grid), bits)
        findings.append(Finding.of(scenario.name, setup, plan, scores, bits, len(scenarios)))
    numbers = {"clients": clients, "rounds": setup.rounds}
    return AuditResult.of(GAME, setup, findings, setup.claimed_delta, **numbers)


def play(
    plan: PrivacyPlan,
    scenario: Scenario,
    bits: Bits,
    seed: int | None,
    hardened: bool = False,
    names: tuple[str, ...] | None = None,
) -> Floats:
    """What the adversary sees, [trials, features]: one run with a block for each trial."""
    trials, m = len(bits), plan.clients
    data = _data(scenario, tuple(bits.tolist()), names or _names(trials, m))
    run = side_by_side(data, Replicas(lam=0.5, size=m), plan, _LR, seed, hardened)
    state = run.start()
    published = [state.shared.double().numpy() for _ in run.rounds(state)]
    models = run.predictors(state, np.arange(m * trials, dtype=np.int64))
    others = models.double().numpy().reshape(trials, m, -1)[:, :-1]
    return np.concatenate([others.reshape(trials, -1), *published], axis=1)


def _one_by_one(
    plan: PrivacyPlan, scenario: Scenario, bits: Bits, seed: int | None, hardened: bool
) -> Floats:
    runs = _selected_runs(plan, scenario, seed)
    return np.concatenate(
        [
            play(plan, scenario, np.array([bit]), own, hardened, names)
            for bit, (own, names) in zip(bits, runs, strict=False)
        ]
    )


def _selected_runs(
    plan: PrivacyPlan, scenario: Scenario, seed: int | None
) -> Iterator[tuple[int | None, tuple[str, ...]]]:
    """Seeds of runs and the names of their clients, selected as the scenario says."""
    names = _names(1, plan.clients)
    for trial in count():
        own = seed_of(seed, "trial", trial)
        if own is None:
            yield own, names
        elif scenario.alone:
            if (absent := _absent(plan, own)) is not None:
                yield own, absent
        elif not scenario.newcomers or _a_client_joins(plan, own):
            yield own, names


def _a_client_joins(plan: PrivacyPlan, seed: int) -> bool:
    sampler = plan.sampler(seed, _keys(1, plan.clients))
    first, later = (set(sampler.draw(round).tolist()) for round in range(2))
    return bool(later - first - {plan.clients - 1})


def _absent(plan: PrivacyPlan, seed: int) -> tuple[str, ...] | None:
    """Names of clients that are not drawn in the first round, and k last. They are selected from
    many more clients, at the same sampling rate."""
    wider = replace(plan, clients=_CANDIDATES * plan.clients, cohort=_CANDIDATES * plan.cohort)
    names = _names(_CANDIDATES, plan.clients)
    drawn = wider.sampler(seed, _keys(_CANDIDATES, plan.clients)).draw(0)
    away = np.setdiff1d(np.arange(len(names)), drawn)[: plan.clients - 1]
    if len(away) < plan.clients - 1:
        return None
    return (*(names[client] for client in away), "k")


@lru_cache(maxsize=64)
def _names(trials: int, size: int) -> tuple[str, ...]:
    return tuple(f"{trial:06d}/{k:03d}" for trial in range(trials) for k in range(size))


@lru_cache(maxsize=8)
def _keys(trials: int, size: int) -> NDArray[np.uint64]:
    return name_keys(_names(trials, size))


@lru_cache(maxsize=4)
def _data(scenario: Scenario, bits: tuple[bool, ...], names: tuple[str, ...]) -> FederatedData:
    """Federations side by side; client k is the last of each."""
    size = len(names) // len(bits)
    counts = np.tile([1] * (size - 1) + [scenario.rows], len(bits))
    targets = np.zeros((len(bits), size), dtype=np.float32)
    targets[:, -1] = np.where(bits, scenario.first, scenario.second)
    y = np.repeat(targets.reshape(-1), counts)
    x = np.tile(np.array(_ROW, dtype=np.float32), (len(y), 1))
    return rows_of_clients(x, y, np.repeat(names, counts))
