"""`pmtl export`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pmtl.cli import options as opt

if TYPE_CHECKING:
    from pmtl.export import Exported


def export(
    path: opt.RunPath,
    out: Annotated[str, typer.Option(help="The new folder.", metavar="FOLDER")],
    client: Annotated[
        str | None, typer.Option(help="The client whose model is exported.", metavar="NAME")
    ] = None,
    shared: Annotated[bool, typer.Option("--shared", help="The shared model.")] = False,
    all_clients: Annotated[
        bool, typer.Option("--all", help="Every client's model, each in a file of its own.")
    ] = False,
    to: Annotated[
        str, opt.completed("format", "onnx, torch (torch.export) or safetensors (weights only).")
    ] = "onnx",
    licence: Annotated[
        str, typer.Option("--license", help="The licence that the model card names.")
    ] = "unknown",
    as_json: opt.AsJson = False,
) -> None:
    """Write models to files that other programs run, with a model card.

    A client's scaling is inside the file. Before the command reports success, it runs every file
    and compares the answers with those of the run.

        pmtl export runs/clinics-1 --client h003 --to onnx --out h003
        pmtl export runs/clinics-1 --shared --to torch --out shared
    """
    from pmtl.export import export_model
    from pmtl.personalize.result import load_result

    done = export_model(
        load_result(path),
        out,
        client=client,
        shared=shared,
        all_clients=all_clients,
        to=to,
        licence=licence,
        progress=all_clients and not as_json,
    )
    for name, reason in done.left_out.items():
        opt.warn(f"Client {name!r} is left out. {reason}")
    if as_json:
        opt.print_json(done.to_dict())
    else:
        _print(done)


def _print(done: Exported) -> None:
    files = list(done.models.values())
    what = f"{done.folder / files[0]}" if len(files) == 1 else f"{len(files):,} models"
    where = "" if len(files) == 1 else f" in {done.folder / 'models'}"
    typer.echo(
        f"{what}{where}: the answers are those of the run (largest difference "
        f"{done.largest_difference:.1g})."
    )
    typer.echo(f"Model card: {done.folder / 'README.md'}")
    if done.private_to is not None:
        typer.echo(
            f"Private to client {done.private_to}: give it to this client and to nobody else."
        )
    elif "" not in done.models:
        typer.echo("Private: give each client its own file and no other one.")
