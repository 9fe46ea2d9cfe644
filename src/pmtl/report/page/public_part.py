"""The part of a page about a production run, made from the files in its `public/` folder alone.

Nothing else of the run is opened, so nothing private can be shown. Names of clients are public, but
are not needed here and left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmtl import storage as files
from pmtl.data.describe import warn_of_few_clients
from pmtl.errors import PmtlError, errors_naming
from pmtl.jsontext import check_text
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.statement.statement import Statement
from pmtl.report.page.part import Pairs, Part, data_pairs, flat, plan_warnings
from pmtl.report.run_verdict import released_verdict
from pmtl.runs.metrics_file import MetricsFile, released
from pmtl.spec import from_values

#: The settings of `plan.json` that a page shows.
_SHOWN = (
    *("mode", "model", "algorithm", "parameters", "share", "shared_numbers", "frozen", "hardened"),
    *("plan", "metrics_plan", "local", "evaluate_every", "patience"),
)
_PRODUCTION = (
    "A production run is not repeated: its noise is kept nowhere. These check its numbers."
)
_WITHHELD = (
    "What single clients gain is private. This page shows only what the run published; every "
    "client can compare its own models by itself (pmtl finetune --method select)."
)


@dataclass(frozen=True)
class _Public:
    """What a page needs of `plan.json`; there are further entries."""

    mode: str
    model: str
    algorithm: str
    task: str
    input_shape: tuple[int, ...]
    outputs: int
    shares: bool
    disclosed: tuple[str, ...]
    plan: Mapping[str, Any]
    metrics_plan: Mapping[str, Any] | None


def public_part(path: Path) -> Part | None:
    """The part of a production run, from its folder or from a copy of its `public/` folder; None
    if `path` is neither."""
    places = (path / "public", path)
    folder = next((place for place in places if (place / "plan.json").exists()), None)
    if folder is None or (path / "run.json").exists():
        return None
    if not (folder / "privacy.json").exists():
        raise PmtlError(
            f"The run at {path} is not finished: continue it with "
            f"`pmtl resume {shlex.quote(str(path))}`."
        )
    settings = files.read_json(folder / "plan.json")
    said = folder / "privacy.json"
    statement = Statement.from_dict(files.read_json(said), str(said))
    facts, plan, metrics = _read(settings, f"the file {folder / 'plan.json'}")
    lines = MetricsFile(folder / "metrics.jsonl", b"").lines()
    place = folder.resolve()
    about_plan = plan_warnings(plan, metrics) if facts.shares else []
    return Part(
        name=place.parent.name if place.name == "public" else place.name,
        algorithm=facts.algorithm,
        model=facts.model,
        clients=plan.clients,
        mode=facts.mode,
        statement=statement,
        verdict=released_verdict(released(lines), metrics, plan.clients),
        lines=lines,
        data=_data(facts, plan),
        settings=flat({name: settings.get(name) for name in _SHOWN}),
        commands=_commands(plan, facts.shares),
        warnings=[*facts.disclosed, *warn_of_few_clients(plan.clients), *about_plan],
        no_gains=_WITHHELD,
    )


def _read(values: Mapping[str, Any], where: str) -> tuple[_Public, PrivacyPlan, PrivacyPlan | None]:
    """The entries of `plan.json`, its plan and that of its metrics; anything else is refused."""
    facts = from_values(_Public, values, where, lenient=True)
    with errors_naming(where):
        try:
            check_text(values)
            plan = PrivacyPlan.from_dict(facts.plan)
            given = facts.metrics_plan
            return facts, plan, None if given is None else PrivacyPlan.from_dict(given)
        except (ValueError, KeyError, TypeError) as error:
            raise PmtlError(f"It is not the plan of a run ({error}).") from error


def _data(facts: _Public, plan: PrivacyPlan) -> Pairs:
    counted = "classes" if facts.task == "classification" else "outputs"
    return data_pairs(
        {
            "clients": plan.clients,
            "features": facts.input_shape,
            "task": facts.task,
            counted: facts.outputs,
        }
    )


def _commands(plan: PrivacyPlan, shares: bool) -> Pairs:
    if not shares:
        return [("A production run is not repeated. Nothing left a client here.", "")]
    check = (
        f"pmtl privacy epsilon --clients {plan.clients} --cohort {plan.cohort} "
        f"--sampling {shlex.quote(plan.sampling)} --clip {plan.clip_norm:g} "
        f"--noise {plan.noise_std!r} --rounds {plan.rounds} --delta {plan.delta!r}"
    )
    about = f"{_PRODUCTION} The ε of training alone, without released metrics"
    return [(about, check), ("What all runs on these clients cost", "pmtl ledger show LEDGER")]
