"""`pmtl audit`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from pmtl.cli.options import AsJson, Hardened, console, print_json
from pmtl.cli.shell.completion import completer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pmtl.audit import AuditResult, AuditSetup


def audit(
    context: typer.Context,
    game: Annotated[
        str,
        typer.Option(
            help="one-round, canaries, billboard, metrics, sampler or all.",
            autocompletion=completer("game"),
        ),
    ] = "all",
    epsilon: Annotated[
        float, typer.Option(help="The claimed ε; the noise is calibrated to it.")
    ] = 2.0,
    clients: Annotated[int, typer.Option(help="m: how many clients the federation has.")] = 20,
    cohort: Annotated[
        int | None, typer.Option(help="q: clients of a round (default: all).")
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            help="full, poisson or fixed (default: full if all, else poisson).",
            autocompletion=completer("sampling"),
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="T: rounds of the games that train.")] = 3,
    trials: Annotated[
        int, typer.Option(help="Trials of the one-round game; other games in proportion.")
    ] = 4000,
    delta: Annotated[float | None, typer.Option(help="δ (default: 1/(10m)).")] = None,
    seed: Annotated[int, typer.Option(help="Another seed plays other trials.")] = 0,
    mode: Annotated[
        str,
        typer.Option(
            help="experiment (seeded) or production (the operating system's noise).",
            autocompletion=completer("mode"),
        ),
    ] = "experiment",
    hardened: Hardened = None,
    as_json: AsJson = False,
) -> None:
    """Attack our own training: does an attack prove a larger ε than the claimed one?

    The exit status is 0 if every attack is consistent with the claim, 1 if one refutes it.

    Example: pmtl audit --game one-round --epsilon 2 --clients 20
    """
    from pmtl.audit import AuditSetup
    from pmtl.audit import audit as play
    from pmtl.audit.games import chosen
    from pmtl.progress import progress_bar

    claim = {k: v for k, v in context.params.items() if k not in ("game", "as_json")}
    setup, games = AuditSetup(**claim), chosen(game)
    results = []
    with progress_bar("games", total=len(games), show=not as_json) as bar:
        for result in play(setup, games):
            results.append(result)
            bar.advance(result.game)
    if as_json:
        print_json([result.to_dict() for result in results])
    else:
        _print_table(setup, results)
    if not all(result.passed for result in results):
        raise typer.Exit(1)


def _print_table(setup: AuditSetup, results: Sequence[AuditResult]) -> None:
    from rich.table import Table

    screen = console()
    gate = "hardened" if setup.on_grid else "ordinary"
    title = f"What the attacks prove: {setup.mode} noise, {gate} gate"
    table = Table(title=title, title_justify="left")
    for heading in ("game", "worst scenario"):
        table.add_column(heading)
    for heading in ("trials", "δ", "proved ε ≥", "claimed ε"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for result in results:
        table.add_row(
            result.game,
            result.detail["scenario"] if result.lower_bound > 0 else "–",
            f"{result.trials:,}",
            f"{result.delta:.3g}",
            f"{result.lower_bound:.3g}",
            f"{result.claim_epsilon:.3g}",
            "consistent" if result.passed else "REFUTED",
            style=None if result.passed else "bold red",
        )
    screen.print(table)
    for result in results:
        screen.print(str(result))
    note = (
        f"Each bound holds with a confidence of {setup.confidence:.1%}. It is a lower bound: an "
        "attack that proves little may only be weak, while one that proves more than the claim has "
        "found a mistake."
    )
    screen.print("", textwrap.fill(note, 88), sep="\n")
