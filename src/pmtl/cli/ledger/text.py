"""The output of `pmtl ledger show`, for programs and for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pmtl.cli.options import console, print_table
from pmtl.errors import how_many
from pmtl.views.run_view import epsilon_number

if TYPE_CHECKING:
    from pmtl.privacy.ledger.ledger import Ledger


def summary_of(ledger: Ledger, delta: float | None) -> dict[str, Any]:
    """What was spent and by which runs, at `delta` or at several δ."""
    from pmtl.privacy.plan import default_delta

    deltas = [default_delta(ledger.clients), 1e-5, 1e-6] if delta is None else [delta]
    caps = ledger.caps()
    asked = dict.fromkeys([*deltas, *caps])
    spent = {value: ledger.spent(value) for value in asked}
    filtered = {value: ledger.filtered(value).epsilon for value in asked}
    runs = []
    for run in ledger.runs():
        rounds, mark = ledger.charged(run), ledger.last_mark(run)
        again = sum(times - 1 for times in Counter(rounds).values())
        metrics = sum(ledger.events(run).values()) - len(rounds)
        entry = {"run": run, "charges": len(rounds), "charged_again": again, "metrics": metrics}
        runs.append(entry | {"checkpoint": None if mark is None else mark[0]})
    epsilons = []
    for value in dict.fromkeys(deltas):
        largest = {"epsilon": spent[value].epsilon, "clients": spent[value].clients}
        epsilons.append({"delta": value, **largest, "any_settings": filtered[value]})
    return {
        "path": str(ledger.path),
        "clients": ledger.clients,
        "clients_ever": sum(ledger.spans().values()),
        "population": ledger.population,
        "created": ledger.created,
        "entries": ledger.last.sequence + 1,
        "hash": ledger.last.hash,
        "runs": runs,
        "events": [event.to_dict() | {"count": n} for event, n in ledger.events().items()],
        "epsilon": epsilons,
        "caps": [_cap(value, limit, filtered[value]) for value, limit in caps.items()],
    }


def accounts_of(ledger: Ledger, delta: float) -> list[dict[str, Any]]:
    """What was spent on each client at one δ, including clients that left."""
    from pmtl.privacy.accounting import composition
    from pmtl.privacy.ledger.events import total

    spans: dict[Any, dict[str, Any]] = {}
    for span in ledger.spans():
        events = total(ledger.account(span).values())
        spans[span] = {
            "present": len(span) % 2 == 1,
            "charges": sum(events.values()),
            "epsilon": composition.epsilon(events, delta),
            "any_settings": ledger.filter_of(span, delta),
        }
    names = sorted(ledger.populations.spans.items())
    return [{"client": name, "delta": delta, **spans[span]} for name, span in names]


def print_summary(summary: dict[str, Any]) -> None:
    gone = summary["clients_ever"] - summary["clients"]
    left = f" and {gone} that left" if gone else ""
    _say(
        f"{summary['path']}: {how_many(summary['clients'], 'client')}{left} "
        f"(population {summary['population'][:12]}), begun {summary['created'][:19]} UTC, "
        f"{summary['entries']} entries, verified."
    )
    runs = []
    for run in summary["runs"]:
        checkpoint = "–" if run["checkpoint"] is None else f"round {run['checkpoint']}"
        counts = (run["charges"], run["charged_again"], run["metrics"])
        runs.append((run["run"], *counts, checkpoint))
    if runs:
        columns = ("run", "models", "repeated", "metrics", "last checkpoint")
        print_table("Charged releases", columns, runs)
    headings = ("δ", "ε, settings fixed", "clients with it", "ε, any settings")
    spent = [
        (
            f"{row['delta']:.3g}",
            epsilon_number(row["epsilon"]),
            row["clients"],
            epsilon_number(row["any_settings"]),
        )
        for row in summary["epsilon"]
    ]
    print_table("The largest account", headings, spent)
    if "accounts" in summary:
        _print_accounts(summary["accounts"])
    for row in summary["caps"]:
        _say(
            f"Cap: ε = {row['epsilon']:g} at δ = {row['delta']:.3g} for each client and any "
            f"settings; {epsilon_number(row['spent'])} is spent, {epsilon_number(row['left'])} is "
            "left."
        )
    if not summary["caps"]:
        _say("There is no cap: set one with `pmtl ledger cap`.")


def _print_accounts(accounts: list[dict[str, Any]]) -> None:
    if not accounts:
        _say("The ledger does not have the names of its clients: see `pmtl ledger clients`.")
        return
    rows = [
        (
            row["client"] + ("" if row["present"] else " (left)"),
            row["charges"],
            f"{row['delta']:.3g}",
            epsilon_number(row["epsilon"]),
            epsilon_number(row["any_settings"]),
        )
        for row in accounts
    ]
    columns = ("client", "releases", "δ", "ε, settings fixed", "ε, any settings")
    print_table("The account of each client", columns, rows)


def _say(text: str) -> None:
    console().print(text, markup=False, soft_wrap=True)


def _cap(delta: float, limit: float, spent: float) -> dict[str, float]:
    left = limit - spent if limit - spent > 1e-9 * limit else 0.0  # A rounding error counts as 0.
    return {"delta": delta, "epsilon": limit, "spent": spent, "left": left}
