"""The privacy part of a page: for a privacy officer, the number to quote first."""

from __future__ import annotations

import math

from pmtl.privacy.accounting import composition
from pmtl.privacy.ledger.events import from_list
from pmtl.privacy.statement import text
from pmtl.privacy.statement.statement import Statement

#: The most points of the curve of ε.
_POINTS = 25


def quotes(statement: Statement) -> list[tuple[str, str]]:
    """The numbers to quote, the most important one first, and what each of them is."""
    if statement.plan is None:
        return [("ε = 0", "Nothing left a client.")]
    if statement.epsilon is None:
        return [("ε unknown", f"ε was {statement.accountant}.")]
    if math.isinf(statement.epsilon):
        return [("NOT PRIVATE", "ε is infinite: there was no noise or no clipping.")]
    at, found = f"at δ = {statement.delta:.3g}", []
    if statement.population_epsilon is not None:
        total = f"{at}: all runs on these clients together, by their ledger"
        found.append((f"ε = {statement.population_epsilon:.4g}", total))
    run = f"{at}: this run, for each client with the whole of its data"
    found.append((f"ε = {statement.epsilon:.4g}", run))
    if statement.attacker_right is not None:
        about = "is how often an attacker's answer is right, at most; for a blind guess it is 50%"
        found.append((text.percent(statement.attacker_right), about))
    return found


def meaning(statement: Statement) -> list[str]:
    """What the numbers mean, with an example: paragraphs."""
    if statement.plan is None or statement.epsilon is None or math.isinf(statement.epsilon):
        return [text.headline(statement)]
    epsilon = statement.epsilon
    odds = math.exp(min(epsilon, 700.0))
    formal = (
        "ε limits what can be concluded about one client: if its data are replaced by any other, "
        f"nothing that can be seen becomes more than e^ε = {odds:.3g} times as likely. "
        f"With a probability of at most δ = {statement.delta:.3g} this may fail. Smaller is "
        "better for both; 0 would be no influence at all."
    )
    return [part for part in (text.example(statement), formal) if part]


def caution(statement: Statement) -> str:
    """What is to be known before a number is quoted; empty if nothing."""
    if statement.mode != "experiment" or statement.plan is None:
        return ""
    kind = "a seeded experiment" if statement.hidden is None else "an experiment"
    return (
        f"This was {kind}. The numbers describe the mechanism, and hold for real "
        "clients only in a production run."
    )


def paragraphs(statement: Statement) -> list[tuple[str, str]]:
    """The rest of the statement: headings and sentences."""
    found = [
        ("Who is protected", statement.unit),
        ("Against whom", statement.adversary),
        ("How it was reached", text.mechanism(statement)),
        *([] if statement.hidden is None else [("The server", text.hidden(statement.hidden))]),
        *(("All runs together", sentence) for sentence in text.population(statement)),
        *([] if statement.afterwards is None else [("Fine-tuning", statement.afterwards)]),
        ("What kind of run this was", text.about_mode(statement)),
    ]
    return [(heading, words[:1].upper() + words[1:]) for heading, words in found]


def guarantee_rows(statement: Statement) -> list[list[str]]:
    """The table of guarantees: δ, ε replaced, ε left out, hits at 1% false alarms."""
    return [
        [f"{g.delta:.3g}", f"{g.epsilon:.4g}", f"{g.zero_out:.4g}", text.percent(g.attacker_hits)]
        for g in statement.guarantees
        if math.isfinite(g.epsilon)
    ]


def epsilon_by_round(statement: Statement) -> list[dict[str, float]]:
    """ε after some of the rounds, the last included; empty if it is not finite or not known.
    Everything that was charged counts in equal parts for each round."""
    if not statement.charged or statement.epsilon is None or math.isinf(statement.epsilon):
        return []
    events, last = from_list(statement.charged), statement.rounds
    steps = min(last, _POINTS)
    rounds = sorted({math.ceil(last * step / steps) for step in range(1, steps + 1)})
    found = []
    for round in rounds:
        so_far = {event: math.ceil(count * round / last) for event, count in events.items()}
        epsilon = composition.epsilon(so_far, statement.delta)
        found.append({"round": round, "epsilon": epsilon})
    return found
