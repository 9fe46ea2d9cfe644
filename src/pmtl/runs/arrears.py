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
from pmtl.privacy.ledger.events import TRAINING, GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.budget import Checkpoint, Published, planned_events, spent_by
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
        if folder.checkpoint_file.exists():
            # What it says is believed below.
            files.read_tensors(folder.checkpoint_file, key=folder.key)
        with Ledger.open(ledger, facts.clients) as opened:
            charged = _charge(opened, facts, folder)
            _rebind(opened, facts, folder)
            caps = opened.caps().items()
            passed = [
                {"delta": delta, "epsilon": limit, "spent": spent.epsilon, "clients": spent.clients}
                for delta, limit in caps
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


def _charge(ledger: Ledger, facts: RunFacts, folder: RunFolder) -> dict[str, int]:
    """Charge what is missing, and count it by kind."""
    planned = planned_events(facts.plan, facts.metrics_plan)
    published, counts = _published(facts, folder), _counts(facts, planned, folder)
    ledger.declare(facts.id, planned)
    theirs = _theirs(folder)
    known = {e.kind: _known_here(ledger, facts.id, e.kind, theirs) for e in planned}
    lacking = iter([charge for charge in theirs if charge not in ledger.charge_hashes(facts.id)])
    done = {}
    for event in planned:
        training = event.kind == TRAINING
        rounds = range(published.rounds) if training else published.metrics
        there = known[event.kind]
        missing = [round for round in rounds if round not in set(there)]
        # Releases that were lost to crashes or charged for the rest of a plan have no round of
        # their own here.
        more = counts.get(event.kind, 0) - len(there) - len(missing)
        missing += [max(published.rounds - 1, 0)] * max(more, 0)
        for round in missing:
            ledger.charge(facts.id, round, event, afterwards=next(lacking, ""))
        done[event.kind] = len(missing)
    return done


def _theirs(folder: RunFolder) -> list[str]:
    """The charges that were made for this folder up to its checkpoint, as far as it says."""
    checkpoint = folder.checkpoint()
    return [] if checkpoint is None else list(checkpoint.history.get("charges", []))


def _known_here(ledger: Ledger, run: str, kind: str, theirs: list[str]) -> list[int]:
    """The rounds of a kind that the ledger charged for *this* folder.

    A folder and its ledger may have been copied, and the run continued from both copies: then the
    ledger lacks some charges of the folder, and only those that both have are the folder's.
    """
    rounds, charges = ledger.charged(run, kind), ledger.charge_hashes(run)
    if set(theirs) <= set(charges):
        return rounds
    kinds = ledger.kinds_charged(run)
    mine = [charge for charge, its in zip(charges, kinds, strict=True) if its == kind]
    return [round for round, charge in zip(rounds, mine, strict=True) if charge in theirs]


def _published(facts: RunFacts, folder: RunFolder) -> Published:
    checkpoint, lines = folder.checkpoint(), folder.published()
    return Published(
        max(lines.rounds, 0 if checkpoint is None else checkpoint.round), lines.metrics
    )


def _counts(
    facts: RunFacts, planned: dict[GaussianEvent, int], folder: RunFolder
) -> dict[str, int]:
    """How many releases of each kind were charged before, as far as the folder says."""
    if facts.complete:
        events = planned if facts.charged is None else facts.charged
        return {event.kind: count for event, count in events.items()}
    checkpoint = folder.checkpoint()
    if checkpoint is None or "charged" not in checkpoint.history:
        return {}
    later = folder.published()
    return {
        TRAINING: checkpoint.history["charged"][TRAINING] + max(later.rounds - checkpoint.round, 0),
        validation.KIND: checkpoint.history["charged"].get(validation.KIND, 0)
        + sum(round > checkpoint.round for round in later.metrics),
    }


def _rebind(ledger: Ledger, facts: RunFacts, folder: RunFolder) -> None:
    """Make `ledger` the ledger of the run."""
    checkpoint = folder.checkpoint()
    facts = replace(facts, ledger=str(ledger.path), ledger_id=ledger.identity)
    if facts.complete:
        facts = replace(facts, **spent_by(ledger, facts.id, facts.plan.delta))
        save_statement(folder.public, statement_of(facts))
    elif checkpoint is not None:
        _mark(ledger, facts.id, checkpoint)
    folder.save_facts(facts)


def _mark(ledger: Ledger, run: str, checkpoint: Checkpoint) -> None:
    mark = ledger.last_mark(run)
    if mark is not None and mark[0] > checkpoint.round:
        raise PmtlError(
            f"What was missing is charged, but {ledger.path} knows of a checkpoint after round "
            f"{mark[0]} of this run, and the folder has an older one (round {checkpoint.round}): "
            "it was rolled back. Put the newest checkpoint back, or start a new run."
        )
    if mark != (checkpoint.round, checkpoint.digest):
        ledger.mark(run, checkpoint.round, checkpoint.digest)
