"""One run's account with its clients' ledger.

A round is charged before its noise is drawn, and a charged round stays charged whatever happens
next. What a crash does to a run then depends on its mode:

- an *experiment* replays the rounds after its last checkpoint to the same bits. Publishing the same
  bits again tells nobody anything, so a round is charged once, however often it is replayed;
- in *production* a replayed round has fresh coins and fresh noise, and is another release. It is
  charged again, and the round that was lost counts against the rounds the run may publish: the run
  ends earlier and never costs more than its plan.

A run belongs to one ledger, whose identity is in `run.json`. In production a run and its ledger
also name each other, so that neither can be replaced by an older copy:

- the ledger has a mark of every checkpoint (round and digest), put down after the checkpoint;
- a checkpoint names the newest entry of the ledger (number and hash) at the time it was written.

A run goes on from the checkpoint that its newest mark names. A crash can come between a checkpoint
and its mark; then the ledger still has the entry that the checkpoint names, and no later entry
about the run. Anything else is refused. In both modes every published round and every released
metric must be charged.
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
    """What a run's folder shows to have been published."""

    rounds: int  #: models: those of rounds 0 to `rounds` − 1
    metrics: Sequence[int]  #: average metrics: the rounds after which they were released


class Checkpoint(NamedTuple):
    """What identifies a checkpoint."""

    round: int
    digest: str
    history: Mapping[str, Any]  #: what `Budget.history` said when it was written


