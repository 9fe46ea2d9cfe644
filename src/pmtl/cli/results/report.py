"""`pmtl report`."""

from __future__ import annotations

import typer

from pmtl.cli import options as opt


def report(
    runs: list[str] = typer.Argument(
        ..., help="Folders of finished runs, fine-tuned results or comparisons.", metavar="RUN"
    ),
    out: str = typer.Option("report.html", help="The page to write, .html."),
    as_json: opt.AsJson = False,
) -> None:
    """Write one HTML page about runs: verdict, privacy, rounds, clients, settings.

    The page is one file and fetches nothing. Of a production run it shows only what is public.

        pmtl report runs/pmtl-1 --out report.html

        pmtl report runs/pmtl-1 runs/fedavg-1
    """
    from pmtl.report.page.page import write_report

    written = write_report(runs, out, progress=True)
    about = {"report": str(written.path), "bytes": written.size}
    opt.answer(
        as_json,
        about | {"runs": written.runs, "verdicts": written.verdicts},
        f"The report is in {written.path} ({written.size / 1e6:.1f} MB): open it in a browser.",
    )
