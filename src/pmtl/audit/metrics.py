"""The metrics game: what released average metrics reveal.

Average metrics pass a gate of their own (`simulation/released_metrics.py`). The adversary knows the
values of all clients but one, whose values are all at one end of their public ranges or all at the
other. All clients take part, so the claim is a Gaussian curve, and the bound of a correct gate is
close to it. In one scenario values are at different ends, and the score subtracts one end from the
other: noise that values share would cancel out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pmtl.audit.estimators import Bits, Floats
from pmtl.audit.gate import source_of
from pmtl.audit.result import AuditResult, Finding, seed_of
from pmtl.audit.setup import AuditSetup
from pmtl.privacy.accounting import gaussian
from pmtl.privacy.accounting.validation import metrics_plan
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation.released_metrics import ReleasedMetrics, Values

GAME = "metrics"

#: What is released: two views of two metrics, with the largest value of each.
_VIEWS = ("personal", "shared")
_BOUNDS = {"accuracy": 1.0, "loss": 3.0}
_PLACES = [(view, name) for view in _VIEWS for name in _BOUNDS]
#: The client under attack.
_VICTIM = 0


@dataclass(frozen=True)
class Scenario:
    """The client's values under D and under D′, as multiples of each value's bound."""

    name: str
    first: float
    second: float
    signs: tuple[int, ...] = (1, 1, 1, 1)  #: of each value: +1 is `first` under D, −1 under D′
    rounds: int = 1  #: signs and score change from round to round
    part: float = 0.15  #: the share of the game's trials


SCENARIOS = (
    Scenario("values at opposite ends", 1, 0, part=1),
    Scenario("some values at one end, some at the other", 1, 0, signs=(1, -1, 1, -1)),
    Scenario("values far beyond their bounds", 1e300, -1e300),
    Scenario("NaN against the lowest values", math.nan, 0),
    Scenario("infinite values against the lowest", math.inf, 0),
    Scenario("ends that alternate over two rounds", 1, 0, rounds=2),
)


def metrics(setup: AuditSetup) -> AuditResult:
    """Play all scenarios of the metrics' gate."""
    findings = []
    delta = setup.claimed_delta
    for scenario in SCENARIOS:
        mu = gaussian.mu_for(setup.epsilon, delta)
        plan = metrics_plan(setup.clients, scenario.rounds, len(_PLACES), mu * mu, delta)
        bits = np.arange(int(setup.trials * scenario.part)) % 2 == 1
        scores = play(plan, scenario, bits, setup.noise_seed, setup.on_grid)
        findings.append(Finding.of(scenario.name, setup, plan, scores, bits, len(SCENARIOS)))
    return AuditResult.of(GAME, setup, findings, delta, values=len(_PLACES))


def play(
    plan: PrivacyPlan, scenario: Scenario, bits: Bits, seed: int | None, hardened: bool = False
) -> Floats:
    """One score for every trial; a true bit plays D. Without a seed the noise comes from the
    operating system."""
    scores = np.empty(len(bits))
    signs = np.array(scenario.signs)
    for trial, bit in enumerate(bits.tolist()):
        own = seed_of(seed, GAME + scenario.name, trial)
        gate = ReleasedMetrics(plan, _VIEWS, _BOUNDS, source_of(own), hardened, None)
        score = 0.0
        for round in range(scenario.rounds):
            turned = signs * (-1) ** round
            released = gate.release(round, _values(plan.clients, scenario, turned, bit))
            shares = [released[view][f"{name}_mean"] / _BOUNDS[name] for view, name in _PLACES]
            score += float(turned @ np.array(shares))
        scores[trial] = score
    return scores


def _values(clients: int, scenario: Scenario, signs: NDArray[np.int64], bit: bool) -> Values:
    """All clients' values: the middle of each range, except for the client under attack."""
    there = np.ones(clients, dtype=bool)
    values: dict[str, tuple[dict[str, Floats], Bits]] = {}
    for (view, name), sign in zip(_PLACES, signs, strict=True):
        own = np.full(clients, _BOUNDS[name] / 2)
        own[_VICTIM] = (scenario.first if bit == (sign > 0) else scenario.second) * _BOUNDS[name]
        values.setdefault(view, ({}, there))[0][name] = own
    return values
