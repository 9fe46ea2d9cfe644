"""`pmtl predict`."""

from __future__ import annotations

from typing import Any

import typer

from pmtl.cli import options as opt
from pmtl.errors import how_many


def predict(
    path: str = opt.RUN,
    data: str = typer.Option(
        ...,
        help="Rows: .csv, .tsv, .parquet, .npz (x) or .npy; FILE:client=COLUMN names the "
        "client column.",
    ),
    out: str = typer.Option(..., help="Where to write: .csv, .parquet, .npz or .npy."),
    client: str | None = opt.optional("The client whose model answers for all rows."),
    new: bool = opt.flag("--new", "The shared model answers for clients that are not in the run."),
    shared: bool = opt.flag("--shared", "The shared model answers for all clients."),
    any_client: bool = opt.flag(
        "--any-client", "With --client: also answer for rows of other clients."
    ),
    client_column: str | None = opt.optional(
        "The column that names the client (default: its name in training)."
    ),
    keep: str | None = opt.optional(
        "Columns to carry over, separated by commas (default: all that are not features)."
    ),
    probabilities: bool | None = typer.Option(
        None,
        "--probabilities/--no-probabilities",
        help="Write a probability for each class or label (default: yes, but not to .npy).",
    ),
    skip: bool = opt.flag(
        "--skip",
        "Leave rows that cannot be predicted (an empty cell, an unknown client) without "
        "an answer, instead of refusing the file.",
    ),
    as_json: opt.AsJson = False,
) -> None:
    """Predict new rows: each row with its client's personal model, or with the shared model.

    The file may have rows of many clients and be larger than memory. Columns are found by their
    names; those that are not features are carried over.

    Example: pmtl predict runs/run-1 --data new.csv --out answers.csv
    """
    from pmtl.personalize.result import load_result

    kept = None if keep is None else [name for name in keep.split(",") if name]
    predicted = load_result(path).predict_rows(
        data,
        out,
        client=client,
        new=new,
        shared=shared,
        any_client=any_client,
        skip=skip,
        client_column=client_column,
        keep=kept,
        probabilities=probabilities,
        progress=True,
    )
    opt.answer(as_json, predicted.summary, _sentence(predicted.summary, client))


def _sentence(summary: dict[str, Any], client: str | None) -> str:
    own, new, refused = (summary[key] for key in ("clients", "rows_of_new_clients", "rows_refused"))
    answered = summary["rows"] - refused
    if not answered:
        none = "The one row has no" if refused == 1 else f"None of the {refused:,} rows has an"
        return f"{none} answer in {summary['out']}."
    if client is not None:
        who = f" of client {client}"
    elif not own:
        who = " of the shared model"
    else:
        kind = "the shared model for " if summary["model"] == "shared" else ""
        who = f" of {kind}{how_many(own, 'client')}"
    verb = "prediction{} is" if answered == 1 else "predictions{} are"
    parts = [f"{answered:,} {verb.format(who)} in {summary['out']}."]
    if new and own:
        parts.append(f"{new:,} of them are of the shared model, for clients not in the run.")
    if refused:
        rows = ", ".join(map(str, summary["first_refused"][:5]))
        more = " …" if refused > 5 else ""
        have = "has" if refused == 1 else "have"
        parts.append(
            f"{how_many(refused, 'row')} {have} no answer (counting from 0: {rows}{more})."
        )
    return " ".join(parts)
