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
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError, PmtlWarning
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
    """Let modules be found in this folder, too, after all others. Relative paths are ignored."""
    if Path(folder).is_absolute() and folder not in sys.path:
        sys.path.append(folder)


def warn_of_other_module(name: str, folder: str) -> None:
    """Warn if `package.module:Name` is found elsewhere than in `folder`, although the folder has
    a module of that name, too."""
    module, colon, _ = name.partition(":")
    top = module.partition(".")[0]
    file = _file_of(top) if colon else None
    expected = [Path(folder, f"{top}.py"), Path(folder, top, "__init__.py")]
    there = [path.resolve() for path in expected if path.is_file()]
    if file is not None and there and file not in there:
        warnings.warn(
            PmtlWarning(
                f"The module {top!r} is read from {file}, but this run was made with the one in "
                f"{folder}: to use that one, read the run in a Python process of its own, from "
                "that folder."
            ),
            stacklevel=4,
        )


#: Files by which a folder of results is known. All have the digest that `storage.write_json` adds.
_OF_RESULTS = (
    *("run.json", "private/run.json", "plan.json", "public/plan.json"),
    *("comparison.json", "selection.json", "finetuned.json"),
)


def _has_results(folder: Path) -> bool:
    for name in _OF_RESULTS:
        with suppress(OSError):
            if b'"digest"' in (folder / name).read_bytes():
                return True
    return False


def _refuse_results(what: str, name: str, module: str) -> None:
    """Refuse a module that lies in a folder of results: reading results that somebody else made
    must not run code that came with them. Packages are checked before they are imported."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        found = _spec_of(".".join(parts[:count]))
        if found is None:
            return
        origins = [found.origin] if found.has_location else found.submodule_search_locations
        for origin in origins or ():
            place = Path(str(origin)).resolve()
            if any(_has_results(folder) for folder in (place, *place.parents)):
                raise PmtlError(
                    f"The {what} {name!r} is not imported, because its code lies in a folder of "
                    f"results ({place}), which may come from somebody else: move the code to a "
                    "folder of its own."
                )


def _spec_of(module: str) -> ModuleSpec | None:
    """Where Python finds a module; None if it does not."""
    _find_in_present_folder()
    try:
        return find_spec(module)
    except (ImportError, ValueError):  # A module without a specification, such as __main__.
        return None


def _file_of(module: str) -> Path | None:
    found = _spec_of(module)
    return Path(str(found.origin)).resolve() if found is not None and found.has_location else None


def _find_in_present_folder() -> None:
    """Unlike `python -m`, the command line does not put the current folder on the path."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _imported(what: str, name: str, path: str) -> Any:
    module_name, _, attribute = path.partition(":")
    _find_in_present_folder()
    try:
        _refuse_results(what, name, module_name)
        module = importlib.import_module(module_name)
    except PmtlError:
        raise
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        raise PmtlError(
            f"The {what} {name!r} cannot be imported ({type(error).__name__}: {error}): name a "
            "module that Python finds from this folder."
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        own = [key for key, value in vars(module).items() if _is_defined_in(module_name, value)]
        listed = f" It has: {', '.join(own)}." if own else ""
        raise PmtlError(
            f"The {what} {name!r} cannot be found: the module {module_name!r} has no "
            f"{attribute!r}.{listed}"
        )
    return found


def _is_defined_in(module: str, value: Any) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module
