"""The options that several commands share, and how they become a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmtl.jsontext import to_json

if TYPE_CHECKING:
    from rich.console import Console

    from pmtl.runs.config import TrainConfig

DATA = "Data and model"
PRIVACY = "Privacy"
LOCAL = "What a client does in a round"

Config = Annotated[str | None, typer.Option(help="A TOML file; options given here override it.")]
Data = Annotated[
    str | None,
    typer.Option(
        help="PATH[:key=value,…] (.npz, .csv, .parquet, .h5, LEAF .json/.zip/folder) or synthetic.",
        rich_help_panel=DATA,
        metavar="SPEC",
    ),
]
ClientColumn = Annotated[
    str | None,
    typer.Option(help="The column of a table that names the client.", rich_help_panel=DATA),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="The column of a table that is to be predicted; several as a+b.", rich_help_panel=DATA
    ),
]
Scale = Annotated[
    str | None,
    typer.Option(
        help="client: every client standardises its features by its own training rows.",
        rich_help_panel=DATA,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="logistic, linear, mlp[:hidden=64,layers=1], femnist_cnn, celeba_cnn, hog, or "
        "package.module:factory; by default logistic or linear, as the target asks.",
        rich_help_panel=DATA,
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(help="δ; 1/(10 · clients) unless given.", rich_help_panel=PRIVACY),
]
Clip = Annotated[
    float | None,
    typer.Option(help="γ, the largest norm of an upload (default 0.5).", rich_help_panel=PRIVACY),
]
Sampling = Annotated[
    str | None,
    typer.Option(
        help="full, poisson or fixed; full if everybody takes part, else poisson.",
        rich_help_panel=PRIVACY,
    ),
]
Cohort = Annotated[
    int | None,
    typer.Option(help="q, clients a round; everybody unless given.", rich_help_panel=PRIVACY),
]
Rounds = Annotated[
    int | None, typer.Option(help="T, rounds (default 20).", rich_help_panel=PRIVACY)
]
Hardened = Annotated[
    bool | None,
    typer.Option(
        "--hardened/--no-hardened",
        help="Draw noise exactly, on a grid of whole numbers (default: in production).",
        rich_help_panel=PRIVACY,
    ),
]
Metrics = Annotated[
    float | None,
    typer.Option(
        help="The share of the budget for average metrics on validation rows, released through "
        "the gate (default: 0.1 in production, else 0 and metrics are exact).",
        rich_help_panel=PRIVACY,
    ),
]
LossBound = Annotated[
    float | None,
    typer.Option(
        help="The largest loss of a client in released metrics (default: twice that of guessing; "
        "for numbers 1).",
        rich_help_panel=PRIVACY,
    ),
]
Steps = Annotated[
    int | None, typer.Option(help="E, steps of SGD (default 10).", rich_help_panel=LOCAL)
]
Epochs = Annotated[
    int | None,
    typer.Option(help="Passes over a client's rows; instead of --steps.", rich_help_panel=LOCAL),
]
Batch = Annotated[
    int | None,
    typer.Option(help="Rows a step (default 10); 0 for all rows.", rich_help_panel=LOCAL),
]
Lr = Annotated[
    float | None, typer.Option(help="η, the step size (default 0.1).", rich_help_panel=LOCAL)
]
HalveEvery = Annotated[
    int | None, typer.Option(help="Halve η every so many rounds.", rich_help_panel=LOCAL)
]
Ledger = Annotated[
    str | None, typer.Option(help="The clients' ledger, which is charged; see pmtl ledger create.")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Engine = Annotated[
    str | None,
    typer.Option(
        help="axis (all clients in one computation), threads (one client per core) or auto."
    ),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile the steps of the engine axis; by default on a graphics card, if the run is "
        "long enough.",
    ),
]
EvaluateEvery = Annotated[
    int | None, typer.Option(help="Rounds between validations (default 10); 0 for never.")
]
Patience = Annotated[
    int | None,
    typer.Option(
        help="Stop after so many evaluations without a lower released loss (needs --metrics); the "
        "whole plan is charged."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to stdout.")]


def make_config(options: Mapping[str, Any]) -> TrainConfig:
    """The configuration from a command's options, on top of the file that `config` names.

    A command hands over everything it was called with; what is no setting (`out`, `as_json`) and
    what was not given (None) is left aside.
    """
    from pmtl.runs.config_file import merge, parse_config, read_values

    given = {key: value for key, value in options.items() if value is not None}
    file = given.get("config")
    values = merge({} if file is None else read_values(file), _nest(given))
    reading = {_READING[key]: value for key, value in given.items() if key in _READING}
    if reading:
        values["data"] = with_options(values.get("data"), reading)
    return parse_config(values, file or "the options")


def _nest(given: Mapping[str, Any]) -> dict[str, Any]:
    """Sort flat options into the tables of a configuration file."""
    nested: dict[str, Any] = {key: given[key] for key in _TOP if key in given}
    for table, keys in _TABLES.items():
        if inside := {key: given[key] for key in keys if key in given}:
            nested[table] = inside
    return nested


#: Settings at the top of a configuration file, and those in its tables.
_TOP = (
    *("data", "model", "algorithm", "mode", "ledger", "seed", "device", "engine", "compile"),
    *("evaluate_every", "patience", "checkpoint_seconds"),
)
_TABLES = {
    "privacy": (
        *("epsilon", "noise", "delta", "clip", "sampling", "cohort", "rounds"),
        *("hardened", "metrics", "loss_bound"),
    ),
    "local": ("steps", "epochs", "batch", "lr", "halve_every"),
}
#: Options about how data is read, which are part of its spec.
_READING = {"client_column": "client", "target": "target", "scale": "scale"}


def with_options(data: str | None, reading: Mapping[str, str]) -> str:
    """A data spec with further options of how to read it."""
    from pmtl.errors import PmtlError
    from pmtl.spec import format_spec, parse_spec

    if data is None:
        raise PmtlError("--client-column, --target and --scale are about --data: give it, too.")
    name, options = parse_spec(data)
    return format_spec(name, {**options, **reading})


def console() -> Console:
    """Where tables are printed. In a file or a pipe they are as wide as they need to be."""
    from rich.console import Console

    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = 240
    return made


def print_json(value: Any) -> None:
    """JSON on standard output."""
    typer.echo(to_json(value, indent=2))
