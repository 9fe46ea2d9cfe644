"""The verdict on a run and on a fine-tuned result."""

from __future__ import annotations

import math
from typing import Any

from pmtl.data import Split
from pmtl.personalize.methods import SELECT
from pmtl.personalize.result import Finetuned
from pmtl.privacy.plan import PrivacyPlan
from pmtl.report.verdict import (
    ALONE,
    EITHER,
    NO_ROWS,
    UNKNOWN,
    Floats,
    Paired,
    Verdict,
    judge,
    named,
)
from pmtl.runs.result import Run

#: What looking at scores costs, after training and after clients chose by themselves.
_EXACT = "Looking at exact scores is for experiments: no ε covers a decision that is made by them."
_SELECT = " If each client chooses by itself, this costs nothing (pmtl finetune --method select)."
_INSIDE = (
    "Each client chose by itself, which cost nothing; these exact scores are for experiments, and "
    "no ε covers a decision that is made by them."
)
_CHOSEN_INSIDE = (
    "This is production: every client chose by itself, and its scores were not released, so this "
    "cost nothing."
)
_MISSING = "Training alone was not measured here: pmtl compare with --algorithm local does that."


def verdict(run: Run) -> Verdict:
    """Whether sharing was worth it: share or train alone, by how much, and whether it is luck.

    In an experiment it compares the losses of the personal models, the shared one and, if the run
    has it, training alone on validation rows (test rows if there are none). In production it
    compares released averages.

    Args:
        run: a finished run, or a fine-tuned result.
    """
    if run.facts.production:
        if isinstance(run, Finetuned):
            return _nothing(_CHOSEN_INSIDE)
        return released_verdict(run.released(), run.facts.metrics_plan, run.facts.plan.clients)
    tuned = isinstance(run, Finetuned)
    # Clients chose by validation rows, so that these no longer tell how good the choice is.
    order: tuple[Split, ...] = ("test", "validation") if tuned else ("validation", "test")
    counts = {split: run.data.rows(split).counts for split in order}
    rows: Split | None = next((split for split in order if counts[split].sum()), None)
    if rows is None:
        return _nothing(NO_ROWS)
    losses = view_losses(run, rows)
    if not run.facts.shares and ALONE not in losses and not tuned:
        losses = {ALONE: losses["personal"]}
    about = _finetuned(run, rows) if isinstance(run, Finetuned) else _trained(run, rows, losses)
    cost = _INSIDE if tuned else _EXACT
    if not tuned and run.facts.releases is None:  # Clients of an exact algorithm have chosen.
        cost += _SELECT
    return judge(losses, counts[rows], rows=rows, cost=cost, **about)


def view_losses(run: Run, rows: Split) -> dict[str, Floats]:
    """The losses of what the run has, each model once."""
    losses = run.client_losses(rows)
    if not run.facts.personal and "shared" in losses:
        losses.pop("personal", None)  # It is the shared model.
    return losses


def _trained(run: Run, rows: Split, losses: dict[str, Floats]) -> dict[str, str]:
    about = {"remark": "" if ALONE in losses else _MISSING}
    if rows == "validation" and run.facts.stopped:
        about["chosen"] = "These rows also decided when to stop."
    return about


def _finetuned(run: Finetuned, rows: Split) -> dict[str, str]:
    if run.about.method != SELECT:
        return {}
    about = {"remark": "Validation rows did the choosing; their own scores are optimistic."}
    if rows == "validation":
        about = {"chosen": "Clients chose by these very rows, and there are no test rows."}
    if run.about.picks is not None:
        alone = sum(n for name, n in run.chosen.items() if name.startswith("local "))
        counted = f"{alone} of {len(run.clients)} clients chose training alone."
        about["remark"] = f"{counted} {about.get('remark', '')}".strip()
    return about


def _nothing(why: str) -> Verdict:
    return Verdict(UNKNOWN, f"Verdict: nothing can be said. {why}")


def released_verdict(
    released: list[dict[str, Any]], plan: PrivacyPlan | None, clients: int
) -> Verdict:
    """What the last released averages (`Run.released`) allow: their noise is known, the clients'
    luck is not. `plan` is the plan of the released metrics."""
    if not released:
        return _nothing("This is production, and no metrics were released, so scores cost nothing.")
    cost = "The ε of the run covers the released averages"
    if plan is not None:
        cost += f", which cost ε = {plan.epsilon():.2g} by themselves"
    last, cost = released[-1], f"{cost}."
    views = [view for view in ("personal", ALONE, "shared") if view in last]
    if len(views) < 2:
        return _nothing(f"Only the loss of {named(views[0])} was released. {cost}")
    loss, other_loss = (float(last[view]["loss_mean"]) for view in views[:2])
    error = math.sqrt(2) * float(last["noise"]["loss_mean"])  # Both have independent noise.
    gain = other_loss - loss
    paired = Paired(views[0], views[1], clients, loss, other_loss, gain, error, 1.96 * error)
    winner = paired.winner
    head = f"use {named(winner)}" if winner else "no difference beyond the noise"
    words = (
        f"In the last released averages the loss of {named(views[0])} is {loss:.4g} and the loss "
        f"of {named(views[1])} {other_loss:.4g}: {'more' if winner else 'no more'} than twice the "
        f"standard deviation of the difference's noise, {error:.2g}, explains. How much clients "
        "differ is private, so luck with clients is not counted."
    )
    if ALONE not in views:
        words += " Training alone was not measured."
    sentence = f"Verdict: {head}. {words} {cost}"
    return Verdict(winner or EITHER, sentence, "validation", False, (paired,), cost)
