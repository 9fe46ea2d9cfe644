"""The command `pmtl federation demo`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import typer

from pmtl.cli import options as opt
from pmtl.privacy.request import DEFAULT_EPSILON


def demo(
    out: Path = typer.Option(
        Path("federation-demo"), help="A new folder for kits, models and the report."
    ),
    epsilon: float = typer.Option(DEFAULT_EPSILON, help="ε for the whole run."),
    secure: bool = opt.flag("--secure-aggregation", "Sites hide their uploads from the server."),
    as_json: opt.AsJson = False,
) -> None:
    """Run a federation of three sites on this machine, from nothing to personal models.

    It makes kits with certificates and a table of made-up visits for each site, starts the server
    and the sites as processes of their own, trains, ends them, and writes a report. It takes about
    a minute.

    Example: pmtl federation demo --epsilon 2 --out federation-demo
    """
    from pmtl.federation.nvflare import require_nvflare

    require_nvflare()
    from pmtl.federation.demo import run_demo
    from pmtl.privacy.request import PrivacyRequest
    from pmtl.privacy.statement.text import hidden
    from pmtl.report.run_verdict import verdict
    from pmtl.runs.config import TrainConfig
    from pmtl.runs.result import load_run
    from pmtl.views.progress import spinner

    sentences: list[str] = []
    config = TrainConfig(privacy=PrivacyRequest(epsilon=epsilon))
    with spinner("The federation") as note:

        def report(sentence: str) -> None:
            sentences.append(sentence)
            note(sentence)

        found = run_demo(out, config, secure, report)
    runs = {site: load_run(path) for site, path in found["sites"].items()}
    scores = {site: run.evaluate()["test"] or {} for site, run in runs.items()}
    found["verdict"] = {site: verdict(run).to_dict() for site, run in runs.items()}
    found["report"] = _report(list(found["sites"].values()), out)
    if as_json:
        opt.print_json({**found, "test": scores, "told": sentences})
        return
    views, rows = ("alone", "shared", "personal"), []
    for site, run in runs.items():
        measured = [scores[site].get(view) for view in views]
        cells = [f"{values['accuracy']:.3f}" if values else "–" for values in measured]
        rows.append((site, len(run.clients), *cells))
    opt.print_table("Accuracy on test rows", ("site", "clients", *views), rows)
    first = next(iter(runs.values()))
    typer.echo(str(first.privacy).split("\n\n")[1].replace("\n", " "))
    if first.privacy.hidden is not None:
        typer.echo(f"Against whom: {first.privacy.adversary}")
        typer.echo(hidden(first.privacy.hidden))
    for site, path in found["sites"].items():
        typer.echo(f"Site {site}: its personal models are in {path}, and nowhere else.")
    typer.echo(f"The server has what was published: {found['public']}.")
    if found["report"]:
        typer.echo(f"Report: {found['report']}")
    path, client = next(iter(found["sites"].values())), first.clients[0]
    typer.echo(f"Next: pmtl predict {quote(path)} --client {quote(client)} --data FILE --out FILE")


def _report(runs: list[str], out: Path) -> str | None:
    """The path of a report about all sites' runs; None if its extra is not installed."""
    from importlib.util import find_spec

    if find_spec("altair") is None:
        return None
    from pmtl.report.page.page import write_report

    return str(write_report(runs, str(out / "report.html")).path)
