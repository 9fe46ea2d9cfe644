"""A statement that was read does not contradict itself, and every statement that is made passes."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.statement import check
from pmtl.privacy.statement.statement import Statement, make_statement

PLAN = PrivacyPlan(50, 10, "poisson", 1.0, 0.5, 5, 1e-3)
FULL = PrivacyPlan(50, 50, "full", 1.0, 0.1, 5, 1e-3)
METRICS = PrivacyPlan(50, 50, "full", 1.0, 0.2, 3, 1e-3)
OWN = {"sampling": "nowhere:Mine", "chance": 0.5, "words": "by lot"}
CHOICE = {
    "costs": [(1e-3, 9.0), (1e-5, 12.0)],
    "protocol": "It is described elsewhere.",
    "candidates": 3,
    "one_run": 4.0,
}


def written(plan=PLAN, **arguments):
    made = make_statement(plan, **{"shares": True, "personal": True, **arguments})
    return made, json.loads(to_json(made.to_dict()))


@pytest.mark.parametrize(
    ("plan", "arguments"),
    [
        (PLAN, {}),
        (FULL, {"metrics": METRICS, "mode": "production", "hardened": True}),
        (replace(PLAN, sampling="fixed"), {"metrics": METRICS}),
        (PrivacyPlan.from_dict(PLAN.to_dict() | OWN), {}),
        (PLAN, {"metrics": METRICS, "sites": (3, 1)}),
        (PLAN, {"charged": {GaussianEvent.of(PLAN): 2}, "metrics": METRICS}),
        (PLAN, {"charged": {}}),
        (PLAN, {"shares": False}),
        (PLAN, {"shares": False, "metrics": METRICS}),
        (PLAN, {"choice": CHOICE, "population_epsilon": 1.0}),
        (FULL, {"population_epsilon": 40.0, "population_filter": math.inf}),
        (replace(PLAN, noise_std=0.0), {"metrics": METRICS}),
        (replace(PLAN, clip_norm=math.inf), {}),
        (replace(PLAN, noise_std=1e4), {"finetuned": True, "releases": "once"}),
        (replace(FULL, delta=0.9), {}),
    ],
)
def test_every_statement_that_is_made_is_read(plan, arguments):
    made, values = written(plan, **arguments)
    for given in (values, {**values, "format": 1}):
        read = Statement.from_dict(given)
        assert json.loads(to_json(read.to_dict())) == values
        assert str(read) == str(made)


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.01},
        {"epsilon": -1},
        {"epsilon": math.nan},
        {"epsilon": 10**400},
        {"delta": 1e-9},
        {"delta": 1.5},
        {"delta": 0},
        {"attacker_right": 0.5},
        {"attacker_right": math.inf},
        {"attacker_right": math.nan},
        {"attacker_right": 10**400},
        {"population_epsilon": 0.01},
        {"population_epsilon": math.nan},
        {"population_filter": -1.0},
        {"mode": "secret"},
        {"adjacency": "add-or-remove-one"},
        {"sampling": "fixed"},
        {"sampling": "none"},
        {"rounds": 1},
        {"rounds": -5},
        {"plan": None, "sampling": "none"},
        {"metrics": FULL.to_dict()},
        {"also": {"zero_out": -1}},
        {"also": {"zero_out": [1]}},
        {"hidden": {"sites": 3}},
        {"unit": "\ud800"},
        {"charged": []},
    ],
)
def test_impossible_or_contradicting_entries_are_refused(changes):
    _, values = written(FULL, metrics=METRICS, sites=(3, 1))
    for format in ({}, {"format": 1}):
        with pytest.raises(PmtlError, match=r"the file privacy\.json"):
            Statement.from_dict({**values, **changes, **format}, "the file privacy.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.01},
        {"epsilon": math.nan},
        {"delta": 1e-9},
        {"zero_out": 0.005},
        {"zero_out": math.nan},
        {"attacker_right": 0.5},
        {"attacker_hits": 0.01},
        {"attacker_hits": 2},
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_guarantee_is_of_what_was_charged(changes, place):
    _, values = written()
    values["guarantees"][place].update(changes)
    if place == 0:
        values.update({name: changes[name] for name in ("epsilon",) if name in changes})
    with pytest.raises(PmtlError, match="the privacy statement"):
        Statement.from_dict(values)


@pytest.mark.parametrize("plan", [PLAN, FULL])
def test_epsilon_is_not_below_what_the_releases_cost(plan):
    made, values = written(plan)
    values["guarantees"], values["attacker_right"] = [], None
    for epsilon, passes in ((1, True), (1 - 1e-5, True), (1 - 1e-3, False), (0.1, False)):
        values["epsilon"] = made.epsilon * epsilon
        if passes:
            Statement.from_dict(values)
            continue
        with pytest.raises(PmtlError, match=r"The entry 'epsilon' says .* of the releases makes"):
            Statement.from_dict(values)
    values["charged"], values["epsilon"] = [], made.epsilon * 0.9  # The plan is left.
    with pytest.raises(PmtlError, match="The entry 'epsilon' says"):
        Statement.from_dict(values)


def test_charges_are_those_of_the_plan():
    _, values = written()
    cheaper = replace(PLAN, noise_std=5.0)
    forged = make_statement(cheaper, shares=True, personal=True)
    values |= {name: getattr(forged, name) for name in ("epsilon", "attacker_right")}
    values |= {name: forged.to_dict()[name] for name in ("guarantees", "charged")}
    with pytest.raises(PmtlError, match="The entry 'plan' cannot be"):
        Statement.from_dict(values)


def test_a_choice_has_the_bounds_of_its_pairs():
    made, values = written(choice=CHOICE)
    for right in (made.attacker_right - 1e-4, 0.5):
        with pytest.raises(PmtlError, match="The entry 'attacker_right' says"):
            Statement.from_dict(values | {"attacker_right": right})


def test_what_would_take_long_or_a_library_that_is_missing_is_not_computed(monkeypatch):
    _, values = written()
    monkeypatch.setattr(check, "MOST_KINDS", 0)
    Statement.from_dict(values | {"attacker_right": 0.51})
    monkeypatch.undo()

    def missing(*arguments, **named):
        raise ImportError("no dp-accounting")

    monkeypatch.setattr(check.composition, "epsilon", missing)
    Statement.from_dict(values | {"attacker_right": 0.51})


def test_too_many_releases_are_refused():
    _, values = written()
    values["charged"][0]["count"] = 10**400
    with pytest.raises(PmtlError, match="The entry 'charged' cannot be"):
        Statement.from_dict(values)
    values = written()[1]
    values["plan"]["clip_norm"] = 10**400
    with pytest.raises(PmtlError, match="clip norm is a number that is too large"):
        Statement.from_dict(values)
