"""`pmtl ledger`: the account of what has been spent on a population of clients.

A run states what that run costs. The ledger adds up all runs on the same clients, keeps a cap, and
notices when it was edited or rolled back. Nothing here imports torch, but for reading the names of
the clients in `create`.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmtl.cli.options import AsJson, console, print_json
from pmtl.errors import PmtlError

if TYPE_CHECKING:
    from pmtl.privacy.ledger import Ledger

app = typer.Typer(
    help="What all runs on the same clients have spent together, and how much they may.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Path = Annotated[str, typer.Argument(metavar="PATH", help="The ledger, a file.")]
Delta = Annotated[float | None, typer.Option(help="δ. [default: 1/(10 · clients)]")]


@app.command()
def create(
    path: Path,
    data: Annotated[
        str,
        typer.Option(
            metavar="SPEC", help="The federation whose clients it is about, as in pmtl train."
        ),
    ],
    client_column: Annotated[
        str | None, typer.Option(help="The column of a table that names the client.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The column of a table that is to be predicted.")
    ] = None,
) -> None:
    """Begin the ledger of a population.

    The population is the names of the clients in the data; only a digest of them is kept. One
    population needs one ledger, which all of its runs share: two ledgers for the same people would
    each know only half of what they paid.

    Besides PATH there will be PATH.head (the newest entry, so that restoring an old copy is
    noticed) and PATH.lock. Keep and move the first two together.

    Example: pmtl ledger create clinics.ledger --data clinics.csv:client=site,target=y
    """
    from pmtl.data import load
    from pmtl.privacy.ledger import Ledger

    names = load(data, client=client_column, target=target).clients
    with Ledger.create(path, names) as ledger:
        typer.echo(
            f"{ledger.path} is the ledger of {ledger.clients} clients. Nothing is spent yet; set a "
            f"limit with: pmtl ledger cap {path} --epsilon 2"
        )


@app.command()
def show(
    path: Path,
    delta: Annotated[
        float | None, typer.Option(help="Only this δ. [default: 1/(10 · clients), 1e-5 and 1e-6]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what has been spent, by which runs, and what is left.

    ε is about replacing one client's whole data by any other, for all charged releases together.
    It depends on δ, the chance that the promise says nothing, so several are shown.

    Example: pmtl ledger show clinics.ledger
    """
    from pmtl.privacy.ledger import Ledger

    with Ledger.open(path, write=False) as ledger:
        summary = _summary(ledger, delta)
    if as_json:
        print_json(summary)
    else:
        _print(summary)


@app.command()
def verify(path: Path, as_json: AsJson = False) -> None:
    """Check that no entry was edited, removed or reordered, and that none is missing at the end.

    Every entry holds the hash of the one before it, and PATH.head names the newest. What a check
    from inside cannot see is somebody who recomputed all of it, or who restored an old PATH
    together with its old PATH.head; compare the hash printed here with one noted elsewhere.

    The status is 0 if all is well and 2 if not.

    Example: pmtl ledger verify clinics.ledger
    """
    from pmtl.privacy.ledger import Ledger

    try:
        with Ledger.open(path, write=False) as ledger:
            last = ledger.last
    except PmtlError as error:
        if as_json:
            print_json({"verified": False, "reason": str(error)})
        raise
    if as_json:
        print_json({"verified": True, "entries": last.sequence + 1, "hash": last.hash})
    else:
        typer.echo(f"{path} is whole: {last.sequence + 1} entries, the newest is {last.hash}.")


@app.command()
def cap(
    path: Path,
    epsilon: Annotated[float, typer.Option(help="The largest ε that all runs may reach together.")],
    delta: Delta = None,
    force: Annotated[
        bool, typer.Option("--force", help="Raise a cap (inf lifts it); this stays on record.")
    ] = False,
) -> None:
    """Set the ε that may never be passed.

    A round that would pass it is refused before anything is drawn, and the last model stays. Caps
    at several δ hold side by side. Lowering one is always possible, even below what is spent.

    Example: pmtl ledger cap clinics.ledger --epsilon 4
    """
    from pmtl.privacy.ledger import Ledger
    from pmtl.privacy.plan import default_delta

    with Ledger.open(path) as ledger:
        delta = default_delta(ledger.clients) if delta is None else delta
        ledger.cap(epsilon, delta, force=force)
        limit, spent = ledger.caps().get(delta, math.inf), ledger.spent(delta)
    text = "lifted" if math.isinf(limit) else f"now ε = {limit:g}"
    typer.echo(f"The cap at δ = {delta:.3g} is {text}; {_number(spent)} is spent.")


def _summary(ledger: Ledger, delta: float | None) -> dict[str, Any]:
    from pmtl.privacy.plan import default_delta

    deltas = [default_delta(ledger.clients), 1e-5, 1e-6] if delta is None else [delta]
    caps = ledger.caps()
    spent = {value: ledger.spent(value) for value in dict.fromkeys([*deltas, *caps])}
    runs = []
    for run in ledger.runs():
        rounds, mark = ledger.charged(run), ledger.last_mark(run)
        again = sum(times - 1 for times in Counter(rounds).values())
        metrics = sum(ledger.events(run).values()) - len(rounds)
        entry = {"run": run, "charges": len(rounds), "charged_again": again, "metrics": metrics}
        runs.append(entry | {"checkpoint": None if mark is None else mark[0]})
    return {
        "path": str(ledger.path),
        "clients": ledger.clients,
        "population": ledger.population,
        "created": ledger.created,
        "entries": ledger.last.sequence + 1,
        "hash": ledger.last.hash,
        "runs": runs,
        "events": [event.to_dict() | {"count": n} for event, n in ledger.events().items()],
        "epsilon": [{"delta": value, "epsilon": spent[value]} for value in dict.fromkeys(deltas)],
        "caps": [
            {
                "delta": value,
                "epsilon": limit,
                "spent": spent[value],
                "left": max(limit - spent[value], 0.0),
            }
            for value, limit in caps.items()
        ],
    }


def _print(summary: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    screen = console()

    def say(text: str) -> None:
        screen.print(text, markup=False, soft_wrap=True)

    say(
        f"{summary['path']}: {summary['clients']} clients (population "
        f"{summary['population'][:12]}), begun {summary['created'][:19]} UTC, "
        f"{summary['entries']} entries, verified."
    )
    if summary["runs"]:
        table = Table("run", title="Charged releases", title_justify="left")
        for column in ("models", "of them again", "metrics", "last checkpoint"):
            table.add_column(column, justify="right")
        for run in summary["runs"]:
            after = "–" if run["checkpoint"] is None else f"round {run['checkpoint']}"
            numbers = (str(run[name]) for name in ("charges", "charged_again", "metrics"))
            table.add_row(escape(run["run"]), *numbers, after)
        screen.print(table)
    table = Table(title="Spent in all", title_justify="left")
    table.add_column("δ", justify="right")
    table.add_column("ε", justify="right")
    for row in summary["epsilon"]:
        table.add_row(f"{row['delta']:.3g}", _number(row["epsilon"]))
    screen.print(table)
    for row in summary["caps"]:
        say(
            f"Cap: ε = {row['epsilon']:g} at δ = {row['delta']:.3g}; {_number(row['spent'])} is "
            f"spent, {_number(row['left'])} is left."
        )
    if not summary["caps"]:
        say("There is no cap: set one with `pmtl ledger cap`.")


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.4g}"
