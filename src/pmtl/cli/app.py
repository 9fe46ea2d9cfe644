"""The command `pmtl`. Commands import what they need when they run, so that `--help` is fast."""

from __future__ import annotations

import io
import sys
import warnings
from typing import Annotated, Any

import typer

from pmtl._version import __version__
from pmtl.cli import audit, compare, data, finetune, paper, plan, privacy, train
from pmtl.cli.federation import commands as federation
from pmtl.cli.ledger import commands as ledger
from pmtl.cli.options import warn
from pmtl.cli.results import evaluate, predict
from pmtl.errors import Interrupted, PmtlError, PmtlWarning, is_out_of_memory

app = typer.Typer(
    name="pmtl",
    help="One private, personal model per client, for data that is split over many clients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    *(plan.plan, train.train, train.resume, evaluate.evaluate, predict.predict),
    *(finetune.finetune, compare.compare, audit.audit, paper.paper),
):
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")
app.add_typer(ledger.app, name="ledger")
app.add_typer(privacy.app, name="privacy")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pmtl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
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
        with warnings.catch_warnings():
            _as_sentences()
            app()
    except PmtlError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
    except Interrupted as stop:
        typer.secho(str(stop), err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        sentence = "There is not enough memory for this: use a smaller cohort, batch or model."
        typer.secho(f"error: {sentence}", fg="red", err=True)
        sys.exit(2)


def _as_sentences() -> None:
    """Print our own warnings without their location in the code."""
    others = warnings.showwarning

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, PmtlWarning):
            warn(message)
        else:
            others(message, category, *place, **more)

    warnings.showwarning = show


if __name__ == "__main__":
    main()
