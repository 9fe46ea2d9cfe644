"""What a page shows of one run, and how it is read from an experiment.

A production run is read by `public_part`, from the files in `public/` alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pmtl.data.describe import describe
from pmtl.errors import PmtlError
from pmtl.personalize.result import Finetuned
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.statement import warnings as about_plan
from pmtl.privacy.statement.statement import Statement
from pmtl.report.page.clients import Clients, client_gains
from pmtl.report.run_verdict import verdict, view_losses
from pmtl.report.verdict import NO_ROWS, UNKNOWN, Verdict
from pmtl.runs.config import CONFIGURATION, IN_MEMORY, read_config
from pmtl.runs.facts import RunFacts
from pmtl.runs.folder import RunFolder
from pmtl.runs.result import Run
from pmtl.storage import read_toml
from pmtl.views.frames import flat_row

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Part:
    """One run as a page shows it. Everything in it may be shown."""

    name: str  #: the name of the run's folder
    algorithm: str
    model: str
    clients: int
    mode: str
    statement: Statement
    verdict: Verdict
    lines: list[dict[str, Any]]  #: the lines of `metrics.jsonl`
    data: Pairs  #: the summary of the data
    settings: Pairs
    commands: Pairs  #: what a command does, and the command
    warnings: list[str]
    scores: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    gains: Clients | None = None
    no_gains: str = ""  #: why there are none
    config: str = ""  #: the content of `config.toml`

    @property
    def production(self) -> bool:
        return self.mode == "production"

    def headline(self) -> tuple[str, str]:
        """The first sentence of the verdict, and the others."""
        head, _, rest = self.verdict.sentence.removeprefix("Verdict: ").partition(". ")
        return f"{head[:1].upper()}{head[1:]}.", rest

    def data_key(self) -> tuple[tuple[str, str], ...]:
        """The sizes of the data; runs on the same data have the same."""
        names = ("clients", "samples", "features", "task", "splits")
        return tuple(pair for pair in self.data if pair[0] in names)

    @property
    def has_curve(self) -> bool:
        """Whether the loss of a round means something: not if the algorithm is exact."""
        return self.statement.releases is None


def experiment_part(run: Run) -> Part:
    """The part of an experiment: of a finished run, or of a fine-tuned result."""
    facts = run.facts
    if facts.production:
        raise PmtlError("This is a production run: only its public part may be shown.")
    more: dict[str, Any] = {}
    summary, warnings = [], []
    try:
        found = describe(run.data, steps=facts.releases is None)
        warnings = found.pop("warnings")
        summary = data_pairs(found)
        judged = verdict(run)
        more |= _gains(run, judged)
        more["scores"] = {split: views for split, views in run.evaluate().items() if views}
    except PmtlError as error:  # The data moved, or was never in a file.
        judged = Verdict(UNKNOWN, f"Verdict: nothing can be said, because of the data. {error}")
        more["no_gains"] = f"Clients cannot be compared without their rows. {error}"
    if facts.shares:
        warnings += plan_warnings(facts.plan, None)
    warnings += [sentence for sentence in (facts.stopped, facts.not_finite) if sentence]
    settings, config = _settings(run)
    return Part(
        name=_name(run),
        algorithm=facts.algorithm,
        model=facts.model,
        clients=len(facts.clients),
        mode=facts.mode,
        statement=run.privacy,
        verdict=judged,
        lines=run.metrics,
        data=summary,
        settings=settings,
        commands=_commands(run),
        warnings=list(dict.fromkeys(warnings)),
        config=config,
        **more,
    )


def plan_warnings(plan: PrivacyPlan, metrics: PrivacyPlan | None) -> list[str]:
    """Warnings that follow from the public plans of training and of released metrics, if any."""
    found = [
        about_plan.warn_of_delta(plan),
        about_plan.warn_of_empty_cohorts(plan),
        about_plan.warn_of_noisy_metrics(metrics),
    ]
    return [sentence for sentence in found if sentence]


def data_pairs(summary: Mapping[str, Any]) -> Pairs:
    """A summary of data, as `describe` returns it, or some of it, as names and values."""
    return [
        (name.replace("_", " "), as_text(value))
        for name, value in summary.items()
        if value is not None
    ]


def flat(values: Mapping[str, Any], prefix: str = "") -> Pairs:
    """Settings as names and values; tables become `table.name`. Names begin with `prefix`."""
    found = flat_row(values, prefix).items()
    return [(name, as_text(value)) for name, value in found if value is not None]


def as_text(value: Any) -> str:
    """A value of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        there = ((name, each) for name, each in value.items() if each not in (None, "", ()))
        return ", ".join(f"{name} {as_text(each)}" for name, each in there)
    if isinstance(value, (list, tuple)) and any(isinstance(each, Mapping) for each in value):
        return "; ".join(as_text(each) for each in value)
    if isinstance(value, (list, tuple)):
        return " × ".join(as_text(each) for each in value)
    return str(value)


def _name(run: Run) -> str:
    if run.path is None:
        return "run in memory"
    path = run.path.resolve()
    return f"{path.parent.parent.name}, {path.name}" if isinstance(run, Finetuned) else path.name


def _gains(run: Run, judged: Verdict) -> dict[str, Any]:
    if judged.rows is None:
        return {"no_gains": NO_ROWS}
    split: Any = judged.rows
    losses = view_losses(run, split)
    gains = client_gains(run.clients, losses, split)
    if gains is not None:
        return {"gains": gains}
    if len(losses) > 1:
        return {"no_gains": "No client has a finite loss of both models that could be compared."}
    return {"no_gains": "Every client has only one model here: there is nothing to compare."}


def _settings(run: Run) -> tuple[Pairs, str]:
    """The settings and, if it is there, the text of `config.toml`."""
    settings: Pairs = []
    if isinstance(run, Finetuned):
        names = ("method", "start", "lam", "seed", "local")
        settings += flat({name: getattr(run.about, name) for name in names}, "finetune.")
        run = run.run
    facts = run.facts
    if run.path is not None and _is_unchanged(file := RunFolder(run.path).config_file, facts):
        values = read_toml(file, CONFIGURATION)
        return settings + flat(values), file.read_text(encoding="utf-8")
    chosen = {"data": facts.data, "model": facts.model, "algorithm": facts.algorithm}
    return settings + flat(chosen | {"seed": facts.seed, "privacy": facts.plan.to_dict()}), ""


def _is_unchanged(file: Path, facts: RunFacts) -> bool:
    """Whether a run's `config.toml` is there, and is what the run was started with."""
    try:
        return file.exists() and facts.config_digest in ("", read_config(file).digest())
    except PmtlError:
        return False


def _commands(run: Run) -> Pairs:
    facts = run.facts
    if run.path is None or IN_MEMORY in (facts.data, facts.model, facts.algorithm):
        return [("This run was started by a Python program: repeat it there.", "")]
    before = run.run.path if isinstance(run, Finetuned) else run.path
    config = RunFolder(str(before)).config_file
    commands: list[tuple[str, list[Any]]] = [
        ("Run it again, to the same bits", ["train", "--config", config])
    ]
    if isinstance(run, Finetuned):
        again = ["finetune", before, "--method", run.about.method]
        commands.append(("Fine-tune again", again))
    commands += [
        ("Measure it again", ["evaluate", run.path]),
        ("Make this page again", ["report", run.path]),
    ]
    return [(what, shlex.join(["pmtl", *map(str, words)])) for what, words in commands]
