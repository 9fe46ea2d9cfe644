"""`pmtl audit`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import typer

from pmtl.audit.setup import AuditSetup
from pmtl.cli.options import AsJson, completed, console, given, print_json, with_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pmtl.audit.result import AuditResult


@with_settings("confidence", kind=AuditSetup)
def audit(
    game: str = completed(
        "all",
        "{one-round}, {canaries}, {billboard}, {default}, {metrics}, {sampler}, {server} or {all}.",
    ),
    as_json: AsJson = False,
    **settings: Any,
) -> None:
    """Attack our own training: does an attack prove a larger ε than the claimed one?

    The exit status is 0 if every attack is consistent with the claim, 1 if one refutes it.

    Example: pmtl audit --game one-round --epsilon 2 --clients 20
    """
    from pmtl.audit.games import audit as run_games
    from pmtl.audit.games import chosen
    from pmtl.views.progress import progress_bar

    setup, games = AuditSetup(**given(settings)), chosen(game)
    results = []
    with progress_bar("games", total=len(games), show=not as_json) as bar:
        for result in run_games(setup, games):
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
    headings = ("game", "worst scenario", "trials", "δ", "proved ε ≥", "claimed ε", "verdict")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if 2 <= index <= 5 else "left")
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
