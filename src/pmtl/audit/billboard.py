"""The billboard game: everybody else's models, against one client's data.

Billboard privacy promises that the personal models of all clients *except k*, and everything
published, hardly depend on k's data. The adversary holds just that, the others' personal models
after training and every shared model, and tells which of two data sets client k had. The runs are
real ones of a small federation, in which k's targets are so large that its upload is clipped in
every round. Fisher's discriminant learns on half of the runs how to read what the adversary sees
and is measured on the other half.

Hundreds of runs fit into one (`replicas.py`). Such a run cannot show a leak between clients outside
the billboard, which might cross into another block, so the newcomers' scenario plays its runs one
by one. So does the one in which k may be the whole cohort: what the loop does with the size of a
cohort shows where cohorts are small.

The others know their own coins, which say nothing about k's. An adversary may therefore choose by
them which runs to look at, or who takes part: the claim holds for every such choice. In production
nobody can choose, and such scenarios are played as they come or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

import numpy as np
from numpy.typing import NDArray

from pmtl.audit.estimators import Floats, discriminant
from pmtl.audit.replicas import Replicas, rows_of_clients, side_by_side
from pmtl.audit.result import (
    AuditResult,
    AuditSetup,
    Finding,
    calibrated,
    gaussian_curve,
    has_blocks,
    seed_of,
)
from pmtl.data import FederatedData
from pmtl.privacy.plan import PrivacyPlan
from pmtl.streams import name_keys

GAME = "billboard"

#: More clients would only make the runs longer: what counts is the share that is drawn.
_MOST_CLIENTS = 6
#: How newcomers are looked for, and k alone (m, q and the draw): nearly everybody takes part, so k
#: mostly does, and one client is left to join later.
_CROWD = (12, 11, None)
#: So many times the crowd are asked for clients that stay away.
_ASKED = 40
#: One row is (1, ½); with the model's offset its squared norm is 2¼, so that a step of 0.05 takes
#: away a fifth of the error, and the upload stays far longer than γ.
_ROW, _LR = (1.0, 0.5), 0.05


@dataclass(frozen=True)
class Scenario:
    """The data of client k under D and under D′: so many rows with this target."""

    name: str
    first: float
    second: float
    rows: int = 1
    #: Whether cohorts are drawn as the setup asks; otherwise everybody takes part.
    sampled: bool = False
    newcomers: bool = False  #: one by one, with coins after which a client joins later
    alone: bool = False  #: one by one, among clients whose coins keep all of them but k away


SCENARIOS = (
    Scenario("opposite targets, cohorts as asked", 1e3, -1e3, sampled=True),
    Scenario("opposite targets", 1e3, -1e3),
    Scenario("opposite targets, 50 times the rows", 1e3, -1e3, rows=50),
    Scenario("a gradient that overflows", 3e38, -1e3),
    Scenario("newcomers after k", 1e3, -1e3, newcomers=True),
    Scenario("nobody but k", 1e3, -1e3, alone=True),
)


def billboard(setup: AuditSetup) -> AuditResult:
    """Play all scenarios of the billboard."""
    clients = min(setup.clients, _MOST_CLIENTS)
    # Where everybody takes part anyway, the first two scenarios are one.
    asked = setup.plan(setup.rounds, clients=clients)
    scenarios: tuple[Scenario, ...] = SCENARIOS[1:] if gaussian_curve(asked) else SCENARIOS
    if setup.noise_seed is None:
        scenarios = tuple(scenario for scenario in scenarios if not scenario.alone)
    findings = []
    for scenario in scenarios:
        plan = setup.plan(setup.rounds, clients=clients, everybody=not scenario.sampled)
        if scenario.newcomers or scenario.alone:
            rounds = 2 if scenario.newcomers else 1
            plan = calibrated(setup.epsilon, *_CROWD, setup.clip, rounds, plan.delta)
        bits = np.arange(setup.trials // 4) % 2 == 1
        seed = seed_of(setup.noise_seed, GAME + scenario.name)
        apart = scenario.newcomers or scenario.alone or not has_blocks(plan)
        run = _one_by_one if apart else play
        scores = discriminant(run(plan, scenario, bits, seed, setup.on_grid), bits)
        findings.append(Finding.of(scenario.name, setup, plan, scores, bits, len(scenarios)))
    return AuditResult.of(
        GAME, setup, findings, setup.claimed_delta, clients=clients, rounds=setup.rounds
    )


def play(
    plan: PrivacyPlan,
    scenario: Scenario,
    bits: NDArray[np.bool_],
    seed: int | None,
    hardened: bool = False,
    names: tuple[str, ...] | None = None,
) -> Floats:
    """What the adversary sees, [trials, features]: one run for all trials, one block for each."""
    trials, m = len(bits), plan.clients
    data = _data(scenario, tuple(bits.tolist()), names or _names(trials, m))
    federation = side_by_side(data, Replicas(lam=0.5, size=m), plan, _LR, seed, hardened)
    progress = federation.start()
    published = []
    for _ in federation.rounds(progress):
        published.append(progress.shared.double().numpy())
    models = federation.predictors(progress, np.arange(m * trials, dtype=np.int64))
    others = models.double().numpy().reshape(trials, m, -1)[:, :-1]
    return np.concatenate([others.reshape(trials, -1), *published], axis=1)


def _one_by_one(
    plan: PrivacyPlan,
    scenario: Scenario,
    bits: NDArray[np.bool_],
    seed: int | None,
    hardened: bool,
) -> Floats:
    chances = _chances(plan, scenario, seed)
    return np.concatenate(
        [
            play(plan, scenario, np.array([bit]), own, hardened, names)
            for bit, (own, names) in zip(bits, chances, strict=False)
        ]
    )


def _chances(
    plan: PrivacyPlan, scenario: Scenario, seed: int | None
) -> Iterator[tuple[int | None, tuple[str, ...]]]:
    """Seeds of runs and the names of their clients, chosen as the scenario asks."""
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
    sampler = plan.sampler(seed, name_keys(_names(1, plan.clients)))
    first, later = (set(sampler.draw(round).tolist()) for round in range(2))
    return bool(later - first - {plan.clients - 1})


def _absent(plan: PrivacyPlan, seed: int) -> tuple[str, ...] | None:
    """Clients of whom all but the last, k, stay away in the first round: picked by their coins from
    a crowd many times as large, which draws at the same rate."""
    crowd = replace(plan, clients=_ASKED * plan.clients, cohort=_ASKED * plan.cohort)
    names = _names(_ASKED, plan.clients)
    drawn = crowd.sampler(seed, _keys(names)).draw(0)
    away = np.setdiff1d(np.arange(len(names)), drawn)[: plan.clients - 1]
    if len(away) < plan.clients - 1:
        return None
    return (*(names[client] for client in away), "k")


@lru_cache(maxsize=64)
def _names(trials: int, size: int) -> tuple[str, ...]:
    return tuple(f"{trial:06d}/{k:03d}" for trial in range(trials) for k in range(size))


@lru_cache(maxsize=4)
def _keys(names: tuple[str, ...]) -> NDArray[np.uint64]:
    return name_keys(names)


@lru_cache(maxsize=4)
def _data(scenario: Scenario, bits: tuple[bool, ...], names: tuple[str, ...]) -> FederatedData:
    """Federations side by side; client k is the last of each and owns the rows under attack."""
    size = len(names) // len(bits)
    counts = np.tile([1] * (size - 1) + [scenario.rows], len(bits))
    targets = np.zeros((len(bits), size), dtype=np.float32)
    targets[:, -1] = np.where(bits, scenario.first, scenario.second)
    y = np.repeat(targets.reshape(-1), counts)
    x = np.tile(np.array(_ROW, dtype=np.float32), (len(y), 1))
    return rows_of_clients(x, y, np.repeat(names, counts))
