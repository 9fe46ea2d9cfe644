"""Public functions and classes document every argument."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path

import pytest

import pmtl
from pmtl.algorithms import ExactAlgorithm, Sizes
from pmtl.audit.setup import AuditSetup
from pmtl.client.site import Site
from pmtl.messages import RoundMessage
from pmtl.privacy.release import Release
from pmtl.server import Server
from pmtl.sharing.share import Share
from pmtl.simulation import Simulation, simulate

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "python.md"


def named(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


PUBLIC = [named(path) for path in re.findall(r"^::: (\S+)", PAGE.read_text("utf-8"), re.M)]
#: What the reference page does not have, and extensions use.
PUBLIC.remove(pmtl.PmtlError)  # A sentence, as for any exception.
PUBLIC += [Server, Site, Simulation, simulate, Release, ExactAlgorithm, Sizes, Share]
PUBLIC += [AuditSetup, RoundMessage]


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


def test_the_reference_page_has_every_public_name():
    assert {*pmtl.__all__} - {*callables()} == {"PmtlError", "__version__"}


def described(thing: object, name: str) -> str:
    """Its docstring: a method's with those of its class, which has the arguments that several
    methods share, and of the method that it implements; a class's with that of `__init__`."""
    owner, _, method = name.partition(".")
    parts = [thing]
    if method:
        kinds = callables()[owner].__mro__[:-1]
        parts += [*kinds, *(vars(kind).get(method) for kind in kinds)]
    elif isinstance(thing, type) and not is_dataclass(thing):
        parts.append(thing.__init__)
    return " ".join(part.__doc__ for part in parts if part is not None and part.__doc__)


def commented(kind: type) -> set[str]:
    """Fields of a dataclass with a help text, or with a comment `#:` beside or above them."""
    found = {item.name for item in fields(kind) if "option" in item.metadata}
    for base in kind.__mro__[:-1]:
        source = inspect.getsource(base)
        found |= set(re.findall(r"^    (\w+): .*  #: \S", source, re.M))
        found |= set(re.findall(r"^    #: .*\n(?:    #.*\n)*    (\w+): ", source, re.M))
    return found


@pytest.mark.parametrize("name", callables())
def test_every_argument_is_described(name):
    thing = callables()[name]
    arguments = [
        argument
        for argument in inspect.signature(thing).parameters  # type: ignore[arg-type]
        if argument not in ("self", "cls", "args", "kwargs") and not argument.startswith("_")
    ]
    known = commented(thing) if isinstance(thing, type) and is_dataclass(thing) else set()
    text = described(thing, name)
    missing = [a for a in arguments if a not in known and not re.search(rf"\b{a}\b", text)]
    assert missing == []
