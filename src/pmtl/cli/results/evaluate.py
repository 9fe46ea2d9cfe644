"""`pmtl evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer

from pmtl.cli import options as opt


def evaluate(
    path: opt.RunPath,
    metric: Annotated[
        str | None,
        typer.Option(help="Metrics of your own, package.module:function; several joined by +."),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure a run's personal and shared models on test and validation rows.

    accuracy is over all rows, accuracy_mean is the mean over clients, and accuracy_worst_decile is
    over the tenth of the clients with the lowest accuracy.

        pmtl evaluate runs/clinics-1
    """
    from pmtl.personalize.result import load_result

    scores = load_result(path).evaluate(metric)
    if as_json:
        opt.print_json(scores)
        return
    from pmtl.report.tables import metrics_table

    opt.console().print(metrics_table(scores))
