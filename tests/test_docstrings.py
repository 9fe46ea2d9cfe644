"""Public functions and classes describe every argument: in a section of a docstring, as an option
with a help text, or in a comment `#:` beside a field."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path

import pytest

import pmtl
from pmtl.algorithms import ExactAlgorithm, Sizes
from pmtl.audit.setup import AuditSetup
from pmtl.client.site import Site
from pmtl.data.load import READERS
from pmtl.messages import RoundMessage
from pmtl.privacy.release import Release
from pmtl.server import Server
from pmtl.sharing.share import Share
from pmtl.simulation import Simulation, simulate

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
SOURCE = Path(pmtl.__file__).parent


def named(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def exported() -> Iterator[object]:
    """Functions and classes in an `__all__` of the package."""
    for path in sorted(SOURCE.rglob("*.py")):
        if re.search(r"^__all__\b", path.read_text("utf-8"), re.M):
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            module = import_module(".".join(part for part in parts if part != "__init__"))
            for thing in (getattr(module, name) for name in module.__all__):
                if inspect.isfunction(thing) or inspect.isclass(thing):
                    yield thing


PUBLIC = [named(path) for path in re.findall(r"^::: (\S+)", PAGE.read_text("utf-8"), re.M)]
#: What the reference page does not have, and extensions use.
PUBLIC += [Server, Site, Simulation, simulate, Release, ExactAlgorithm, Sizes, Share]
PUBLIC += [AuditSetup, RoundMessage, *exported()]
#: The readers: users give their arguments as options of a file.
PUBLIC += READERS.values()
#: An exception's argument is its sentence.
PUBLIC = [thing for thing in dict.fromkeys(PUBLIC) if thing is not pmtl.PmtlError]


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


#: Headings of sections with arguments. `Attributes:` are what a constructor takes; a class says
#: once what its methods have in common.
SECTIONS = ("Args:", "Attributes:", "In the methods:")


def arguments_in(docstring: str | None) -> set[str]:
    """The names that the sections of a docstring describe."""
    found: set[str] = set()
    inside = False
    for line in inspect.cleandoc(docstring or "").splitlines():
        if line and not line.startswith(" "):
            inside = line in SECTIONS
        elif inside and (entry := re.match(r"    (?:- )?(\*{0,2}\w[\w, ]*): +\S", line)):
            found |= {name.strip(" *") for name in entry[1].split(",")}
    return found


def described(thing: object, name: str) -> set[str]:
    """The arguments in its docstring: a method's with those of its class, which has the arguments
    that several methods share, and of the method that it implements; a class's with `__init__`."""
    owner, _, method = name.partition(".")
    parts = [thing]
    if method:
        kinds = callables()[owner].__mro__[:-1]
        parts += [*kinds, *(vars(kind).get(method) for kind in kinds)]
    elif isinstance(thing, type):
        parts += [*thing.__mro__[1:-1], thing.__init__]
    return set[str]().union(*(arguments_in(part.__doc__) for part in parts if part is not None))


def commented(kind: type) -> set[str]:
    """Fields of a dataclass with a help text, or with a comment `#:` beside or above them."""
    found = {item.name for item in fields(kind) if "option" in item.metadata}
    for base in kind.__mro__[:-1]:
        source = inspect.getsource(base)
        found |= set(re.findall(r"^    (\w+): .*  #: \S", source, re.M))
        found |= set(re.findall(r"^    #: .*\n(?:    #.*\n)*    (\w+): ", source, re.M))
    return found


def test_an_argument_is_described_in_a_section_alone():
    text = """Reads `path`.

    Args:
        path, folder: where; not `name`: that
            size: is not an entry.
        *rows: of a client.

    Returns:
        other: no argument.

    In the methods:
        - lr: the step size.
    """
    assert arguments_in(text) == {"path", "folder", "rows", "lr"}
    assert arguments_in("Reads path: a file.") == set()


@pytest.mark.parametrize("name", callables())
def test_every_argument_is_described(name):
    thing = callables()[name]
    arguments = [
        argument
        for argument in inspect.signature(thing).parameters  # type: ignore[arg-type]
        if argument not in ("self", "cls", "args", "kwargs") and not argument.startswith("_")
    ]
    known = commented(thing) if isinstance(thing, type) and is_dataclass(thing) else set()
    known |= described(thing, name)
    assert [argument for argument in arguments if argument not in known] == []
