"""Values that the shell completes (`pmtl --install-completion`).

Names are in the help of options (`Option.names`), endings in the readers. Nothing here imports
torch, since completion has to answer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

#: The kinds of plug-ins (keys of `pmtl.plugins.GROUPS`) by what is completed.
_PLUGINS = {
    **{name: name for name in ("algorithm", "model", "metric", "callback")},
    "sampling": "sampling scheme",
}
#: Settings whose values are names of files with these endings.
_FILES = {"bounds": (".toml",), "schema": (".toml",), "init": (".safetensors",)}

Completer = Callable[[str], list[str]]


def completer(name: str, values: Sequence[str] = ()) -> Completer | None:
    """A function from the beginning of a value to all values that begin with it. `name` is the
    name of a setting, "callback" or "run"; None if nothing is known of its values."""
    if name == "run":
        return _runs
    if name == "data":
        return _data
    if name in _FILES:
        return lambda incomplete: _files(incomplete, _FILES[name])
    known = values or name in _PLUGINS
    return (lambda incomplete: _names(name, values, incomplete)) if known else None


def _names(name: str, values: Sequence[str], incomplete: str) -> list[str]:
    known = list(values)
    if name in _PLUGINS:
        from pmtl.plugins import entries

        known += entries(_PLUGINS[name])
    return [value for value in known if value.startswith(incomplete)]


def _data(incomplete: str) -> list[str]:
    from pmtl.data.load import READERS
    from pmtl.plugins import entries

    named = [name for name in ("synthetic",) if name.startswith(incomplete)]
    endings = (*READERS, *entries("reader"))
    return named + _files(incomplete, tuple(f".{ending}" for ending in endings))


def _files(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    return [path for path in _paths(incomplete) if path.endswith(("/", *endings))]


def _runs(incomplete: str) -> list[str]:
    return [path for path in _paths(incomplete) if path.endswith("/")]


def _paths(incomplete: str) -> list[str]:
    """Files and folders whose path begins with the text; folders end with a slash."""
    folder, slash, begin = incomplete.rpartition("/")
    try:
        found = sorted(Path(folder + slash or ".").iterdir())
    except OSError:
        return []
    return [
        f"{folder}{slash}{path.name}{'/' * path.is_dir()}"
        for path in found
        if path.name.startswith(begin) and (begin.startswith(".") or path.name[0] != ".")
    ]
