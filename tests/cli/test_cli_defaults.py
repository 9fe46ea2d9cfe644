"""A default that `--help` shows is the default of the Python function or dataclass behind it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import pytest
import typer

import pmtl
from pmtl.audit.games import audit
from pmtl.audit.setup import AuditSetup
from pmtl.cli.app import app
from pmtl.cli.doctor import examine
from pmtl.cli.federation.settings import FederationConfig
from pmtl.cli.options import with_default
from pmtl.experiments.compare import compare
from pmtl.experiments.results import Results
from pmtl.experiments.sweep.grid import Grid
from pmtl.export import export_model
from pmtl.federation.coordinator import Job
from pmtl.models import MODELS
from pmtl.options import declared, tables
from pmtl.personalize.methods import METHODS
from pmtl.personalize.settings import DEFAULT_LAMS, FinetuneSettings
from pmtl.planning.advice import Question
from pmtl.planning.sizes import MODEL_PARTS
from pmtl.privacy.request import PrivacyRequest
from pmtl.report.page.page import write_report
from pmtl.runs.config import FEDERATION_SETTINGS, Reading, TrainConfig
from pmtl.runs.result import Run
from pmtl.spec import parse_spec

#: What each command's options belong to in Python.
OWNERS: dict[str, tuple[Any, ...]] = {
    "train": (pmtl.train, TrainConfig, Reading),
    "compare": (TrainConfig, Reading, compare),
    "plan": (pmtl.plan, Question),
    "finetune": (pmtl.finetune, FinetuneSettings),
    "audit": (AuditSetup, audit),
    "evaluate": (Run.evaluate, Run.per_client),
    "export": (export_model,),
    "report": (write_report,),
    "paper": (Results,),
    "doctor": (examine,),
    "federation run": (FederationConfig, Job),
    "federation demo": (),
    **{f"privacy {name}": (PrivacyRequest,) for name in ("epsilon", "noise", "rounds")},
    "privacy selection": (PrivacyRequest,),
}
#: Options with another name, or with several values, in Python.
NAMED = {
    ("compare", "algorithm"): Grid.algorithms,
    ("compare", "epsilon"): Grid.epsilons,
    ("compare", "seeds"): len(Grid.seeds),
    ("compare", "seed"): Grid.seeds[0],
    ("audit", "game"): inspect.signature(audit).parameters["games"].default,
    ("federation demo", "epsilon"): PrivacyRequest().target,
}
#: Defaults that only the command line has.
ONLY_HERE = {
    *(("data example", "out"), ("federation demo", "out"), ("paper", "on")),
    *(("federation run", "name"), ("federation run", "wait")),
    *(("federation check", "size"), ("federation check", "rounds")),
}
_SHOWN = re.compile(r" \(default ([^()]*)\)\.$")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands of the command line, by their names."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*path, name))
        else:
            yield " ".join((*path, name)), one


def owned(thing: Any) -> dict[str, Any]:
    """The defaults of a function or of a dataclass with its tables."""
    found = {
        name: parameter.default
        for name, parameter in inspect.signature(thing).parameters.items()
        if parameter.default is not parameter.empty
    }
    if is_dataclass(thing):
        for _, inner, _ in tables(thing):
            found |= owned(inner)
    return found


COMMANDS = dict(commands(typer.main.get_command(app)))
SHOWN = [
    (name, option)
    for name, command in COMMANDS.items()
    for option in command.params
    if option.default not in (None, False) or _SHOWN.search(getattr(option, "help", None) or "")
]


@pytest.mark.parametrize(
    ("command", "option"), SHOWN, ids=[f"{name} {option.name}" for name, option in SHOWN]
)
def test_a_default_that_is_shown_is_the_one_in_python(command, option):
    place = command, option.name
    known = [owned(thing) for thing in OWNERS.get(command, ())]
    defaults = [each[option.name] for each in known if option.name in each]
    defaults = [NAMED[place]] if place in NAMED else [d for d in defaults if d is not None]
    if option.default not in (None, False):  # What the command uses.
        assert defaults or place in ONLY_HERE, "name what it belongs to, or add it to ONLY_HERE"
        assert all(default == option.default for default in defaults)
        return
    shown = _SHOWN.search(option.help)
    if defaults:
        assert all(with_default("", default) == shown[0] for default in defaults)
    else:  # It says in words what None means.
        assert not re.fullmatch(r"[\d.e-]+", shown[1]), "a number without a default in Python"


@pytest.mark.parametrize("name", OWNERS)
def test_what_python_uses_is_shown(name):
    """An option without a value uses Python's default, so the help has to name it."""
    shown = {option.name for command, option in SHOWN if command == name}
    for option in COMMANDS[name].params:
        values = [owned(thing).get(option.name) for thing in OWNERS[name]]
        if any(value not in (None, False, ()) for value in values):
            assert option.name in shown, option.name


def test_there_is_nothing_else():
    known = {(name, option.name) for name, option in SHOWN}
    assert {*NAMED, *ONLY_HERE} <= known
    assert set(OWNERS) <= set(COMMANDS)


def test_the_settings_of_federations_are_named_where_they_are_refused():
    assert set(FEDERATION_SETTINGS) == set(declared(FederationConfig)) - set(declared(TrainConfig))


def test_models_and_methods_have_the_defaults_that_their_help_names():
    for spec in re.findall(r"(\w+\[:[\w=,]+\])", declared(TrainConfig)["model"].about.help):
        name, options = parse_spec(spec.replace("[", "").removesuffix("]"))
        assert options
        for build in (MODELS[name], MODEL_PARTS[name]):
            taken = inspect.signature(build).parameters
            assert options == {key: str(taken[key].default) for key in options}
    assert {
        name: kind().lam for name, kind in METHODS.items() if hasattr(kind(), "lam")
    } == DEFAULT_LAMS
