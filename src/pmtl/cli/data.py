"""`pmtl data …`: download the paper's data sets, and describe a federation."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pmtl.cli import options as opt
from pmtl.cli.shell.completion import completer

app = typer.Typer(help="Fetch data sets, and look at a federation of data.", no_args_is_help=True)


@app.command()
def show(
    spec: Annotated[
        str,
        typer.Argument(
            help="PATH[:key=value,…] or synthetic[:key=value,…]",
            metavar="SPEC",
            autocompletion=completer("data"),
        ),
    ],
    client_column: opt.ClientColumn = None,
    target: opt.Target = None,
    as_json: opt.AsJson = False,
) -> None:
    """Print how many clients, rows and features there are, with warnings.

    Example: pmtl data show visits.csv --client-column hospital --target outcome
    """
    from pmtl.data import describe, load

    summary = describe(load(spec, progress=not as_json, client=client_column, target=target))
    if as_json:
        opt.print_json(summary)
    else:
        _print(summary)


@app.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="femnist, femnist-nist, stackoverflow or celeba",
            metavar="NAME",
            autocompletion=completer("data set"),
        ),
    ],
    to: Annotated[
        str | None, typer.Option(help="The folder to put it in (default: data/NAME).")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Download files that exist again.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Download one of the paper's data sets from its publisher.

    Files are checked against their published SHA-256; if there is none, that of the first download
    is printed and kept beside the file. An interrupted transfer is continued. CelebA needs a
    person's agreement, so fetching it prints the steps.

    Example: pmtl data fetch femnist --to data/femnist
    """
    from pmtl.data.download import fetch as download

    fetched = download(name, to, force, progress=not as_json)
    if as_json:
        opt.print_json(fetched)
        return
    typer.echo(f"{fetched['about']}, is in {fetched['folder']}.")
    for file in fetched["files"]:
        typer.echo(f"  {file['file']}  SHA-256 {file['sha256'] or '-'} ({file['checked']})")
    typer.echo(f"Next: {fetched['next']}")


def _print(summary: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in summary.items():
        if name != "warnings" and value is not None:
            table.add_row(f"[bold]{name.replace('_', ' ')}[/bold]", escape(_text(name, value)))
    screen = opt.console()
    screen.print(table)
    for warning in summary["warnings"]:
        screen.print(f"[yellow]![/yellow] {escape(warning)}", highlight=False, soft_wrap=True)


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(key, inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return " × ".join(str(size) for size in value)
    if isinstance(value, float):
        return f"{value:.3g}" if name == "density" else f"{value:g}"
    return str(value)
