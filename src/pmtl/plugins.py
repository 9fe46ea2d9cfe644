"""Finds the user's own models, algorithms, metrics, sampling schemes, readers and callbacks.

A name is looked up in the library, then among the *entry points* of installed packages (groups:
`GROUPS`), then imported as `package.module:Name`. A package declares entry points in its
`pyproject.toml`:

    [project.entry-points."pmtl.algorithms"]
    fedmine = "my_package.fedmine:FedMine"
"""

from __future__ import annotations

import hmac
import importlib
import os
import secrets
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from pmtl.errors import Interrupted, PmtlError, PmtlWarning, did_you_mean, is_out_of_memory
from pmtl.spec import parse_spec, unknown

T_co = TypeVar("T_co", covariant=True)

#: What error messages call an object, and the group of its entry points.
GROUPS = {
    "model": "pmtl.models",
    "algorithm": "pmtl.algorithms",
    "metric": "pmtl.metrics",
    "sampling scheme": "pmtl.sampling",
    "reader": "pmtl.readers",
    "callback": "pmtl.callbacks",
}
#: The environment variable that allows code which files of others name.
TRUST = "PMTL_TRUST_CODE"
#: The base classes whose methods `errors_of_own_code` knows, and what messages call them.
_BASES = {
    "pmtl.algorithms.base.Algorithm": "algorithm",
    "pmtl.privacy.sampling.SamplingScheme": "sampling scheme",
    "torch.nn.modules.module.Module": "model",
}


class Library(Mapping[str, T_co]):
    """What the library has of one kind, by name. It is imported when it is asked for."""

    def __init__(self, package: str, places: dict[str, str]) -> None:
        """`places` are `module:Name` in the package, by name."""
        self.package = package
        self.places = places

    def __getitem__(self, name: str) -> T_co:
        found: T_co = resolve_name(f"{self.package}.{self.places[name]}")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def find(what: str, name: str, library: Mapping[str, Any]) -> Any:
    """The object with this name: one of the library, of an entry point, or `package.module:Name`.
    `what` says what is looked for, one of the keys of `GROUPS`."""
    if name in library:
        return library[name]
    installed = _installed(what, name)
    if installed is not None:
        return _imported(what, name, installed)
    if ":" in name:
        return _imported(what, name, name)
    names = [*library, *entries(what)]
    refusal = unknown(what, name, names) if names else f"There is no {what} {name!r}."
    raise PmtlError(f"{refusal} Write your own as package.module:Name.")


def entries(what: str) -> list[str]:
    """The names of entry points of installed packages for `what`."""
    return sorted({entry.name for entry in entry_points(group=GROUPS[what])})


def _installed(what: str, name: str) -> str | None:
    """The `package.module:Name` of the entry point with this name. Two of one name are refused."""
    found = {
        entry.value: getattr(entry.dist, "name", "a package without a name")
        for entry in entry_points(group=GROUPS[what])
        if entry.name == name
    }
    if len(found) > 1:
        both = " and ".join(f"{value} of {package}" for value, package in sorted(found.items()))
        raise PmtlError(
            f"Installed packages have several entry points for the {what} {name!r}: {both}. Write "
            "the one you mean as package.module:Name."
        )
    return next(iter(found), None)


def refuse_options(what: str, name: str, advice: str) -> None:
    """Refuse `NAME:key=value` for what takes no options; `advice` says what to do instead."""
    if parse_spec(name)[1]:
        raise PmtlError(f"A {what} takes no options, but {name!r} has some: {advice}.")


@contextmanager
def errors_of_own_code(
    kinds: tuple[type[BaseException], ...] = (Exception, SystemExit),
) -> Iterator[None]:
    """Raise a `PmtlError` that names the function, the file and the line if a method of a user's
    algorithm, model or sampling scheme raises one of `kinds`. A lack of memory stays what it is."""
    try:
        yield
    except (PmtlError, Interrupted):
        raise
    except kinds as error:  # The user's code may raise anything, and sys.exit() is SystemExit.
        place = None if is_out_of_memory(error) else _own_method(error)
        if place is None:
            raise
        raise PmtlError(f"{place}: {error_text(error)}.") from error


