"""Values that the shell completes (`pmtl --install-completion`).

The names are repeated here, because importing them from their packages would load torch, and
completion has to be fast. `tests/cli/shell/test_completion.py` checks that they are complete.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

#: Known values by what is completed.
VALUES: dict[str, tuple[str, ...]] = {
    "algorithm": (
        *("auto", "pooling", "anchored", "pmtl", "fedavg", "fedadam", "fedprox", "local", "ditto"),
        *("ppsgd", "clustered:clusters=", "related:omega=", "naive_joint"),
    ),
    "model": ("auto", "logistic", "linear", "mlp", "femnist_cnn", "celeba_cnn", "hog"),
    "engine": ("auto", "axis", "threads", "debug"),
    "device": ("auto", "cpu", "cuda"),
    "mode": ("experiment", "production"),
    "sampling": ("full", "poisson", "fixed"),
    "share": ("biases", "film", "lowrank:rank=", "subspace:k=", "basis:file="),
    "format": ("onnx", "torch", "safetensors"),
    "method": ("vanilla", "mean", "kl", "ewc", "all", "select"),
    "start": ("shared", "personal"),
    "game": (
        *("all", "one-round", "canaries", "billboard", "default"),
        *("metrics", "sampler", "server"),
    ),
    "data set": ("femnist", "femnist-nist", "stackoverflow", "celeba"),
    "scale": ("client",),
}
#: Endings of files that hold federations.
ENDINGS = (
    *(".npz", ".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".pq"),
    *(".h5", ".hdf5", ".json", ".zip"),
)
#: The kinds of plug-ins (keys of `pmtl.plugins.GROUPS`) by what is completed.
_PLUGINS = {"algorithm": "algorithm", "model": "model", "sampling": "sampling scheme"}
#: Settings whose values are names of files.
_FILES = {"data": ENDINGS, "bounds": (".toml",), "init": (".safetensors",)}

Completer = Callable[[str], list[str]]


def completer(name: str) -> Completer | None:
    """A function from the beginning of a value to all values that begin so. `name` is a key of
    `VALUES`, the name of a setting, or "run"; others have no completion."""
    if name in VALUES:
        return lambda incomplete: _names(name, incomplete)
    if name in _FILES:
        return lambda incomplete: _data(incomplete, name)
    return _runs if name == "run" else None


def _names(name: str, incomplete: str) -> list[str]:
    known = list(VALUES[name])
    if name in _PLUGINS:
        from pmtl.plugins import entries

        known += entries(_PLUGINS[name])
    return [value for value in known if value.startswith(incomplete)]


def _data(incomplete: str, name: str) -> list[str]:
    named = ["synthetic"] if name == "data" and "synthetic".startswith(incomplete) else []
    return named + [path for path in _paths(incomplete) if path.endswith(("/", *_FILES[name]))]


def _runs(incomplete: str) -> list[str]:
    return [path for path in _paths(incomplete) if path.endswith("/")]


def _paths(incomplete: str) -> list[str]:
    """Files and folders whose path begins so; folders end with a slash."""
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
