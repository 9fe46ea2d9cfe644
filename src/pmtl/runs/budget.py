"""One run's account with its clients' ledger.

A round is charged before its noise is drawn, and stays charged. After a crash, an *experiment*
repeats rounds to the same bits, which discloses nothing new: a round is charged once. In
*production* a repeated round is another release: it is charged again, and the lost round counts, so
the run ends earlier and never costs more than its plan.

A run belongs to one ledger, whose identity is in `run.json`. In production neither can be replaced
by an older copy: the ledger has a mark (round and digest) of every checkpoint, written after it,
and a checkpoint has the number and hash of the ledger's newest entry. A run continues from the
checkpoint that the newest mark names. A crash between checkpoint and mark leaves a checkpoint
without a mark: the run continues from it only if the ledger has the entry that it names, and no
later entry about the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import validation
from pmtl.privacy.ledger.events import TRAINING, GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan


class Published(NamedTuple):
    """The releases of a run, according to its folder."""

    rounds: int  #: number of rounds whose models were published
    metrics: Sequence[int]  #: the rounds after which average metrics were released


class Checkpoint(NamedTuple):
    """What identifies a checkpoint."""

    round: int
    digest: str
    history: Mapping[str, Any]  #: `Budget.history` when it was written


class Budget:
    """The account of the run with the identity `run`. `metrics` is the plan of released metrics, if
    any; `reproducible` says that a repeated round is the same release, to the last bit."""

    def __init__(
        self,
        ledger: Ledger,
        run: str,
        plan: PrivacyPlan,
        metrics: PrivacyPlan | None,
        reproducible: bool,
    ) -> None:
        self.ledger = ledger
        self.planned = {GaussianEvent.of(plan): plan.rounds}  #: all releases of the run
        if metrics is not None:
            self.planned[GaussianEvent.of(metrics, validation.KIND)] = metrics.rounds
        self._run = run
        self._reproducible = reproducible

    def refuse_unaffordable(self) -> None:
        """Refuse to start or continue a run whose releases would exceed the cap of a client."""
        left = {event: self._left(event) for event in self.planned}
        if reason := self.ledger.allows(self._run, left, self.planned):
            raise PmtlError(f"This run cannot be paid for. {reason}")

    def refuses(self, round: int, kind: str = TRAINING) -> str | None:
        """The reason why `round` must not be sampled (or evaluated); None if it may be."""
        event = self._event(kind)
        if self._replayed(round, event):
            return None
        if self._left(event) <= 0:
            return "All releases of the plan were charged; some were lost to a crash."
        return self.ledger.allows(self._run, {event: 1}, self.planned)

    def charge(self, round: int, kind: str = TRAINING) -> None:
        """Write the charge to disk, before the release is made."""
        event = self._event(kind)
        if not self._replayed(round, event):
            self.ledger.declare(self._run, self.planned)
            self.ledger.charge(self._run, round, event)

    def charge_remaining(self, round: int) -> None:
        """Charge all releases of the plan after `round`.

        Metrics decided when to stop, so only the cost of the whole plan is known, not the cost
        of the rounds that were run.
        """
        for event in self.planned:
            for ahead in range(self._left(event)):
                self.ledger.charge(self._run, round + ahead, event)

    def _event(self, kind: str) -> GaussianEvent:
        return next(event for event in self.planned if event.kind == kind)

    def _left(self, event: GaussianEvent) -> int:
        """The number of releases of this event that the plan still has."""
        return max(0, self.planned[event] - len(self.ledger.charged(self._run, event.kind)))

    def _replayed(self, round: int, event: GaussianEvent) -> bool:
        return self._reproducible and round in self.ledger.charged(self._run, event.kind)

    def history(self) -> dict[str, Any]:
        """What a checkpoint written now records of the ledger. An experiment's records nothing, so
        that its bytes do not depend on the ledger."""
        if self._reproducible:
            return {}
        last = self.ledger.last
        return {
            "run": self._run,
            "entry": [last.sequence, last.hash],
            "charged": {e.kind: len(self.ledger.charged(self._run, e.kind)) for e in self.planned},
            "charges": [charge.hash for charge in self.ledger.charges(self._run)],
        }

    def saved(self, round: int, digest: str) -> None:
        """Record in the ledger which checkpoint is on disk."""
        self.ledger.mark(self._run, round, digest)

    def check_identity(self, identity: str | None) -> None:
        """Refuse a ledger other than the one that the run began with."""
        if identity != self.ledger.identity:
            known = "does not name its ledger" if identity is None else "began with another ledger"
            raise PmtlError(
                f"{self.ledger.path} is not known to be the ledger of this run: the run {known}. "
                f"Put its ledger back. {_REBIND.format(ledger=self.ledger.path)}"
            )

    def check_resumable(self, checkpoint: Checkpoint | None, published: Published) -> None:
        """Refuse to continue if the folder or the ledger is older than the other."""
        mark, begun = self.ledger.last_mark(self._run), self.ledger.last_entry_of(self._run) >= 0
        if checkpoint is None:
            # A production run saves its start before it charges anything.
            if mark is not None or (not self._reproducible and (begun or published.rounds)):
                raise self._rolled_back("has no checkpoint")
        elif mark != (checkpoint.round, checkpoint.digest):
            if not self._reproducible:
                self._check_unmarked(checkpoint)
            elif mark is not None and checkpoint.round <= mark[0]:
                raise self._rolled_back(f"has an older or different one (round {checkpoint.round})")
        rounds = max(published.rounds, 0 if checkpoint is None else checkpoint.round)
        self.check_published(Published(rounds, published.metrics))

    def _check_unmarked(self, checkpoint: Checkpoint) -> None:
        """Mark a checkpoint without a mark, if a crash between the two explains it."""
        sequence, hash = checkpoint.history.get("entry", (-1, ""))
        if checkpoint.history.get("run") != self._run or not self.ledger.has(sequence, hash):
            raise PmtlError(
                f"The checkpoint of this run is newer than the ledger {self.ledger.path}, or "
                "belongs to another ledger: it was rolled back or made again. Restore its "
                f"newest copy. {_REBIND.format(ledger=self.ledger.path)}"
            )
        if self.ledger.last_entry_of(self._run) > sequence:
            raise self._rolled_back(f"has an older or different one (round {checkpoint.round})")
        self.saved(checkpoint.round, checkpoint.digest)

    def _rolled_back(self, what: str) -> PmtlError:
        mark = self.ledger.last_mark(self._run)
        known = "charges" if mark is None else f"a checkpoint after round {mark[0]}"
        return PmtlError(
            f"The ledger {self.ledger.path} knows of {known} of this run, but the folder {what}: "
            "it was rolled back. Put the newest checkpoint back, or start a new run."
        )

    def check_published(self, published: Published) -> None:
        """Refuse to continue, or to state an ε, if a published release is not charged."""
        training = set(range(published.rounds)) - {*self.ledger.charged(self._run)}
        metrics = {*published.metrics} - {*self.ledger.charged(self._run, validation.KIND)}
        if training or metrics:
            raise PmtlError(
                f"{len(training) + len(metrics)} of {published.rounds + len(published.metrics)} "
                f"releases of this run are not charged in {self.ledger.path}: the ledger was "
                "rolled back or made again. Restore its newest copy. "
                + _REBIND.format(ledger=self.ledger.path)
            )

    def spent(self, delta: float) -> dict[str, Any]:
        """The charges in a run's facts: all of the run (`charged`), and, for the largest account
        among the clients that the ledger was opened with, its ε by ordinary composition
        (`population_epsilon`) and the smallest cap that admits it (`population_filter`)."""
        return {
            "charged": self.ledger.events(self._run),
            "population_epsilon": self.ledger.spent(delta, own=True).epsilon,
            "population_filter": self.ledger.filtered(delta, own=True).epsilon,
        }


_REBIND = (
    "If it is lost, `pmtl ledger charge {ledger} --run FOLDER` charges the missing releases and "
    "makes this the ledger of the run."
)
