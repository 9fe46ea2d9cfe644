"""The default game: a whole run of a default method, attacked in all of its releases.

Client k has one of two very different data sets. The adversary knows
everything else: the other clients' rows, and every release. From these it computes what all clients
upload in each round, for either data set of k, and compares each release with both. The sum over
all rounds is the most powerful test (Neyman & Pearson 1933) between the two.

All kinds of releases are attacked: size and level of the target, shared weights, and the vote. Too
little noise and uploads that are not clipped are found. One release that no plan counts raises ε by
less than this can prove; `tests/mutants.toml` has that mistake.

One run is many federations side by side (`replicas.py`), each with its own coin for k, and passes
through the real gate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from pmtl.algorithms import Anchored, ExactAlgorithm, Pooling
from pmtl.audit.estimators import Bits, Floats
from pmtl.audit.gate import source_of
from pmtl.audit.replicas import in_blocks
from pmtl.audit.result import AuditResult, Finding, seed_of
from pmtl.audit.setup import AuditSetup
from pmtl.models import FlatModel, Task, build_model
from pmtl.models.linear.solve import ClientRows
from pmtl.privacy.accounting.gaussian import mu_for
from pmtl.privacy.clipping import clip
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release, noise_of
from pmtl.server.resolve import sizes_of

GAME = "default"

#: Columns of a row, rows of an ordinary client and of client k, and clients of a federation.
_COLUMNS, _ROWS, _MANY, _MOST_CLIENTS = 2, 6, 20, 5


@dataclass(frozen=True)
class Scenario:
    """A method with its model and task."""

    name: str
    method: ExactAlgorithm
    model: str
    task: Task
    part: float  #: the share of the game's trials; networks take longer
    bounds: tuple[float, float] | None = None  #: public bounds of a numeric target


SCENARIOS = (
    Scenario("pooling, given bounds", Pooling(), "linear", "regression", 1.0, (-1.0, 1.0)),
    Scenario("pooling, numbers", Pooling(target="release"), "linear", "regression", 0.25),
    Scenario("pooling, classes", Pooling(), "logistic", "classification", 0.1),
    Scenario("anchored", Anchored(), "mlp:hidden=2", "classification", 0.05),
)


def default_method(setup: AuditSetup) -> AuditResult:
    """Play the default methods."""
    findings = []
    for scenario in SCENARIOS:
        plan, method, model = planned(setup, scenario)
        bits = np.arange(int(setup.trials * scenario.part)) % 2 == 1
        seed = seed_of(setup.noise_seed, GAME + scenario.name)
        scores = play(plan, method, _rows(scenario, method, model), bits, seed, setup.on_grid)
        findings.append(Finding.of(scenario.name, setup, plan, scores, bits, len(SCENARIOS)))
    return AuditResult.of(GAME, setup, findings, setup.claimed_delta)


def planned(setup: AuditSetup, scenario: Scenario) -> tuple[PrivacyPlan, ExactAlgorithm, FlatModel]:
    """The plan of the method, the method with everything decided, and its model."""
    m = min(setup.clients, _MOST_CLIENTS)
    model = build_model(scenario.model, (_COLUMNS,), _outputs(scenario), scenario.task, 0)
    sizes = sizes_of(
        model, (_COLUMNS,), scenario.task, _outputs(scenario), target_range=scenario.bounds
    )
    method = scenario.method.resolve(sizes, m * mu_for(setup.epsilon, setup.claimed_delta))
    claim = replace(setup, clip=1.0)  # Uploads of these methods have norm 1.
    plan = claim.plan(method.releases, clients=m, full_participation=True)
    return plan, method.with_noise(plan.noise_std), model


def play(
    plan: PrivacyPlan,
    method: ExactAlgorithm,
    rows: tuple[ClientRows, ClientRows, ClientRows],
    bits: Bits,
    seed: int | None,
    hardened: bool = False,
) -> Floats:
    """One score for every trial; a true bit plays D. `rows` are three: the rows of the other
    clients, the rows of client k under D, and its rows under D′."""
    trials, m = len(bits), plan.clients
    others, first, second = (_repeat_rows(part, trials, m) for part in rows)
    blocks = np.arange(trials * m) // m
    k = np.arange(m - 1, trials * m, m)
    rest = np.setdiff1d(np.arange(trials * m), k)
    whole = in_blocks(plan, trials)
    gate = Release(whole, blocks, noise_of(whole, source_of(seed), hardened))
    billboard = method.billboard_start(_start(first)).expand(trials, -1)
    memory = method.server_start(billboard)
    coin, scores = torch.from_numpy(bits).unsqueeze(1), torch.zeros(trials, dtype=torch.float64)
    for round in range(plan.rounds):
        if not method.repeats(round):
            theirs = method.compute_uploads(others, billboard.repeat_interleave(m - 1, 0), round)
            mine = [method.compute_uploads(one, billboard, round) for one in (first, second)]
        tally = gate.open(round, billboard, theirs.shape[1])
        gate.add(tally, rest, theirs)
        gate.add(tally, k, torch.where(coin, mine[0], mine[1]))
        released = gate.publish(tally, torch.zeros(trials, theirs.shape[1], dtype=torch.float64))
        known = clip(theirs, plan.clip_norm).view(trials, m - 1, -1).sum(1)
        one, other = (clip(upload, plan.clip_norm) for upload in mine)
        left = m * released - known - (one + other) / 2
        scores += (left * (one - other)).sum(1)
        after, memory = method.server_step(billboard.double(), released, memory)
        billboard = after.to(billboard.dtype)
    return np.asarray(np.nan_to_num(scores.numpy()), dtype=np.float64)


def _rows(
    scenario: Scenario, method: ExactAlgorithm, model: FlatModel
) -> tuple[ClientRows, ClientRows, ClientRows]:
    """The rows of ordinary clients, and two extreme data sets of client k."""
    random = torch.Generator().manual_seed(0)

    def made(clients: int, rows: int, slope: float, level: float) -> ClientRows:
        x = torch.randn(clients, rows, _COLUMNS, generator=random)
        y = level + slope * x[..., 0] + torch.randn(clients, rows, generator=random)
        y = (y > level).long() if scenario.task == "classification" else y
        real = torch.ones(clients, rows, dtype=torch.bool)
        reader = method.reader(model, (_COLUMNS,))
        return reader.rows(scenario.task, _outputs(scenario), x, y, real)

    return (
        made(_MOST_CLIENTS - 1, _ROWS, 1.0, 0.0),
        made(1, _MANY, 500.0, 2000.0),
        made(1, _MANY, -20.0, 0.0),
    )


def _repeat_rows(rows: ClientRows, trials: int, m: int) -> ClientRows:
    """The rows of one federation's clients, repeated for all trials."""
    few = min(len(rows.x), m - 1)
    return replace(
        rows,
        x=rows.x[:few].repeat(trials, *[1] * (rows.x.dim() - 1)),
        y=rows.y[:few].repeat(trials, 1, 1),
        mask=rows.mask[:few].repeat(trials, 1),
    )


def _start(rows: ClientRows) -> Tensor:
    """The common start of a network; a linear method begins with zeros."""
    network = getattr(rows, "network", None)
    return torch.zeros(1, dtype=torch.float64) if network is None else cast(Tensor, network.start)


def _outputs(scenario: Scenario) -> int:
    return 1 if scenario.task == "regression" else 2
