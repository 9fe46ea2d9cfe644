"""`pmtl data …`: fetch the paper's data sets, and look at a federation before training on it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pmtl.cli import options
from pmtl.jsontext import to_json

app = typer.Typer(help="Fetch data sets, and look at a federation of data.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Fetch data sets, and look at a federation of data."""


@app.command()
def show(
    spec: Annotated[
        str, typer.Argument(help="PATH[:key=value,…] or synthetic[:key=value,…]", metavar="SPEC")
    ],
    client_column: Annotated[
        str | None, typer.Option(help="The column of a table that names the client.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="The column of a table that is to be predicted; several as a+b."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print how many clients, rows and features there are, and what to beware of."""
    from pmtl.data import describe, load

    summary = describe(load(spec, progress=not as_json, client=client_column, target=target))
    if as_json:
        typer.echo(to_json(summary, indent=2))
    else:
        _print(summary)


@app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(help="femnist, femnist-nist, stackoverflow or celeba", metavar="NAME")
    ],
    to: Annotated[
        str | None, typer.Option(help="The folder to put it in (default: data/NAME).")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Download again what is there already.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Download one of the paper's data sets from its official place.

    Files are checked against their published SHA-256; where the publisher gives none, that of the
    first download is printed and kept beside the file. A transfer that was cut off goes on where it
    stopped. CelebA asks for an agreement by a person, so fetching it prints the steps.
    """
    from pmtl.data.download import fetch as download

    came = download(name, to, force, progress=not as_json)
    if as_json:
        typer.echo(to_json(came, indent=2))
        return
    typer.echo(f"{came['about']}, is in {came['folder']}.")
    for file in came["files"]:
        typer.echo(f"  {file['file']}  SHA-256 {file['sha256'] or '-'} ({file['checked']})")
    typer.echo(f"Next: {came['next']}")


def _print(summary: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in summary.items():
        if name != "warnings" and value is not None:
            table.add_row(f"[bold]{name.replace('_', ' ')}[/bold]", escape(_text(name, value)))
    screen = options.console()
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
