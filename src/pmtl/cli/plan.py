"""`pmtl plan`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pmtl.cli import options as opt
from pmtl.errors import PmtlError
from pmtl.privacy.plan import PrivacyRequest


@opt.with_settings("noise", "hardened", "metrics", "loss_bound", kind=PrivacyRequest)
def plan(
    clients: opt.Clients = None,
    parameters: Annotated[
        int | None, typer.Option(help="d: how many numbers leave a client; or give --columns.")
    ] = None,
    model: Annotated[
        str, opt.completed("model", "A model of the library; its parameters are counted.")
    ] = "auto",
    columns: Annotated[int | None, typer.Option(help="How many numbers a row has.")] = None,
    classes: Annotated[
        int, typer.Option(help="Outputs of the model: classes or labels, 1 for a number.")
    ] = 1,
    rows: Annotated[
        int | None, typer.Option(help="A public guess at the rows of a typical client.")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(help="Draw what pays: a new .svg, .png or .pdf.", metavar="FILE")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Write the settings to this TOML file, too.", metavar="FILE")
    ] = None,
    as_json: opt.AsJson = False,
    **settings: Any,
) -> None:
    """Can sharing pay? From public numbers alone, before any budget is spent.

    It reads no data. It compares the noise that ε needs with the largest signal that clipped
    uploads can have, and says how many shared numbers pay, how many clients or which ε would be
    needed, and what to share instead.

        pmtl plan --clients 160 --columns 5 --epsilon 1
        pmtl plan --clients 205 --model femnist_cnn --columns 784 --classes 62 --epsilon 2
    """
    from pmtl.planning.advice import plan as make_plan

    if clients is None:
        raise PmtlError("The option --clients is missing: give how many clients there are.")
    given = {name: value for name, value in settings.items() if value is not None}
    made = make_plan(
        clients,
        parameters,
        model=model,
        columns=columns,
        classes=classes,
        privacy=PrivacyRequest(**given),
        rows=rows,
    )
    if plot is not None:
        from pmtl.report.plan_plot import plot_plan

        plot_plan(made, plot)
    if out is not None:
        from pathlib import Path

        from pmtl.storage import write_text

        write_text(Path(out), made.toml)
    if as_json:
        opt.print_json(made.to_dict())
        return
    typer.echo(f"{made}\n\nSettings for pmtl train --config:{f' {out}' if out else ''}")
    if out is None:
        typer.echo(f"\n{made.toml}")
    if plot is not None:
        typer.echo(f"Plot: {plot}")
