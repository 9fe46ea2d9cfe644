"""Public functions and classes document every argument."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass

import pytest

import pmtl
from pmtl.client.site import Site
from pmtl.models import Layout
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.release import Release
from pmtl.privacy.sampling import SamplingScheme
from pmtl.server import Server
from pmtl.simulation import Simulation, simulate

PUBLIC = [getattr(pmtl, name) for name in pmtl.__all__ if name not in ("PmtlError", "__version__")]
PUBLIC += [Server, Site, Simulation, simulate, Release, Ledger, Layout, SamplingScheme]


def callables() -> dict[str, object]:
    """Public functions, classes and their public methods, by name."""
    found: dict[str, object] = {}
    for thing in PUBLIC:
        found[thing.__name__] = thing
        if isinstance(thing, type):
            for name, part in vars(thing).items():
                part = getattr(part, "__func__", part)
                if not name.startswith("_") and inspect.isfunction(part):
                    found[f"{thing.__name__}.{name}"] = part
    return found


#: Their objects are made by functions, which document what is given to them.
MADE_BY_FUNCTIONS = ("Run", "Finetuned", "Ledger", "Simulation")


def described(thing: object, name: str) -> str:
    """Its docstring: a method's with that of its class, which has the arguments that several
    methods share; a class's with that of `__init__` and the help texts of its fields."""
    text = inspect.getdoc(thing) or ""
    if "." in name:
        text += inspect.getdoc(callables()[name.partition(".")[0]]) or ""
    if isinstance(thing, type):
        text += inspect.getdoc(thing.__init__) or "" if "__init__" in vars(thing) else ""
        if is_dataclass(thing):
            helped = [item.name for item in fields(thing) if "option" in item.metadata]
            text += "".join(f" `{name}`" for name in helped)
            text += inspect.getsource(thing)  # Fields have their comments beside them.
    return text


@pytest.mark.parametrize("name", [name for name in callables() if name not in MADE_BY_FUNCTIONS])
def test_every_argument_is_described(name):
    thing = callables()[name]
    arguments = [
        argument
        for argument in inspect.signature(thing).parameters  # type: ignore[arg-type]
        if argument not in ("self", "cls", "args", "kwargs") and not argument.startswith("_")
    ]
    text = described(thing, name)
    missing = [a for a in arguments if not re.search(rf"\b{re.escape(a)}\b", text)]
    assert missing == []