class Budget:
    """What a run asks of the ledger, for its models and, where it shows any, for its metrics."""

    def __init__(
        self,
        ledger: Ledger,
        run: str,
        plan: PrivacyPlan,
        metrics: PrivacyPlan | None,
        reproducible: bool,
    ) -> None:
        """`reproducible` says that a replayed round is the same release, to the last bit."""
        self.ledger = ledger
        self.planned = {GaussianEvent.of(plan): plan.rounds}  #: all releases of the run
        if metrics is not None:
            self.planned[GaussianEvent.of(metrics, validation.KIND)] = metrics.rounds
        self._run = run
        self._reproducible = reproducible

    # --- charging ---

    def refuse_unaffordable(self) -> None:
        """Refuse to begin (or go on with) a run whose releases would pass the cap of a client."""
        left = {event: self._left(event) for event in self.planned}
        if reason := self.ledger.allows(self._run, left, self.planned):
            raise PmtlError(f"This run cannot be paid for. {reason}")

    def refuses(self, round: int, kind: str = TRAINING) -> str | None:
        """Why `round` may not even be sampled (or evaluated), or None."""
        event = self._event(kind)
        if self._replayed(round, event):
            return None
        if self._left(event) <= 0:
            return "All releases of the plan were charged; some were lost to a crash."
        return self.ledger.allows(self._run, {event: 1}, self.planned)

    def charge(self, round: int, kind: str = TRAINING) -> None:
        """Put the release down, on disk, before it is made."""
        event = self._event(kind)
        if not self._replayed(round, event):
            self.ledger.declare(self._run, self.planned)
            self.ledger.charge(self._run, round, event)

    def charge_rest(self, round: int) -> None:
        """Charge all that a run would still have released after `round`.

        Whether to stop was decided by looking at metrics. What the run cost is then known for the
        plan as a whole, of which the shorter run is a part, and not for the rounds it happened to
        take.
        """
        for event in self.planned:
            for ahead in range(self._left(event)):
                self.ledger.charge(self._run, round + ahead, event)

    def _event(self, kind: str) -> GaussianEvent:
        return next(event for event in self.planned if event.kind == kind)

    def _left(self, event: GaussianEvent) -> int:
        """How many more releases of this event the plan has."""
        return max(0, self.planned[event] - len(self.ledger.charged(self._run, event.kind)))

    def _replayed(self, round: int, event: GaussianEvent) -> bool:
        return self._reproducible and round in self.ledger.charged(self._run, event.kind)

    # --- the run and its ledger ---

    def history(self) -> dict[str, Any]:
        """What a checkpoint that is written now says of the ledger. An experiment's says nothing,
        because its bytes are the same with any ledger."""
        if self._reproducible:
            return {}
        last = self.ledger.last
        return {
            "run": self._run,
            "entry": [last.sequence, last.hash],
            "charged": {e.kind: len(self.ledger.charged(self._run, e.kind)) for e in self.planned},
            "charges": self.ledger.charge_hashes(self._run),
        }

    def saved(self, round: int, digest: str) -> None:
        """Put down which checkpoint is on disk."""
        self.ledger.mark(self._run, round, digest)

    def check_identity(self, identity: str | None) -> None:
        """Refuse a ledger that is not the one that the run began with."""
        if identity != self.ledger.identity:
            known = "does not say which" if identity is None else "began with another one"
            raise PmtlError(
                f"{self.ledger.path} is not known to be the ledger of this run: the run {known}. "
                f"Put its ledger back. {_REBIND.format(ledger=self.ledger.path)}"
            )

    def check_resumable(self, checkpoint: Checkpoint | None, published: Published) -> None:
        """Refuse to continue where the folder or the ledger is older than the other."""
        mark, begun = self.ledger.last_mark(self._run), self.ledger.last_entry_of(self._run) >= 0
        if checkpoint is None:
            # A production run saves its start before it charges anything.
            if mark is not None or (not self._reproducible and (begun or published.rounds)):
                raise self._rolled_back("has no checkpoint")
        elif mark != (checkpoint.round, checkpoint.digest):
            if not self._reproducible:
                self._check_unmarked(checkpoint)
            elif mark is not None and checkpoint.round <= mark[0]:
                raise self._rolled_back(f"has an older or another one (round {checkpoint.round})")
        rounds = max(published.rounds, 0 if checkpoint is None else checkpoint.round)
        self.check_published(Published(rounds, published.metrics))

    def _check_unmarked(self, checkpoint: Checkpoint) -> None:
        """Accept a checkpoint without its mark if a crash between the two explains it; then put the
        mark down."""
        sequence, hash = checkpoint.history.get("entry", (-1, ""))
        if checkpoint.history.get("run") != self._run or not self.ledger.has(sequence, hash):
            raise PmtlError(
                f"The checkpoint of this run is newer than the ledger {self.ledger.path}, or "
                "belongs to another one: the ledger was rolled back or made anew. Restore its "
                f"newest copy. {_REBIND.format(ledger=self.ledger.path)}"
            )
        if self.ledger.last_entry_of(self._run) > sequence:
            raise self._rolled_back(f"has an older or another one (round {checkpoint.round})")
        self.saved(checkpoint.round, checkpoint.digest)

    def _rolled_back(self, what: str) -> PmtlError:
        mark = self.ledger.last_mark(self._run)
        known = "charges" if mark is None else f"a checkpoint after round {mark[0]}"
        return PmtlError(
            f"The ledger {self.ledger.path} knows of {known} of this run, but the folder {what}: "
            "it was rolled back. Put the newest checkpoint back, or start a new run."
        )

    def check_published(self, published: Published) -> None:
        """Refuse to go on, or to state an ε, where something was published that is not charged."""
        training = set(range(published.rounds)) - {*self.ledger.charged(self._run)}
        metrics = {*published.metrics} - {*self.ledger.charged(self._run, validation.KIND)}
        if training or metrics:
            raise PmtlError(
                f"{len(training) + len(metrics)} of {published.rounds + len(published.metrics)} "
                f"releases of this run are not charged in {self.ledger.path}: the ledger was "
                "rolled back or made anew. Restore its newest copy. "
                + _REBIND.format(ledger=self.ledger.path)
            )

    def check_finished(self, published: Published) -> None:
        """The same at the end, when the file must still hold what was written to it."""
        self.ledger.verify()
        self.check_published(published)

    def spent(self, delta: float) -> dict[str, Any]:
        """What a run's facts say of its charges: all of them (`charged`), and of the largest
        account among the clients that the ledger was opened with, its ε by ordinary composition
        (`population_epsilon`) and the smallest cap that admits it (`population_filter`)."""
        return {
            "charged": self.ledger.events(self._run),
            "population_epsilon": self.ledger.spent(delta, own=True).epsilon,
            "population_filter": self.ledger.filtered(delta, own=True).epsilon,
        }


_REBIND = (
    "If it is lost, `pmtl ledger charge {ledger} --run FOLDER` charges what is missing and makes "
    "this the ledger of the run."
)
