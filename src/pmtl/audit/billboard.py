"""The billboard game: everybody else's models, against one client's data.

Billboard privacy promises that the personal models of all clients *except k*, and everything
published, hardly depend on k's data. So the adversary holds just that: the others' personal models
after training and every shared model. It has to tell which of two data sets client k had. The runs
are real ones, of a small federation in which k's targets are so large that its upload is clipped
in every round. What the adversary sees is one long vector; Fisher's discriminant learns on half of
the runs how to read it and is measured on the other half.

Hundreds of runs fit into one: the billboard may have several blocks (clusters that share a model),
and a federation of R blocks is R federations with separate models and noise, through the same loop
and the same gate. Block b's divisor is its own expected cohort and its noise is scaled by it, so
σ/R in the large plan is σ in each block. What such a run cannot show is a leak between clients
outside the billboard, which might then cross into another block; the newcomers' scenario
therefore plays its runs one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pmtl.algorithms import PMTL
from pmtl.audit.estimators import Floats, discriminant, threshold_bound
from pmtl.audit.result import (
    AuditResult,
    AuditSetup,
    Finding,
    calibrated,
    gaussian_curve,
    share,
)
from pmtl.data import FederatedData
from pmtl.models import FlatModel, build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import Federation, LocalTraining
from pmtl.streams import name_keys, subseed

GAME = "billboard"

#: More clients would only make the runs longer: what counts is the share that is drawn.
_MOST_CLIENTS = 6
#: How newcomers are looked for (m, q and the draw, for two rounds): nearly everybody takes part, so
#: k mostly does, and somebody is left to join later.
_CROWD = (12, 11, "poisson")
#: One row is (1, ½); with the model's offset its squared norm is 2¼, so that a step of 0.05 takes
#: away a fifth of the error, and the upload stays far longer than γ.
_ROW = (1.0, 0.5)
_LOCAL = LocalTraining(steps=1, batch=0, lr=0.05)


@dataclass(frozen=True)
class Scenario:
    """The data of client k under D and under D′: so many rows with this target."""

    name: str
    first: float
    second: float
    rows: int = 1
    #: Whether cohorts are drawn as the setup asks; otherwise everybody takes part.
    sampled: bool = False
    #: Played one by one, with coins after which somebody joins who was not there before.
    newcomers: bool = False


SCENARIOS = (
    Scenario("opposite targets, cohorts as asked", 1e3, -1e3, sampled=True),
    Scenario("opposite targets", 1e3, -1e3),
    Scenario("opposite targets, 50 times the rows", 1e3, -1e3, rows=50),
    Scenario("a gradient that overflows", 3e38, -1e3),
    Scenario("newcomers after k", 1e3, -1e3, newcomers=True),
)


@dataclass(frozen=True)
class Replicas(PMTL):
    """PMTL in federations of `size` clients side by side, each with its own block."""

    size: int = 1

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        return np.arange(len(clients), dtype=np.int64) // self.size


def billboard(setup: AuditSetup) -> AuditResult:
    """Play all scenarios of the billboard."""
    clients = min(setup.clients, _MOST_CLIENTS)
    # Where everybody takes part anyway, the first two scenarios are one.
    asked = setup.plan(setup.rounds, clients=clients)
    scenarios = SCENARIOS[1:] if gaussian_curve(asked) else SCENARIOS
    findings = []
    for scenario in scenarios:
        plan = setup.plan(setup.rounds, clients=clients, everybody=not scenario.sampled)
        trials = setup.trials // 4
        if scenario.newcomers:
            plan = calibrated(setup.epsilon, *_CROWD, setup.clip, 2, plan.delta)
        bits = np.arange(trials) % 2 == 1
        seed = subseed(setup.seed, GAME + scenario.name)
        # Blocks cannot have a fixed number of clients drawn from each.
        apart = scenario.newcomers or plan.sampling == "fixed"
        run = _one_by_one if apart else play
        views = run(plan, scenario, bits, seed)
        bound = threshold_bound(
            discriminant(views, bits),
            bits,
            plan.delta,
            share(setup.confidence, len(scenarios)),
            curve=gaussian_curve(plan),
        )
        findings.append(Finding.of(scenario.name, trials, bound, plan))
    return AuditResult.of(
        GAME, setup, findings, setup.claimed_delta, clients=clients, rounds=setup.rounds
    )


def play(plan: PrivacyPlan, scenario: Scenario, bits: NDArray[np.bool_], seed: int) -> Floats:
    """What the adversary sees, [trials, features]: one run for all trials, one block for each."""
    trials, m = len(bits), plan.clients
    whole = replace(
        plan,
        clients=m * trials,
        cohort=plan.cohort * trials,
        noise_std=plan.noise_std / trials,
    )
    federation = _federation(whole, scenario, tuple(bits.tolist()), m, seed)
    progress = federation.start()
    published = []
    for _ in federation.rounds(progress):
        published.append(progress.shared.double().numpy())
    models = federation.predictors(progress, np.arange(m * trials, dtype=np.int64))
    others = models.double().numpy().reshape(trials, m, -1)[:, :-1]
    return np.concatenate([others.reshape(trials, -1), *published], axis=1)


def _one_by_one(
    plan: PrivacyPlan, scenario: Scenario, bits: NDArray[np.bool_], seed: int
) -> Floats:
    seeds = _seeds(plan, scenario, seed)
    return np.concatenate([play(plan, scenario, np.array([bit]), next(seeds)) for bit in bits])


def _seeds(plan: PrivacyPlan, scenario: Scenario, seed: int) -> Iterator[int]:
    """Seeds of runs; for newcomers, those with which another client than k joins late.

    The others know their own coins, which say nothing about k's: choosing by them is no help that
    the adversary does not have, and the claim holds for every such choice.
    """
    trial = 0
    while True:
        own = subseed(seed, "trial", trial)
        trial += 1
        if not scenario.newcomers or _somebody_joins(plan, own):
            yield own


def _somebody_joins(plan: PrivacyPlan, seed: int) -> bool:
    sampler = plan.sampler(seed, name_keys(_names(1, plan.clients)))
    first, later = (set(sampler.draw(round).tolist()) for round in range(2))
    return bool(later - first - {plan.clients - 1})


def _federation(
    plan: PrivacyPlan, scenario: Scenario, bits: tuple[bool, ...], size: int, seed: int
) -> Federation:
    data, model = _data(scenario, bits, size)
    return Federation(data, model, Replicas(lam=0.5, size=size), plan, _LOCAL, seed)


@lru_cache(maxsize=64)
def _names(trials: int, size: int) -> tuple[str, ...]:
    return tuple(f"{trial:06d}/{k:03d}" for trial in range(trials) for k in range(size))


@lru_cache(maxsize=4)
def _data(scenario: Scenario, bits: tuple[bool, ...], size: int) -> tuple[FederatedData, FlatModel]:
    """Federations side by side; client k is the last of each and owns the rows under attack."""
    counts = np.tile([1] * (size - 1) + [scenario.rows], len(bits))
    names = _names(len(bits), size)
    targets = np.zeros((len(bits), size), dtype=np.float32)
    targets[:, -1] = np.where(bits, scenario.first, scenario.second)
    y = np.repeat(targets.reshape(-1), counts)
    x = np.tile(np.array(_ROW, dtype=np.float32), (len(y), 1))
    split = np.full(len(y), "train")
    data = FederatedData.from_arrays(
        x, y, np.repeat(names, counts), split, task="regression", validation=0.0
    )
    return data, build_model("linear", data.input_shape, data.outputs, data.task, 0)
