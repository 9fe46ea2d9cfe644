"""The options that several commands share, and how they become a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmtl.jsontext import to_json

if TYPE_CHECKING:
    from pmtl.runs.config import TrainConfig

DATA = "Data and model"
PRIVACY = "Privacy"
LOCAL = "What a client does in a round"

Config = Annotated[str | None, typer.Option(help="A TOML file; options given here override it.")]
Data = Annotated[
    str | None,
    typer.Option(
        help="PATH[:key=value,…] (.npz, .csv, .parquet, LEAF .json/.zip/folder) or synthetic.",
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
        help="logistic, linear, mlp[:hidden=64,layers=1], femnist_cnn, celeba_cnn, or "
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
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
EvaluateEvery = Annotated[
    int | None, typer.Option(help="Rounds between validations (default 10); 0 for never.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to stdout.")]


def make_config(config: str | None, **options: Any) -> TrainConfig:
    """The configuration from a file and from the options that were given."""
    from pmtl.runs.config_file import merge, parse_config, read_values

    reading = {about: options.pop(key, None) for key, about in _READING.items()}
    values = merge({} if config is None else read_values(config), nest(options))
    if any(reading.values()):
        values["data"] = with_options(values.get("data"), reading)
    return parse_config(values, "the options" if config is None else config)


def nest(options: dict[str, Any]) -> dict[str, Any]:
    """Sort flat options into the tables of a configuration file, leaving out what is None."""
    given = {key: value for key, value in options.items() if value is not None}
    nested: dict[str, Any] = {}
    for key, value in given.items():
        table = _TABLES.get(key)
        if table is None:
            nested[key] = value
        else:
            nested.setdefault(table, {})[key] = value
    return nested


#: Options about how data is read, which are part of its spec.
_READING = {"client_column": "client", "target": "target", "scale": "scale"}

_TABLES = {
    **dict.fromkeys(
        ("epsilon", "noise", "delta", "clip", "sampling", "cohort", "rounds"), "privacy"
    ),
    **dict.fromkeys(("epochs", "steps", "batch", "lr", "halve_every"), "local"),
}


def with_options(data: str | None, reading: dict[str, str | None]) -> str:
    """A data spec with further options of how to read it."""
    from pmtl.errors import PmtlError
    from pmtl.spec import format_spec, parse_spec

    if data is None:
        raise PmtlError("--client-column, --target and --scale are about --data: give it, too.")
    name, options = parse_spec(data)
    given = {key: value for key, value in reading.items() if value is not None}
    return format_spec(name, options | given)


def print_json(value: Any) -> None:
    """JSON on standard output."""
    typer.echo(to_json(value, indent=2))
