"""Finds the user's own models, algorithms, metrics, sampling schemes, readers and callbacks.

A name is looked up in the library, then among the *entry points* of installed packages (groups:
`GROUPS`), then imported as `package.module:Name`. A package declares entry points in its
`pyproject.toml`:

    [project.entry-points."pmtl.algorithms"]
    fedmine = "my_package.fedmine:FedMine"
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError
from pmtl.spec import unknown

#: What error messages call an object, and the group of its entry points.
GROUPS = {
    "model": "pmtl.models",
    "algorithm": "pmtl.algorithms",
    "metric": "pmtl.metrics",
    "sampling scheme": "pmtl.sampling",
    "reader": "pmtl.readers",
    "callback": "pmtl.callbacks",
}


def find(what: str, name: str, library: Mapping[str, Any]) -> Any:
    """The object with this name: one of the library, of an entry point, or `package.module:Name`.
    `what` says what is looked for, one of the keys of `GROUPS`."""
    if name in library:
        return library[name]
    installed = entries(what)
    if name in installed:
        return _imported(what, name, installed[name].value)
    if ":" in name:
        return _imported(what, name, name)
    names = [*library, *installed]
    refusal = unknown(what, name, names) if names else f"There is no {what} {name!r}."
    raise PmtlError(f"{refusal} Write your own as package.module:Name.")


def entries(what: str) -> dict[str, EntryPoint]:
    """The entry points of installed packages for `what`, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUPS[what])}


def add_folder(folder: str) -> None:
    """Let modules be found in this folder, too, after all others. Relative paths are ignored: a
    run that was copied must not bring code of its own."""
    if Path(folder).is_absolute() and folder not in sys.path:
        sys.path.append(folder)


def _imported(what: str, name: str, path: str) -> Any:
    module_name, _, attribute = path.partition(":")
    # Unlike `python -m`, the command line does not put the current folder on the path.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # The user's code may raise anything.
        raise PmtlError(
            f"The {what} {name!r} cannot be imported ({type(error).__name__}: {error}): name a "
            "module that Python finds from this folder."
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise PmtlError(
            f"The {what} {name!r} cannot be found: the module {module_name!r} has no {attribute!r}."
        )
    return found
