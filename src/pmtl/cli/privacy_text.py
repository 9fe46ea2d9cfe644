"""The answers of `pmtl privacy` for people: a table of ε, and what it means in a sentence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from pmtl.cli import options

if TYPE_CHECKING:
    from pmtl.privacy.plan import PrivacyPlan

_LABELS = {
    "outsiders": "fixed size, for those who see only the models",
    "colluders": "fixed size, for clients who compare notes",
    "zero_out": "a client left out instead of replaced",
    "authors": "the authors' code (Rényi, Poisson, add or remove)",
    "full_participation": "everybody in every round, same noise",
    "paper_theorem_1": "the paper's Theorem 1, everybody in every round",
}


class _Row(NamedTuple):
    label: str
    epsilon: float | None
    bold: bool = False


def print_plan(answer: dict[str, Any], plan: PrivacyPlan, report: dict[str, Any]) -> None:
    """`answer` (what was searched for), the plan's ε, and those it may be confused with."""
    also = report["also"]
    for name, value in answer.items():
        print(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")
    rows = [_Row("this plan (the number that holds)", report["epsilon"], bold=True)]
    rows += [_Row(label, also[key]) for key, label in _LABELS.items() if key in also]
    sentences = [_meaning(plan, report["epsilon"], report["holds_against"])]
    if reason := also.get("paper_theorem_1_reason"):
        sentences.insert(0, f"The paper's Theorem 1 says nothing here: {reason}.")
    _print(plan, "counted as", rows, sentences)


def print_choice(plan: PrivacyPlan, report: dict[str, Any]) -> None:
    """One run's ε, the two prices of a choice, and the protocol."""
    count = report["candidates"]
    rows = [
        _Row("one run, its setting fixed without looking", report["one_run"]),
        _Row("one run and its validation score", report["one_run_with_score"]),
    ]
    if count == 1:
        _print(plan, "published", rows, ["One candidate is no choice: it needs no score."])
        return
    best = f"the best of {count} runs on average, the others seen by nobody"
    rows += [
        _Row(best, report["publish_best"], bold=True),
        _Row(f"all {count} runs", report["publish_all"], bold=True),
    ]
    _print(plan, "published", rows, [report["protocol"] if plan.private else _nothing(plan)])


def _print(plan: PrivacyPlan, what: str, rows: list[_Row], sentences: list[str]) -> None:
    from rich.table import Table

    table = Table(title=f"ε at δ = {plan.delta:.4g}", title_justify="left")
    table.add_column(what)
    table.add_column("ε", justify="right")
    for row in rows:
        table.add_row(row.label, _number(row.epsilon), style="bold" if row.bold else None)
    console = options.console()
    for part in (table, *sentences):
        console.print(part)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else f"{value:.4g}"


def _meaning(plan: PrivacyPlan, epsilon: float, holds_against: str) -> str:
    """What the headline says, in a sentence."""
    if math.isinf(epsilon):
        return _nothing(plan)
    factor = f"{math.exp(epsilon):.3g}" if epsilon < 20 else f"e^{epsilon:.0f}, next to no promise"
    return (
        "Replacing one client's whole data by any other changes the odds of anything that can be "
        f"concluded from {plan.rounds} published models by a factor of at most {factor}, except "
        f"with probability {plan.delta:.3g}. This holds against {holds_against}."
    )


def _nothing(plan: PrivacyPlan) -> str:
    missing = "noise" if math.isfinite(plan.clip_norm) else "clipping"
    return f"Without {missing} nothing is promised: ε is infinite."
