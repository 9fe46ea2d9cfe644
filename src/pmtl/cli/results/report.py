"""`pmtl report`."""

from __future__ import annotations

from typing import Annotated

import typer

from pmtl.cli import options as opt


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Folders of finished runs, fine-tuned results or comparisons.", metavar="RUN"
        ),
    ],
    out: Annotated[str, typer.Option(help="The page to write, .html.")] = "report.html",
    as_json: opt.AsJson = False,
) -> None:
    """Write one HTML page about runs: verdict, privacy, rounds, clients, settings.

    The page is one file and fetches nothing. Of a production run it shows only what is public.

        pmtl report runs/pmtl-1 --out report.html

        pmtl report runs/pmtl-1 runs/fedavg-1
    """
    from pmtl.report.page.page import write_report

    written = write_report(runs, out, progress=True)
    if as_json:
        opt.print_json(
            {
                "report": str(written.path),
                "bytes": written.size,
                "runs": written.runs,
                "verdicts": written.verdicts,
            }
        )
        return
    typer.echo(
        f"The report is in {written.path} ({written.size / 1e6:.1f} MB): open it in a browser."
    )
