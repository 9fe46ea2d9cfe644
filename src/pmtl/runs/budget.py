"""One run's account with a population's ledger.

A round is charged before its noise is drawn, and a charged round stays charged whatever happens
next. What a crash does to a run then depends on its mode:

- an *experiment* replays the rounds after its last checkpoint to the same bits. Publishing the same
  bits again tells nobody anything, so a round is charged once, however often it is replayed;
- in *production* a replayed round has fresh coins and fresh noise, and is another release. It is
  charged again, and the round that was lost counts against the rounds the run may publish: the run
  ends earlier and never costs more than its plan.

Checkpoints are put down in the ledger, too, so that an older one cannot be slipped in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pmtl.errors import PmtlError
from pmtl.privacy import validation
from pmtl.privacy.events import TRAINING, GaussianEvent
from pmtl.privacy.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan


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
        self._ledger = ledger
        self._run = run
        self._planned = {GaussianEvent.of(plan): plan.rounds}
        if metrics is not None:
            self._planned[GaussianEvent.of(metrics, validation.KIND)] = metrics.rounds
        self._reproducible = reproducible

    def events(self) -> dict[GaussianEvent, int]:
        """What this run has been charged for."""
        return self._ledger.events(self._run)

    def refuse_unaffordable(self) -> None:
        """Refuse to begin (or go on with) a run whose releases would pass the population's cap."""
        left = {event: self._left(event) for event in self._planned}
        training, *_ = left
        if reason := self._ledger.allows(training, left.pop(training), left):
            raise PmtlError(f"This run cannot be paid for. {reason}")

    def refuses(self, round: int, kind: str = TRAINING) -> str | None:
        """Why `round` may not even be sampled (or evaluated), or None."""
        event = self._event(kind)
        if self._replayed(round, event):
            return None
        if self._left(event) <= 0:
            return "All releases of the plan were charged; some were lost to a crash."
        return self._ledger.allows(event)

    def charge(self, round: int, kind: str = TRAINING) -> None:
        """Put the release down, on disk, before it is made."""
        event = self._event(kind)
        if not self._replayed(round, event):
            self._ledger.charge(self._run, round, event)

    def charge_rest(self, round: int) -> None:
        """Charge all that a run would still have released after `round`.

        Whether to stop was decided by looking at metrics. What the run cost is then known for the
        plan as a whole, of which the shorter run is a part, and not for the rounds it happened to
        take.
        """
        for event in self._planned:
            for ahead in range(self._left(event)):
                self._ledger.charge(self._run, round + ahead, event)

    def _event(self, kind: str) -> GaussianEvent:
        return next(event for event in self._planned if event.kind == kind)

    def _left(self, event: GaussianEvent) -> int:
        """How many more releases of this event the plan has."""
        return max(0, self._planned[event] - len(self._ledger.charged(self._run, event.kind)))

    def _replayed(self, round: int, event: GaussianEvent) -> bool:
        return self._reproducible and round in self._ledger.charged(self._run, event.kind)

    def saved(self, round: int, digest: str) -> None:
        """Put down which checkpoint is on disk."""
        self._ledger.mark(self._run, round, digest)

    def check_checkpoint(self, round: int, digest: str | None) -> None:
        """Refuse to continue from a checkpoint that is older than the ledger knows."""
        known = self._ledger.last_mark(self._run)
        if known is None:
            return
        if digest is None or round < known[0] or (round == known[0] and digest != known[1]):
            raise PmtlError(
                f"The ledger {self._ledger.path} knows of a checkpoint after round {known[0]} of "
                f"this run, but the folder has an older or another one (round {round}): it was "
                "rolled back. Put the newest checkpoint back, or start a new run."
            )

    def population_epsilon(self, delta: float) -> float:
        """The ε of everything ever charged for these clients."""
        return self._ledger.spent(delta)


@contextmanager
def open_budget(
    ledger: str | None,
    clients: Sequence[str],
    run: str,
    plan: PrivacyPlan,
    metrics: PrivacyPlan | None,
    reproducible: bool,
) -> Iterator[Budget | None]:
    """The account of a run with the ledger at a path, held for as long as the run lasts."""
    if ledger is None:
        yield None
        return
    with Ledger.open(ledger, clients) as opened:
        yield Budget(opened, run, plan, metrics, reproducible)
