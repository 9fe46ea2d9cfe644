"""`pmtl doctor`."""

from __future__ import annotations

from typing import Any

import typer

from pmtl.cli import options as opt
from pmtl.errors import PmtlError


def doctor(
    folder: str = typer.Option(
        ".", help="Where runs and ledgers are to be written.", metavar="FOLDER"
    ),
    as_json: opt.AsJson = False,
) -> None:
    """Say what is installed and usable here, and how to get what is missing.

    The exit status is 0 if pmtl can train and write here, and 2 if not. Missing extras are no
    error: each is needed for one thing only.

        pmtl doctor
        pmtl doctor --folder runs --json
    """
    from pmtl.cli.doctor.checks import examine

    found = examine(folder)
    if as_json:
        opt.print_json(found)
    else:
        _print(found)
    if found["problems"]:
        raise PmtlError(" ".join(found["problems"]))


def _print(found: dict[str, Any]) -> None:
    memory = found["memory_bytes"]
    about = "" if memory is None else f", {memory / 2**30:.0f} GiB of memory"
    typer.echo(f"pmtl {found['pmtl']}, Python {found['python']}, {found['platform']}")
    typer.echo(f"{found['threads']} processor threads{about}")
    typer.echo(f"Devices: {', '.join(found['devices']) or 'none: torch cannot be used'}")
    place = found["folder"]
    state = (
        "can be written" if place["problem"] is None else f"CANNOT be written: {place['problem']}"
    )
    typer.echo(f"Runs and ledgers in {place['path']}: {state}")
    typer.echo("\nNeeded:")
    for one in found["packages"]:
        typer.echo(f"  {_line(one)}")
    typer.echo("\nExtras:")
    for one in found["extras"]:
        state = "usable" if one["usable"] else f"missing: {', '.join(one['missing'])}"
        typer.echo(f"  {one['name']:12} {one['for']:38} {state}")
        if not one["usable"]:
            typer.echo(f"{'':15}{one['install']}")


def _line(one: dict[str, Any]) -> str:
    state = "" if one["problem"] is None else f"  {one['problem']}: see below"
    return f"{one['name']:15} {one['version'] or '-'}{state}"
