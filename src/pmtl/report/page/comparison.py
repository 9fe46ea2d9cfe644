"""The comparison on a page: of several runs, or the results of `pmtl compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from pmtl import storage as files
from pmtl.errors import PmtlError, how_many
from pmtl.report.page.charts import Chart, score_chart
from pmtl.report.page.part import Part
from pmtl.report.tables import (
    chosen_cells,
    chosen_notes,
    comparison_cells,
    selection_cells,
    selection_note,
)
from pmtl.runs.metrics_file import released
from pmtl.views.run_view import epsilon_number

RESULT_FILE = "results.json"
_UNFINISHED = "comparison.json"
_OTHER_DATA = (
    "These runs have different data, or data that cannot be compared here: their scores do not say "
    "which of them is better."
)


@dataclass(frozen=True)
class Table:
    """A table of words and numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1  #: the number of columns that are words


@dataclass(frozen=True)
class ComparisonPart:
    """What a page shows of a comparison."""

    title: str
    sentences: list[str]
    tables: list[Table]
    chart: Chart | None
    folder: bool = True  #: whether it is a folder of `pmtl compare`


def is_comparison(path: Path) -> bool:
    """Whether a folder belongs to a comparison."""
    return (path / _UNFINISHED).exists() or (path / RESULT_FILE).exists()


def read_comparison(path: Path) -> ComparisonPart:
    """The comparison in a folder that `pmtl compare` wrote."""
    if not (path / RESULT_FILE).exists():
        raise PmtlError(
            f"The comparison at {path} is not finished: continue it with "
            f"`pmtl resume {quote(str(path))}`."
        )
    results = files.read_json(path / RESULT_FILE)
    metric, summary = results["metric"], results["summary"]
    header, cells = comparison_cells(results)
    several = max(entry["seeds"] for entry in summary) > 1
    title = "Mean ± standard deviation over seeds" if several else "One seed"
    tables = [Table(title, header, cells)]
    lines = summary
    chosen = chosen_cells(results)
    if chosen[1]:
        tables.insert(0, Table("Every method with the setting that was chosen for it", *chosen))
        # Under the names of their methods: one line each in the chart.
        lines = [{**line, "name": line["method"]} for line in results["chosen"]]
    rows = [row for entry in lines if (row := _row(entry, metric)) is not None]
    prices = selection_cells(results)
    if prices[1]:
        tables.append(Table("What choosing between settings would cost", *prices))
    sentences = [
        *results["verdict"]["sentence"].split("\n"),
        f"{how_many(results['clients'], 'client')}; ε holds for each single run. Choosing "
        "between runs on these clients' data would cost more.",
        *chosen_notes(results),
        selection_note(results),
    ]
    return ComparisonPart(
        title=f"Comparison {path.resolve().name}",
        sentences=[sentence for sentence in sentences if sentence],
        tables=tables,
        chart=score_chart(rows, f"test {metric}", f"Test {metric} against ε") if rows else None,
    )


def compare_parts(parts: Sequence[Part]) -> ComparisonPart:
    """Several runs side by side."""
    rows: list[list[str]] = []
    scores: list[dict[str, Any]] = []
    for part in parts:
        name, value, noise = _score(part)
        epsilon = part.statement.epsilon
        shown = "unknown" if epsilon is None else epsilon_number(epsilon)
        score = "withheld" if value is None else f"{name} {value:.4f}{noise}"
        cells = [part.name, part.algorithm, f"{part.clients:,}", part.mode, shown, score]
        rows.append([*cells, part.headline()[0]])
        if value is not None and epsilon is not None and math.isfinite(epsilon) and not noise:
            of = {"method": part.name, "epsilon": float(f"{epsilon:.4g}")}
            scores.append({**of, "score": value, "what": name})
    header = ["run", "algorithm", "clients", "mode", "ε", "score", "verdict"]
    alike = len({score["what"] for score in scores}) == 1
    known = {part.data_key() for part in parts}
    return ComparisonPart(
        title="The runs side by side",
        sentences=[
            "ε holds for each single run. Together the runs cost more, and so does choosing "
            "between them by their scores (pmtl privacy selection).",
            *([_OTHER_DATA] if len(known) > 1 else []),
        ],
        tables=[Table("The runs", header, rows, words=len(header))],
        folder=False,
        chart=score_chart(scores, scores[0]["what"], "Scores of the runs")
        if alike and len(scores) > 1
        else None,
    )


def _score(part: Part) -> tuple[str, float | None, str]:
    """The name and the value of a run's score, and the noise in it."""
    split = "test" if part.scores.get("test") else "validation"
    if views := part.scores.get(split):
        values = next(iter(views.values()))
        name = next((name for name in ("accuracy", "rmse") if name in values), "loss")
        return f"{split} {name}", values[name] if math.isfinite(values[name]) else None, ""
    averages = released(part.lines)
    if not averages:
        return "", None, ""
    last = averages[-1]
    values = last.get("personal") or last.get("shared") or {}
    name = next((name for name in ("accuracy_mean", "loss_mean") if name in values), "")
    if not name:
        return "", None, ""
    words = f"validation {name.removesuffix('_mean')}, mean of clients"
    return words, float(values[name]), f" ± {last['noise'][name]:.2g}"


def _row(entry: dict[str, Any], metric: str) -> dict[str, Any] | None:
    """A line of the summary for the chart; None without a finite score or with an infinite ε."""
    score = (entry.get("test_personal") or {}).get(metric) or {"mean": None}
    epsilon = None if entry["epsilon"] is None else float(entry["epsilon"])
    if score["mean"] is None or (epsilon is not None and math.isinf(epsilon)):
        return None
    mean, spread = float(score["mean"]), {}
    if entry["seeds"] > 1:
        spread = {"low": mean - float(score["std"]), "high": mean + float(score["std"])}
    return {
        "method": entry.get("name", entry["algorithm"]),
        "epsilon": epsilon,
        "score": mean,
        **spread,
    }
