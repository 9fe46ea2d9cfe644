"""`pmtl audit`: attack the pipeline that trains, and compare with what it claims.

Exit status 0 means that no attack proved more than the claim, 1 that one did. An attack that fails
is no proof of privacy; one that succeeds is a proof of its absence.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from pmtl.cli.options import AsJson, Hardened, console, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pmtl.audit import AuditResult, AuditSetup

Game = Annotated[str, typer.Option(help="one-round, canaries, billboard, metrics, sampler or all.")]
Epsilon = Annotated[float, typer.Option(help="The ε that is claimed, and calibrated for.")]
Clients = Annotated[int, typer.Option(help="m: how many clients the federation has.")]
Cohort = Annotated[int | None, typer.Option(help="q: clients a round. [default: everybody]")]
Sampling = Annotated[
    str | None,
    typer.Option(help="full, poisson or fixed. [default: full if everybody, else poisson]"),
]
Rounds = Annotated[int, typer.Option(help="T: rounds of the games that train.")]
Trials = Annotated[int, typer.Option(help="Trials of the one-round game; others in proportion.")]
Delta = Annotated[float | None, typer.Option(help="δ. [default: 1/(10m)]")]
Seed = Annotated[int, typer.Option(help="Another seed plays other trials.")]
Mode = Annotated[
    str, typer.Option(help="experiment (seeded) or production (the operating system's noise).")
]


def audit(
    game: Game = "all",
    epsilon: Epsilon = 2.0,
    clients: Clients = 20,
    cohort: Cohort = None,
    sampling: Sampling = None,
    rounds: Rounds = 3,
    trials: Trials = 4000,
    delta: Delta = None,
    seed: Seed = 0,
    mode: Mode = "experiment",
    hardened: Hardened = None,
    as_json: AsJson = False,
) -> None:
    """Attack our own training: how much of the claimed ε can be proved to be lost?

    The status is 0 if every attack is consistent with the claim, 1 if one refutes it.

    Example: pmtl audit --game one-round --epsilon 2 --clients 20
    """
    from pmtl.audit import AuditSetup
    from pmtl.audit.games import GAMES, chosen
    from pmtl.progress import progress_bar

    setup = AuditSetup(
        epsilon=epsilon,
        clients=clients,
        cohort=cohort,
        sampling=sampling,
        rounds=rounds,
        trials=trials,
        delta=delta,
        seed=seed,
        mode=mode,
        hardened=hardened,
    )
    results = []
    with progress_bar("games", total=len(chosen(game)), show=not as_json) as bar:
        for name in chosen(game):
            results.append(GAMES[name](setup))
            bar.advance(name)
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
    screen.print()
    screen.print(
        textwrap.fill(
            f"Each bound holds with a confidence of {setup.confidence:.1%}. It is a lower bound: "
            "an attack that proves little may only be a weak attack, while one that proves more "
            "than the claim has found a mistake.",
            88,
        )
    )
