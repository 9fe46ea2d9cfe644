"""From a TOML file to a `TrainConfig`, with every mistake named by its place.

pydantic checks the file against the dataclasses themselves, so there is one definition of what a
run may be asked.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pmtl.errors import PmtlError, naming
from pmtl.runs.config import TrainConfig
from pmtl.spec import unknown

if TYPE_CHECKING:
    from pydantic import TypeAdapter


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


def parse_config(values: Mapping[str, Any], where: str) -> TrainConfig:
    """Check a mapping and turn it into a configuration."""
    from pydantic import ValidationError

    try:
        with naming(where):
            return _checker().validate_python(dict(values), extra="forbid")
    except ValidationError as error:
        raise PmtlError(_sentence(error.errors()[0], where)) from error


@cache
def _checker() -> TypeAdapter[TrainConfig]:
    from pydantic import TypeAdapter

    return TypeAdapter(TrainConfig)


def _sentence(error: Mapping[str, Any], where: str) -> str:
    *above, key = [str(part) for part in error["loc"]]
    table = TrainConfig
    for name in above:
        table = get_type_hints(table)[name]
    known = [field.name for field in fields(table)]
    if error["type"] == "unexpected_keyword_argument":
        return str(unknown(f"setting in {where} named", ".".join([*above, key]), known))
    wanted = error["msg"].removeprefix("Input should be ")
    return (
        f"In {where}, {'.'.join([*above, key])} should be {wanted}, "
        f"but {error['input']!r} was given."
    )


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
