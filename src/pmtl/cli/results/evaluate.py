"""`pmtl evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pmtl.cli import options as opt
from pmtl.errors import PmtlError, how_many

if TYPE_CHECKING:
    from pmtl.runs.result import Run

#: Clients that are printed; a file has all of them.
_SHOWN = 40


def evaluate(
    path: str = opt.RUN,
    metric: str | None = opt.optional(
        "What to measure, joined by +: accuracy, balanced_accuracy, f1, auc, log_loss, "
        "brier, calibration_error, r2, mae, rmse, all, or metrics of your own as "
        "package.module:function (default: all of the task)."
    ),
    per_client: bool = opt.flag("--per-client", "A line for every client and model."),
    split: str = typer.Option(
        "test", help="With --per-client: the rows to measure on (validation or test)."
    ),
    out: str | None = opt.optional(
        "With --per-client: write the table to a .csv or .parquet file."
    ),
    as_json: opt.AsJson = False,
) -> None:
    """Measure a run's personal and shared models on test and validation rows.

    accuracy is over all rows, accuracy_mean is the mean over clients, and accuracy_worst_decile is
    over the tenth of the clients with the lowest accuracy; other measures likewise.

    Example: pmtl evaluate runs/run-1 --per-client --metric accuracy+auc --out clients.csv
    """
    from pmtl.personalize.result import load_result
    from pmtl.report.verdict import NO_ROWS

    if not per_client and (out is not None or split != "test"):
        raise PmtlError("--out and --split belong to --per-client: give it, too.")
    run = load_result(path)
    if run.facts.production and run.facts.at_site:
        opt.warn("These are exact numbers about this site's own rows: do not give them away.")
    if per_client:
        _per_client(run, metric, split, out, as_json)
        return
    scores = run.evaluate(metric or "+".join(filter(None, ("all", run.facts.metric))))
    if as_json:
        opt.print_json(scores)
        return
    if not any(scores.values()):
        typer.echo(NO_ROWS)
        return
    title = "Over all rows, the mean over clients, and the mean over the worst tenth of clients"
    columns = ("measure", "rows", "model", "all rows", "mean", "worst decile")
    opt.print_table(title, columns, _lines(scores))
    for sentence in _without_value(run, scores):
        typer.echo(sentence)


def _lines(scores: dict[str, Any]) -> list[list[str]]:
    """A line for each measure, split and view."""
    lines = []
    ends = ("", "_mean", "_worst_decile")
    for split, views in scores.items():
        for view, values in (views or {}).items():
            names = [name for name in values if not name.endswith("_clients")]
            bases = (name.removesuffix("_mean").removesuffix("_worst_decile") for name in names)
            for name in dict.fromkeys(bases):
                found = (values.get(f"{name}{end}") for end in ends)
                cells = ["" if v is None or v != v else f"{v:.4f}" for v in found]
                lines.append([name.replace("_", " "), split, view, *cells])
    return lines


def _without_value(run: Run, scores: dict[str, Any]) -> list[str]:
    """Sentences on clients that have no value of a measure."""
    from pmtl.simulation.measures import UNDEFINED

    sentences = []
    for split, views in scores.items():
        values: dict[str, Any] = next(iter((views or {}).values()), {})
        there = int((run.data.rows(split).counts > 0).sum()) if values else 0  # type: ignore[arg-type]
        for name, why in UNDEFINED.items():
            missing = there - values.get(f"{name}_clients", there)
            if missing:
                sentences.append(
                    f"{missing:,} of {there:,} clients with {split} rows "
                    f"{'has' if missing == 1 else 'have'} no {name}, because {why}."
                )
    return sentences


def _per_client(run: Run, metric: str | None, split: str, out: str | None, as_json: bool) -> None:
    table = run.per_client(metric, split)  # type: ignore[arg-type]
    if out is not None:
        from pmtl.prediction.output import write_table

        write_table(Path(out), table)
    lines = list(zip(*(column.tolist() for column in table.values()), strict=True))
    if as_json:
        clients = [dict(zip(table, line, strict=True)) for line in lines]
        opt.print_json({"split": split, "out": out, "clients": clients})
        return
    if out is not None:
        typer.echo(
            f"The measures of {how_many(len(run.clients), 'client')} on {split} rows are in {out}."
        )
        return
    cells = [
        ["" if v != v else f"{v:.4f}" if isinstance(v, float) else str(v) for v in line]
        for line in lines[:_SHOWN]
    ]
    opt.print_table(f"Measures on {split} rows", [name.replace("_", " ") for name in table], cells)
    if len(lines) > _SHOWN:
        typer.echo(f"{len(lines) - _SHOWN:,} more lines: write all of them with --out FILE.csv.")
    typer.echo("An empty cell: no rows, or a measure without a value (such as AUC with one class).")
