"""`pmtl export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from pmtl.cli import options as opt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pmtl.export import Exported


def export(
    path: str = opt.RUN,
    out: str = typer.Option(..., help="The new folder.", metavar="FOLDER"),
    client: str | None = opt.optional("The client whose model is exported.", metavar="NAME"),
    shared: bool = opt.flag("--shared", "The shared model."),
    all_clients: bool = opt.flag("--all", "Every client's model, each in a file of its own."),
    to: str = opt.completed(
        "onnx", "{onnx}, {torch} (torch.export) or {safetensors} (weights only)."
    ),
    licence: str = typer.Option(
        "unknown", "--license", help="The licence that the model card names."
    ),
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
    opt.answer(as_json, done.to_dict(), *_lines(done))


def _lines(done: Exported) -> Iterator[str]:
    first, *more = done.models.values()
    what = f"{1 + len(more):,} models in {done.folder / 'models'}" if more else done.folder / first
    yield (
        f"{what}: the answers are those of the run (largest difference "
        f"{done.largest_difference:.1g})."
    )
    yield f"Model card: {done.folder / 'README.md'}"
    if done.private_to is not None:
        yield f"Private to client {done.private_to}: give it to this client only."
    elif "" not in done.models:
        yield "Private: give each client only its own file."
