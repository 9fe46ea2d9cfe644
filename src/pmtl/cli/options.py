"""The options of commands, made from declared settings (`pmtl/options.py`), and the configuration
made from options."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pmtl.cli.shell.completion import completer
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.options import Declared, Option, declared, nested, tables
from pmtl.runs.config import CONFIGURATION, DATA, Reading, TrainConfig, in_spec, merge, parse_config
from pmtl.spec import format_spec, parse_spec
from pmtl.storage import read_toml

if TYPE_CHECKING:
    from rich.console import Console

Command = TypeVar("Command", bound=Callable[..., None])


def typer_option(setting: Declared, panel: str | None = None) -> Any:
    """The Typer option of a setting."""
    help = setting.about.help
    if setting.default not in (None, False):
        help = with_default(help, setting.default)
    about = setting.about
    return typer.Option(
        help=re.sub(r"\[(?=[a-z/#@])", r"\\[", help),  # Rich would take it for markup.
        rich_help_panel=about.panel or panel,
        metavar=about.metavar,
        autocompletion=completer(setting.name, about.names),
    )


def with_default(help: str, default: Any) -> str:
    """The text of `--help` with the default; of several values all, with commas."""
    values = default if isinstance(default, tuple) else (default,)
    words = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return f"{help.removesuffix('.')} (default {words})."


def optional(help: str, used: Any = None, **more: Any) -> Any:
    """A Typer option that is None unless it is given; `used` is the default that the help names."""
    return typer.Option(None, help=help if used is None else with_default(help, used), **more)


def flag(name: str, help: str) -> Any:
    """A Typer option without a value, which is false unless it is given."""
    return typer.Option(False, name, help=help)


def completed(default: str | None, help: str, setting: str = "", used: Any = None) -> Any:
    """A Typer option whose values the shell completes: the values of a setting, or the values
    between { and } in `help`. `used` is the default that the help names."""
    help = help if used is None else with_default(help, used)
    return typer.Option(default, **_completed(help, setting))


def completed_argument(help: str, metavar: str, setting: str = "") -> Any:
    """The same for an argument, which has to be given; a "run" is a folder."""
    return typer.Argument(..., metavar=metavar, **_completed(help, setting))


def _completed(help: str, setting: str) -> dict[str, Any]:
    about = Option(help)
    known = declared(TrainConfig)
    names = known[setting].about.names if setting in known else about.names
    return {"help": about.help, "autocompletion": completer(setting, names)}


Clients = Annotated[int, typer.Option(help="m: how many clients the federation has.")]
Config = Annotated[str | None, typer.Option(help="A TOML file; options given here override it.")]
ClientColumn = Annotated[str | None, typer_option(declared(Reading)["client_column"])]
Target = Annotated[str | None, typer_option(declared(Reading)["target"])]
SchemaFile = Annotated[str | None, typer_option(declared(Reading)["schema"])]
Device = Annotated[str | None, typer_option(declared(TrainConfig)["device"])]
RUN = completed_argument("The folder of a finished run, or RUN/finetuned/NAME.", "RUN", "run")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to stdout.")]


def with_settings(*left_out: str, kind: type = TrainConfig) -> Callable[[Command], Command]:
    """Replace the `**settings` of a command by an option for each setting of `kind` that is not
    left out. An option that is not given is None."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        made = [parameter for parameter in _parameters(kind) if parameter.name not in left_out]
        command.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
        return command

    return decorate


def _parameters(kind: type, panel: str | None = None) -> Iterator[inspect.Parameter]:
    for setting in declared(kind).values():
        about = typer_option(setting, panel)
        about.default = None
        yield inspect.Parameter(
            setting.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=about,
            annotation=setting.hint | None,
        )
        if setting.name == "data":
            yield from _parameters(Reading, DATA)
    for _, inner, heading in tables(kind):
        yield from _parameters(inner, heading)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def make_config(
    file: str | None, options: Mapping[str, Any], kind: type[TrainConfig] = TrainConfig
) -> TrainConfig:
    """The configuration from a command's options, which override `file`; None is ignored."""
    options = given(options)
    values = merge({} if file is None else read_toml(file, CONFIGURATION), nested(kind, options))
    if reading := [name for name in declared(Reading) if name in options]:
        if "data" not in values:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in reading)
            raise PmtlError(f"{flags} cannot be used without --data: give it, too.")
        name, more = parse_spec(values["data"])
        more |= {in_spec(one): options[one] for one in reading}
        values["data"] = format_spec(name, more)
    return parse_config(values, file or "the options", kind)


def console() -> Console:
    """The console for tables. Output to a file or a pipe is not wrapped."""
    from rich.console import Console

    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = 240
    return made


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; all columns but the first are numbers."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(columns[0], title=title, title_justify="left")
    for column in columns[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    console().print(table)


def print_json(value: Any) -> None:
    typer.echo(to_json(value, indent=2))


def answer(as_json: bool, value: Any, *lines: str) -> None:
    """Print the answer of a command: `value` as JSON, or `lines` of text."""
    if as_json:
        print_json(value)
    else:
        typer.echo("\n".join(lines))


def warn(sentence: object) -> None:
    typer.secho(f"warning: {sentence}", fg="yellow", err=True)
