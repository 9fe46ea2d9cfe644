"""`pmtl data …`: look at a federation, describe a table, write examples, fetch data sets."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import typer

from pmtl.cli import options as opt
from pmtl.errors import PmtlError, how_many
from pmtl.spec import parse_spec
from pmtl.storage import write_text

app = typer.Typer(
    help="Look at data, describe tables, write example tables, fetch data sets.",
    no_args_is_help=True,
)


@app.command()
def show(
    spec: str = opt.completed_argument(
        "PATH[:key=value,…] or synthetic[:key=value,…]", "SPEC", "data"
    ),
    client_column: opt.ClientColumn = None,
    target: opt.Target = None,
    schema: opt.SchemaFile = None,
    as_json: opt.AsJson = False,
) -> None:
    """Print how many clients, rows and features there are, what a table's columns hold, and
    warnings.

    Example: pmtl data show visits.csv --client-column hospital --target outcome
    """
    from pmtl.data import describe, load

    given: dict[str, Any] = {"client": client_column, "target": target, "schema": schema}
    summary = describe(load(spec, progress=not as_json, **given))
    if as_json:
        opt.print_json(summary)
    else:
        _print(summary)


@app.command()
def schema(
    spec: str = typer.Argument(
        ..., help="A table: PATH[:key=value,…] (.csv, .parquet).", metavar="SPEC"
    ),
    client_column: opt.ClientColumn = None,
    target: opt.Target = None,
    out: str | None = opt.optional("Where to write the schema (default: print it)."),
    as_json: opt.AsJson = False,
) -> None:
    """Infer what the columns of a table hold, for a person to review.

    The result is a TOML file with a comment for each column. Correct it, and use it:

        pmtl data schema visits.csv --client-column hospital --target outcome --out schema.toml

        pmtl train --data visits.csv --schema schema.toml
    """
    from pmtl.data.schema.review import review

    name, given = (spec, {}) if Path(spec).exists() else parse_spec(spec)
    given |= opt.given({"client": client_column, "target": target})
    if out is not None and Path(out).exists():
        raise PmtlError(f"{out} exists, and may have been reviewed: name another file with --out.")
    found, text = review(Path(name).expanduser(), given)
    if out is not None:
        write_text(Path(out), text)
    columns, features = len(found.schema.columns), len(found.schema.feature_names)
    about = (
        f"{out} describes {how_many(columns, 'column')}, which become "
        f"{how_many(features, 'feature')}."
    )
    next_step = (
        f"Next: review {out}, then pmtl train --data {quote(name)} --schema {quote(str(out))}"
    )
    lines = (about, next_step) if out else (text.removesuffix("\n"),)
    opt.answer(as_json, {"out": out, **found.schema.to_dict(), "notes": found.notes}, *lines)


@app.command()
def example(
    out: str = typer.Option(".", help="The folder to write to."),
    as_json: opt.AsJson = False,
) -> None:
    """Write made-up tables, to try the commands of the documentation with.

    They are visits.csv with a client column and a target, rows to predict (new.csv, elsewhere.csv),
    and schema.toml, which says what the columns hold. Existing files are not replaced.

        pmtl data example

        pmtl train --data visits.csv --client-column hospital --target outcome --out run
    """
    from pmtl.cli.example import write_example

    written = write_example(Path(out).expanduser())
    opt.answer(as_json, {"files": written}, *(f"{name}: {what}" for name, what in written.items()))


@app.command()
def fetch(
    name: str = opt.completed_argument(
        "{femnist}, {femnist-nist}, {stackoverflow} or {celeba}", "NAME"
    ),
    to: str | None = opt.optional("The folder to put it in (default: data/NAME)."),
    force: bool = opt.flag("--force", "Download files that exist again."),
    as_json: opt.AsJson = False,
) -> None:
    """Download one of the paper's data sets from its publisher.

    Files are checked against their published SHA-256; if there is none, the SHA-256 of the first
    download is printed and kept beside the file. An interrupted transfer is continued. CelebA needs
    a person's agreement, so fetching it prints the steps.

    Example: pmtl data fetch femnist --to data/femnist
    """
    from pmtl.data.download import fetch as download

    fetched = download(name, to, force, progress=not as_json)
    listed = [
        f"  {file['file']}  SHA-256 {file['sha256'] or '-'} ({file['checked']})"
        for file in fetched["files"]
    ]
    where = f"{fetched['about']}, is in {fetched['folder']}."
    opt.answer(as_json, fetched, where, *listed, f"Next: {fetched['next']}")


def _print(summary: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in summary.items():
        if name not in ("warnings", "columns") and value is not None:
            table.add_row(f"[bold]{name.replace('_', ' ')}[/bold]", escape(_text(name, value)))
    screen = opt.console()
    screen.print(table)
    if columns := summary.get("columns"):
        heads = ("column", "role", "kind", "becomes", "empty cells")
        listed = Table(*heads, box=None, pad_edge=False)
        for column in columns:
            listed.add_row(*(escape(str(column[key] or "")) for key in heads))
        screen.print(listed)
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
