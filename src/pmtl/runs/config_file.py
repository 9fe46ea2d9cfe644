"""From a TOML file to a `TrainConfig`; every mistake is named by its place."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError, naming
from pmtl.options import tables
from pmtl.runs.config import TrainConfig, part
from pmtl.spec import construct


def read_config(path: str | Path, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """Read a TOML file; `changes` (the command line's options) have the last word."""
    return parse_config(merge(read_values(path), changes or {}), str(path))


def read_values(path: str | Path) -> dict[str, Any]:
    """What a TOML file says, not yet checked."""
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the path.
        reason = getattr(error, "strerror", None) or error
        raise PmtlError(f"The configuration {path} cannot be read: {reason}.") from error
    try:
        return tomllib.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise PmtlError(f"The configuration {path} is nested too deeply.") from error
    except ValueError as error:
        raise PmtlError(f"The configuration {path} is not valid TOML: {error}.") from error


def parse_config(
    values: Mapping[str, Any], where: str, kind: type[TrainConfig] = TrainConfig
) -> TrainConfig:
    """Check a mapping and turn it into a configuration.

    Args:
        values: the settings, with those of a table as a mapping under its name.
        where: what a sentence about a mistake calls the place of the settings.
        kind: the dataclass of the configuration.
    """
    with naming(where):
        settings = dict(values)
        for name, inner, _ in tables(kind):
            settings[name] = part(inner, values.get(name), name)
        return construct(kind, settings, "the configuration")


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes` on top, table by table."""
    merged = dict(values)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = merge(_without_rival(old, value), value)
        else:
            merged[key] = value
    return merged


def _without_rival(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that decide each other: naming one on the command line unsets the file's other."""
    rivals = {"epsilon": "noise", "noise": "epsilon", "epochs": "steps", "steps": "epochs"}
    rivals["sampling"] = "cohort"  # "full" would not survive another cohort.
    return {key: value for key, value in old.items() if rivals.get(key) not in new}
