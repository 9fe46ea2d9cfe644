"""The command `pmtl`. Commands import what they need when they run, so that `--help` is fast."""

from __future__ import annotations

import io
import os
import sys
import warnings
from functools import cache
from typing import Any

import typer

from pmtl._version import __version__
from pmtl.cli import audit, compare, data, doctor, finetune, paper, plan, privacy, train
from pmtl.cli.federation import commands as federation
from pmtl.cli.ledger import commands as ledger
from pmtl.cli.options import warn
from pmtl.cli.results import evaluate, export, predict, report
from pmtl.cli.shell.mistakes import UsageMistake, refuse_repeated, sentence_of
from pmtl.errors import Interrupted, PmtlError, PmtlWarning, memory_errors
from pmtl.plugins import errors_of_own_code

app = typer.Typer(
    name="pmtl",
    help="One private, personal model per client, for data that is split over many clients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    *(plan.plan, train.train, train.resume, evaluate.evaluate, predict.predict),
    *(report.report, export.export, finetune.finetune, compare.compare, audit.audit),
    *(paper.paper, doctor.doctor),
):
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")
app.add_typer(ledger.app, name="ledger")
app.add_typer(privacy.app, name="privacy")

_NO_MEMORY = "There is not enough memory for this: use a smaller cohort, batch or model."


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pmtl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    return None


def main() -> None:
    """Run the command line: an error of the user is one sentence on stderr and status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # A terminal without ε must not stop a run.
    # Commands report this themselves, as an error.
    warnings.filterwarnings("ignore", "Training diverged", RuntimeWarning)
    try:
        with warnings.catch_warnings(), memory_errors(_NO_MEMORY), errors_of_own_code():
            _print_warnings_as_sentences()
            status = _run(sys.argv[1:])
    except PmtlError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
    except Interrupted as stop:
        typer.secho(str(stop), err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except PermissionError as error:
        what = error.filename or "A file or folder"
        typer.secho(f"error: {what} cannot be used: {error.strerror}.", fg="red", err=True)
        sys.exit(2)
    if status:
        sys.exit(status)


@cache
def _commands() -> Any:
    return typer.main.get_command(app)


def _run(typed: list[str]) -> int:
    """Run a command and return its exit status."""
    command = _commands()
    if "_PMTL_COMPLETE" not in os.environ:
        refuse_repeated(command, typed)
    try:
        status = command(typed, prog_name="pmtl", standalone_mode=False)
    except typer.Abort as error:
        raise PmtlError("Stopped before anything was done.") from error
    except UsageMistake as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(str(error))
            return 2
        raise PmtlError(sentence_of(error, command, typed)) from error
    return status if isinstance(status, int) else 0


def _print_warnings_as_sentences() -> None:
    """Print a `PmtlWarning` without its location in the code."""
    show_other = warnings.showwarning

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, PmtlWarning):
            warn(message)
        else:
            show_other(message, category, *place, **more)

    warnings.showwarning = show


if __name__ == "__main__":
    main()
