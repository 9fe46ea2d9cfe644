"""Charges what a run published and its ledger lacks.

A ledger can be lost, made again or restored from an old copy. Published releases stay spent, so a
run may not continue or state an ε before its ledger has all of them. The run's folder shows the
rounds up to its checkpoint and those with a line of metrics. In production, a checkpoint also has
the number of charges so far, rounds lost to crashes included. Other releases are unknown here.
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
    """Charge the releases that the run in the folder `path` made and `ledger` lacks, and make
    `ledger` the run's own. Caps do not apply.

    Returns `charged` (the number of releases of each kind), `passed` (the caps that are now
    exceeded), `complete` (whether the run is), and the `ledger`, `run` and `path`.
    """
    folder = RunFolder.open(path)
    with files.exclusive(folder.lock_file):
        facts = folder.facts()
        if not facts.shares:
            raise PmtlError(f"The run at {path} published nothing: there is nothing to charge.")
        if facts.choice is not None:
            raise PmtlError(
                f"The run at {path} is the best of a secret number of runs, and a ledger has no "
                "entry for that: to charge only its own releases would be too little."
            )
        checkpoint = folder.checkpoint()
        if checkpoint is not None:
            files.read_tensors(folder.checkpoint_file, key=folder.key)  # This checks the digest.
        with Ledger.open(ledger, facts.clients) as opened:
            budget = Budget(opened, facts.id, facts.plan, facts.metrics_plan, reproducible=False)
            charged = _charge(budget, facts, checkpoint, folder.metrics.published())
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
    """Charge missing releases, and count them by kind. `lines` is what the metrics' lines show."""
    ledger, run = budget.ledger, facts.id
    rounds = max(lines.rounds, 0 if checkpoint is None else checkpoint.round)
    published = {TRAINING: range(rounds), validation.KIND: lines.metrics}
    counts = _counts(budget, facts, checkpoint, lines)
    ledger.declare(run, budget.planned)
    theirs = [] if checkpoint is None else list(checkpoint.history.get("charges", []))
    known = {e.kind: _known_here(ledger, run, e.kind, theirs) for e in budget.planned}
    ours = {charge.hash for charge in ledger.charges(run)}
    lacking = iter([charge for charge in theirs if charge not in ours])
    done = {}
    for event in budget.planned:
        there = known[event.kind]
        missing = [round for round in published[event.kind] if round not in set(there)]
        # Releases that a crash lost, or that were charged for the rest of a plan, have no round.
        more = counts.get(event.kind, 0) - len(there) - len(missing)
        missing += [max(rounds - 1, 0)] * max(more, 0)
        for round in missing:
            ledger.charge(run, round, event, afterwards=next(lacking, ""))
        done[event.kind] = len(missing)
    return done


def _known_here(ledger: Ledger, run: str, kind: str, theirs: list[str]) -> list[int]:
    """The rounds of a kind that the ledger charged for *this* folder. `theirs` are the folder's
    charges up to its checkpoint.

    If folder and ledger were copied and the run continued from both copies, the ledger lacks some
    charges of the folder. Then only the charges that both have are the folder's.
    """
    charges = ledger.charges(run)
    has_all = set(theirs) <= {charge.hash for charge in charges}
    return [c.round for c in charges if c.kind == kind and (has_all or c.hash in theirs)]


def _counts(
    budget: Budget, facts: RunFacts, checkpoint: Checkpoint | None, lines: Published
) -> dict[str, int]:
    """The number of releases of each kind that were charged before, according to the folder."""
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
    ledger = budget.ledger
    facts = replace(facts, ledger=str(ledger.path), ledger_id=ledger.identity)
    mark = ledger.last_mark(facts.id)
    if facts.complete:
        facts = replace(facts, **budget.spent(facts.plan.delta))
        save_statement(folder.public, statement_of(facts))
    elif checkpoint is not None and mark is not None and mark[0] > checkpoint.round:
        raise PmtlError(
            f"The missing releases are charged, but {ledger.path} knows of a checkpoint after "
            f"round {mark[0]} of this run, and the folder has an older one (round "
            f"{checkpoint.round}): it was rolled back. Put the newest checkpoint back, or start a "
            "new run."
        )
    elif checkpoint is not None and mark != (checkpoint.round, checkpoint.digest):
        budget.saved(checkpoint.round, checkpoint.digest)
    folder.save_facts(facts)