def _own_method(error: BaseException) -> str | None:
    """The last method of a user's class that an error went through, and where; None if there is
    none."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        file = Path(code.co_filename)
        if not code.co_argcount or _is_ours(file):
            continue
        kind = type(frame.f_locals.get(code.co_varnames[0]))
        if kind.__module__.startswith(("pmtl.", "torch.")):  # Its `__init__` is in no file.
            continue
        bases = (_BASES.get(f"{base.__module__}.{base.__qualname__}") for base in kind.__mro__)
        what = next(filter(None, bases), None)
        if what is not None:
            name = f"{kind.__module__}:{kind.__qualname__}"
            place = f"The {what} {name} failed in {code.co_name} ({file.name}, line {line})"
    return place


def _is_ours(file: Path) -> bool:
    return file.is_relative_to(Path(__file__).parent)


def error_text(error: BaseException) -> str:
    """The type and the text of an error."""
    try:
        return f"{type(error).__name__}: {error}".rstrip(" .:")
    except Exception:  # The text of an error is the user's code, too.
        return type(error).__name__


def named_code(names: Iterable[str], data: str) -> list[str]:
    """What imports code that the library does not have: the `package.module:Name` among the names,
    and the spec of data that names a reader."""
    found = [name for name in names if ":" in parse_spec(name)[0]]
    return [*found, data] if "reader=" in data else found


def signature(text: str) -> str | None:
    """A signature of `text` by this user: its HMAC with a secret key, which the first call writes
    into the user's folder of states. None if no key can be kept there."""
    try:
        folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "pmtl")
        folder.mkdir(parents=True, exist_ok=True)
        key = folder / "key"
        if not key.exists():  # It appears whole, and the first of several processes makes it.
            with NamedTemporaryFile(dir=folder) as made:  # The owner alone can open it.
                made.write(secrets.token_bytes(32))
                made.flush()
                with suppress(FileExistsError):
                    os.link(made.name, key)
        return hmac.digest(key.read_bytes(), text.encode(), "sha256").hex()
    except (OSError, RuntimeError):  # RuntimeError: this user has no home.
        return None


def check_signature(named: str, text: str, signed: str | None) -> None:
    """Refuse to import the code that a file names, unless this user signed `text`.

    Args:
        named: the file and what it names, for the message.
        text: everything that decides what would be imported.
        signed: the file's signature.
    """
    own = signature(text)
    same = None not in (own, signed) and hmac.compare_digest(str(own), str(signed))
    if not same and os.environ.get(TRUST) != "1":
        raise PmtlError(
            f"{named}. You did not make it on this machine, so that code is not imported: it "
            f"could do anything. If you trust it, set the environment variable {TRUST}=1."
        )


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
        place = _line_of(error, module_name)
        advice = "name a module that Python finds from this folder"
        if place or isinstance(error, SyntaxError):  # The text of a SyntaxError has the line.
            advice = f"correct its code{place}"
        raise PmtlError(
            f"The {what} {name!r} cannot be imported ({error_text(error)}): {advice}."
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        own = [key for key, value in vars(module).items() if _is_defined_in(module_name, value)]
        listed = f" It has: {', '.join(own[:12])}{', …' * (len(own) > 12)}." if own else ""
        raise PmtlError(
            f"The {what} {name!r} cannot be found: the module {module_name!r} has no "
            f"{attribute!r}.{did_you_mean(attribute, own)}{listed}"
        )
    return found


def _is_defined_in(module: str, value: Any) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module


def _line_of(error: BaseException, module: str) -> str:
    """Where in the user's code an import failed, in words."""
    top = module.partition(".")[0]
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file = Path(frame.f_code.co_filename)
        if frame.f_globals.get("__name__", "").partition(".")[0] == top and not _is_ours(file):
            return f" ({file.name}, line {line})"
    return ""
