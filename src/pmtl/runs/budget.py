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
from pmtl.privacy.events import GaussianEvent
from pmtl.privacy.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan


class Budget:
    """What a run asks of the ledger."""

    def __init__(self, ledger: Ledger, run: str, plan: PrivacyPlan, reproducible: bool) -> None:
        self._ledger = ledger
        self._run = run
        self._plan = plan
        self._event = GaussianEvent.of(plan)
        self._reproducible = reproducible

    @property
    def charges(self) -> int:
        """How many releases this run has been charged for."""
        return len(self._ledger.charged(self._run))

    @property
    def left(self) -> int:
        """How many more releases its plan has."""
        return self._plan.rounds - self.charges

    def refuse_unaffordable(self) -> None:
        """Refuse to begin (or go on with) a run whose rounds would pass the population's cap."""
        if reason := self._ledger.allows(self._event, max(self.left, 0)):
            raise PmtlError(f"This run cannot be paid for. {reason}")

    def refuses(self, round: int) -> str | None:
        """Why `round` may not even be sampled, or None."""
        if self._reproducible and round in self._ledger.charged(self._run):
            return None
        if self.left <= 0:
            return "All releases of the plan were charged; some were lost to a crash."
        return self._ledger.allows(self._event)

    def charge(self, round: int) -> None:
        """Put the release down, on disk, before it is made."""
        if self._reproducible and round in self._ledger.charged(self._run):
            return
        self._ledger.charge(self._run, round, self._event)

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
    ledger: str | None, clients: Sequence[str], run: str, plan: PrivacyPlan, reproducible: bool
) -> Iterator[Budget | None]:
    """The account of a run with the ledger at a path, held for as long as the run lasts."""
    if ledger is None:
        yield None
        return
    with Ledger.open(ledger, clients) as opened:
        yield Budget(opened, run, plan, reproducible)
