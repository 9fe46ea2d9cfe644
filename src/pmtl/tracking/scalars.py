"""What both trackers record of a run. A `path` is the run's folder or, in production, its public
part; None for a run in memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pmtl import storage as files
from pmtl.runs.callbacks import Event
from pmtl.runs.config import CONFIGURATION
from pmtl.views.frames import flat_row

#: Entries of `plan.json` that are not settings, or are long.
_EXCLUDED = ("clients", "blocks", "feature_names", "labels", "disclosed", "text", "bounds", "id")


def scalars(event: Event) -> dict[str, float]:
    """The finite numbers of the last round's line, by paths such as `validation.personal.loss`."""
    values = {name: value for name, value in event.metrics.items() if name != "round"}
    return {
        name: float(value)
        for name, value in flat_row(values).items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def run_name(path: Path | None) -> str:
    """What a tracker calls a run: the name of its folder."""
    if path is None:
        return "run"
    path = path.resolve()
    return path.parent.name if path.name == "public" else path.name


def read(path: Path | None, name: str) -> dict[str, Any] | None:
    """A JSON file of the run, if it exists; `privacy.json` exists when the run is complete."""
    if path is None or not (path / name).exists():
        return None
    return files.read_json(path / name)


def run_id(path: Path | None) -> str | None:
    """The run's own identity, by which a resumed run is recognised."""
    facts = read(path, "plan.json") or read(path, "run.json")
    return None if facts is None else str(facts["id"])


def settings(path: Path | None) -> dict[str, str]:
    """The settings that may be shown: of an experiment all, in production the public ones."""
    values: dict[str, Any] = {}
    if plan := read(path, "plan.json"):
        values = {name: value for name, value in plan.items() if name not in _EXCLUDED}
    elif path is not None and (path / "config.toml").exists():
        values = files.read_toml(path / "config.toml", CONFIGURATION)
    return {name: str(value) for name, value in flat_row(values).items() if value is not None}
