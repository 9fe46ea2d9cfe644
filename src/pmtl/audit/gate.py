"""The one-round game: what a release of the gate reveals.

The adversary knows everything except one client's upload, which is +γu or −γu for a fixed direction
u (the worst pair); all others upload zero. It projects the release on u. This is the worst-case
canary of Nasr et al. (USENIX Security 2021 and 2023), against which the analysis of the Gaussian
mechanism is tight: on a correct gate the bound is close to the claim.

Every trial uses the real `Release`, ordinary or hardened, and the plan's own sampler. The scenarios
are the mistakes of a gate that we know; all of them are always played.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pmtl.audit.estimators import Bits, Floats, threshold_bound
from pmtl.audit.result import AuditResult, Finding, gaussian_curve, seed_of
from pmtl.audit.setup import AuditSetup
from pmtl.privacy.noise import Source, seeded_source, system_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release, noise_of
from pmtl.privacy.sampler import Sampler
from pmtl.streams import name_keys

GAME = "one-round"

#: Coordinates of a release.
_SIZE = 8
#: The client under attack.
_VICTIM = 0


@dataclass(frozen=True)
class Scenario:
    """A neighbouring pair: the client's upload under D and under D′, in units of γu."""

    name: str
    first: float  #: the upload under D
    second: float  #: the upload under D′
    #: Uploads and score change their sign from round to round, so that repeated noise cancels out.
    rounds: int = 1
    times: int = 1  #: how often the client sends its upload within a round
    alone: bool = False  #: whether all others drop out
    sampled: bool = False  #: whether cohorts are drawn as the setup says; otherwise all take part
    part: float = 0.15  #: the share of the game's trials; obvious mistakes need few


SCENARIOS = (
    Scenario("opposite uploads, cohorts as asked", 1, -1, sampled=True, part=1),
    Scenario("opposite uploads", 1, -1, part=1),
    Scenario("uploads of norm 100γ", 100, -100),
    Scenario("NaN against −γu", math.nan, -1),
    Scenario("infinite against −γu", math.inf, -1),
    Scenario("sent ten times", 1, -1, times=10),
    Scenario("all others drop out", 1, -1, alone=True),
    Scenario("signs that alternate over two rounds", 1, -1, rounds=2),
)


def one_round(setup: AuditSetup) -> AuditResult:
    """Play all scenarios of the gate."""
    # With full participation, the first two scenarios are the same.
    scenarios = SCENARIOS[1:] if gaussian_curve(setup.plan(1)) else SCENARIOS
    findings = []
    for scenario in scenarios:
        plan = setup.plan(scenario.rounds, full_participation=not scenario.sampled)
        bits = np.arange(int(setup.trials * scenario.part)) % 2 == 1
        scores = play(plan, scenario, bits, setup.noise_seed, setup.on_grid)
        findings.append(Finding.of(scenario.name, setup, plan, scores, bits, len(scenarios)))
        if scenario is scenarios[0]:
            # The bound without a Gaussian curve is reported, but not part of the verdict.
            plain = threshold_bound(scores, bits, plan.delta, setup.confidence, curve=False)
    delta = setup.claimed_delta
    return AuditResult.of(GAME, setup, findings, delta, threshold_epsilon=plain.epsilon)


def play(
    plan: PrivacyPlan, scenario: Scenario, bits: Bits, seed: int | None, hardened: bool = False
) -> Floats:
    """One score for every trial; a true bit plays D. Without a seed, coins and noise come from the
    operating system."""
    keys = name_keys(tuple(f"client-{k}" for k in range(plan.clients)))
    direction = torch.ones(_SIZE, dtype=torch.float64) / math.sqrt(_SIZE)
    scores = np.empty(len(bits))
    for trial, bit in enumerate(bits.tolist()):
        own = seed_of(seed, GAME + scenario.name, trial)
        noise = noise_of(plan, source_of(own), hardened)
        gate = Release(plan, np.zeros(plan.clients, dtype=np.int64), noise)
        size = scenario.first if bit else scenario.second
        upload = size * plan.clip_norm * direction
        scores[trial] = _trial(gate, plan.sampler(own, keys), scenario, upload)
    return scores


def source_of(seed: int | None, release: str = "") -> Source:
    """Where noise comes from: a seed, or without one the operating system."""
    return system_source if seed is None else seeded_source(seed, release)


def _trial(gate: Release, sampler: Sampler, scenario: Scenario, upload: Tensor) -> float:
    plan = gate.plan
    shared = torch.zeros((1, _SIZE), dtype=torch.float64)
    score = 0.0
    for round in range(plan.rounds):
        sign = (-1) ** round
        cohort = sampler.draw(round)
        drawn = bool((cohort == _VICTIM).any())
        if scenario.alone:
            cohort = cohort[cohort == _VICTIM]
        uploads = torch.zeros((len(cohort), _SIZE), dtype=torch.float64)
        uploads[torch.from_numpy(cohort == _VICTIM)] = sign * upload
        tally = gate.open(round, shared)
        for _ in range(scenario.times):
            gate.add(tally, cohort, uploads)
        after = gate.publish(tally, shared)
        if drawn or plan.scheme.coins_are_secret:
            # The other clients know a draw of fixed size, but not a client's own coin.
            score += sign * float((after - shared).sum()) / math.sqrt(_SIZE)
        shared = after
    return score
