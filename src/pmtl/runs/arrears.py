"""Charging afterwards what a run published and a ledger does not have.

A ledger can be lost, made anew or restored from an old copy. What was published stays spent, so a
run may not go on, and states no ε, before its ledger has all of it. `charge_missing` reads from the
run's folder what was published, charges what the ledger lacks, whatever its caps say, and makes the
ledger the run's own.

A folder shows the rounds up to its checkpoint and those with a line of metrics; a checkpoint in
production also says how often the run had been charged by then, rounds lost to crashes included.
What was published and left neither is unknown here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pmtl import storage as files
from pmtl.errors import PmtlError
from pmtl.privacy.accounting import validation
from pmtl.privacy.ledger.events import TRAINING
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.budget import Budget, Checkpoint, Published
from pmtl.runs.facts import RunFacts
from pmtl.runs.folder import RunFolder, save_statement
from pmtl.runs.result import statement_of


def charge_missing(ledger: str | Path, path: str | Path) -> dict[str, Any]:
    """Charge to `ledger` what the run in the folder `path` published and `ledger` lacks.

    Returns what was done: `charged` (how many releases of each kind), `passed` (the caps that are
    now passed), and whether the run is `complete`.
    """
    folder = RunFolder.open(path)
    with files.exclusive(folder.lock_file):
        facts = folder.facts()
        if not facts.shares:
            raise PmtlError(f"The run at {path} published nothing: there is nothing to charge.")
        checkpoint = folder.checkpoint()
        if checkpoint is not None:
            # What it says is believed below.
            files.read_tensors(folder.checkpoint_file, key=folder.key)
        with Ledger.open(ledger, facts.clients) as opened:
            budget = Budget(opened, facts.id, facts.plan, facts.metrics_plan, reproducible=False)
            charged = _charge(budget, facts, checkpoint, folder.published())
            _rebind(budget, facts, checkpoint, folder)
            passed = [
                {"delta": delta, "epsilon": limit, "spent": spent.epsilon, "clients": spent.clients}
                for delta, limit in opened.caps().items()
                if (spent := opened.filtered(delta, own=True)).epsilon > limit
            ]
            return {
                "ledger": str(opened.path),
                "run": facts.id,
                "path": str(folder.path),
                "charged": charged,
                "passed": passed,
                "complete": facts.complete,
            }


def _charge(
    budget: Budget, facts: RunFacts, checkpoint: Checkpoint | None, lines: Published
) -> dict[str, int]:
    """Charge what is missing, and count it by kind. `lines` is what the metrics' lines show."""
    ledger, run = budget.ledger, facts.id
    rounds = max(lines.rounds, 0 if checkpoint is None else checkpoint.round)
    published = {TRAINING: range(rounds), validation.KIND: lines.metrics}
    counts = _counts(budget, facts, checkpoint, lines)
    ledger.declare(run, budget.planned)
    theirs = [] if checkpoint is None else list(checkpoint.history.get("charges", []))
    known = {e.kind: _known_here(ledger, run, e.kind, theirs) for e in budget.planned}
    lacking = iter([charge for charge in theirs if charge not in ledger.charge_hashes(run)])
    done = {}
    for event in budget.planned:
        there = known[event.kind]
        missing = [round for round in published[event.kind] if round not in set(there)]
        # Releases that were lost to crashes or charged for the rest of a plan have no round of
        # their own here.
        more = counts.get(event.kind, 0) - len(there) - len(missing)
        missing += [max(rounds - 1, 0)] * max(more, 0)
        for round in missing:
            ledger.charge(run, round, event, afterwards=next(lacking, ""))
        done[event.kind] = len(missing)
    return done


def _known_here(ledger: Ledger, run: str, kind: str, theirs: list[str]) -> list[int]:
    """The rounds of a kind that the ledger charged for *this* folder, whose charges up to its
    checkpoint are `theirs`.

    A folder and its ledger may have been copied, and the run continued from both copies: then the
    ledger lacks some charges of the folder, and only those that both have are the folder's.
    """
    rounds, charges = ledger.charged(run, kind), ledger.charge_hashes(run)
    if set(theirs) <= set(charges):
        return rounds
    kinds = ledger.kinds_charged(run)
    mine = [charge for charge, its in zip(charges, kinds, strict=True) if its == kind]
    return [round for round, charge in zip(rounds, mine, strict=True) if charge in theirs]


def _counts(
    budget: Budget, facts: RunFacts, checkpoint: Checkpoint | None, lines: Published
) -> dict[str, int]:
    """How many releases of each kind were charged before, as far as the folder says."""
    if facts.complete:
        events = budget.planned if facts.charged is None else facts.charged
        return {event.kind: count for event, count in events.items()}
    if checkpoint is None or "charged" not in checkpoint.history:
        return {}
    before = checkpoint.history["charged"]
    return {
        TRAINING: before[TRAINING] + max(lines.rounds - checkpoint.round, 0),
        validation.KIND: before.get(validation.KIND, 0)
        + sum(round > checkpoint.round for round in lines.metrics),
    }


def _rebind(
    budget: Budget, facts: RunFacts, checkpoint: Checkpoint | None, folder: RunFolder
) -> None:
    """Make the ledger the ledger of the run."""
    ledger = budget.ledger
    facts = replace(facts, ledger=str(ledger.path), ledger_id=ledger.identity)
    mark = ledger.last_mark(facts.id)
    if facts.complete:
        facts = replace(facts, **budget.spent(facts.plan.delta))
        save_statement(folder.public, statement_of(facts))
    elif checkpoint is not None and mark is not None and mark[0] > checkpoint.round:
        raise PmtlError(
            f"What was missing is charged, but {ledger.path} knows of a checkpoint after round "
            f"{mark[0]} of this run, and the folder has an older one (round {checkpoint.round}): "
            "it was rolled back. Put the newest checkpoint back, or start a new run."
        )
    elif checkpoint is not None and mark != (checkpoint.round, checkpoint.digest):
        budget.saved(checkpoint.round, checkpoint.digest)
    folder.save_facts(facts)
