"""Who takes part in a round.

A cohort is drawn from the plan and from nothing else, and the accountant reads the same plan, so
what is charged is what was drawn. Three ways to draw it:

- **full**: everybody, every round;
- **poisson**: every client tosses its own coin, which lands on its side with probability q/m. The
  cohort's size varies and may be zero. One client's coin says nothing about another's, which is
  why the amplified guarantee survives clients that pool what they know;
- **fixed**: exactly q clients, as in the paper. Who is in depends on everybody at once: the other
  m − 1 clients together count their own draws and know whether the last place was mine.

In an experiment a draw is a pure function of (seed, the client's key, round). There is no state to
save, a resumed run draws the same cohorts, and listing the clients in another order draws the same
clients. Coins are secret as long as the seed is, and it could be worked out: its generator is made
to be quick, not to keep a secret. Against whoever knows it a Poisson draw is worth no more than a
fixed one.

In production (`seed` is None) every coin is the operating system's, drawn anew and kept nowhere.
"""

from __future__ import annotations

import os
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pmtl import streams
from pmtl.errors import PmtlError

if TYPE_CHECKING:
    from pmtl.privacy.plan import PrivacyPlan

STREAM = "sampling"

#: Clients whose coins are tossed at a time.
_PIECE = 2**14


class Sampler:
    """The cohorts of a plan, for one seed and one list of clients."""

    def __init__(
        self, plan: PrivacyPlan, seed: int | None, client_keys: NDArray[np.uint64]
    ) -> None:
        keys = np.array(client_keys, dtype=np.uint64)
        if keys.shape != (plan.clients,):
            raise PmtlError(
                f"The privacy plan is for {plan.clients} clients, but keys of shape {keys.shape} "
                "were given to its sampler: make a plan for the federation that is trained."
            )
        if len(np.unique(keys)) != len(keys):
            # Two clients with one key would toss one coin, and the accountant assumes two.
            raise PmtlError(
                "Two clients have the same sampling key, so their coins would not be "
                "independent: give every client a name of its own."
            )
        keys.flags.writeable = False
        self.plan = plan
        self.seed = seed
        self.client_keys = keys
        self._words: NDArray[np.uint64] | None = None

    def draw(self, round: int) -> NDArray[np.int64]:
        """The clients of `round` (counted from 0), as sorted indices into `client_keys`."""
        plan = self.plan
        if not 0 <= round < plan.rounds:
            raise PmtlError(
                f"Round {round} is outside the privacy plan, which pays for {plan.rounds} rounds "
                f"numbered 0 to {plan.rounds - 1}: make a plan with more rounds."
            )
        if plan.sampling == "full":
            return np.arange(plan.clients, dtype=np.int64)
        tickets = self._tickets(round)
        if plan.sampling == "poisson":
            # A coin is a ticket's first 53 bits as a number below 1, and counts if it is below p.
            limit = np.uint64(ceil(plan.rate * 2**53))
            return np.flatnonzero((tickets >> np.uint64(11)) < limit).astype(np.int64)
        # The lowest tickets win; equal ones (one chance in 2^64) go by index.
        last = np.partition(tickets, plan.cohort - 1)[plan.cohort - 1]
        below, level = np.flatnonzero(tickets < last), np.flatnonzero(tickets == last)
        return np.sort(np.concatenate([below, level[: plan.cohort - len(below)]])).astype(np.int64)

    def _tickets(self, round: int) -> NDArray[np.uint64]:
        """64 random bits for every client."""
        if self.seed is None:
            return np.frombuffer(os.urandom(8 * self.plan.clients), dtype=np.uint64)
        if self._words is None:
            self._words = streams.words(self.seed, STREAM, self.client_keys)
        # In pieces that stay in the processor's cache: this is the one thing in a round that grows
        # with the number of clients.
        tickets = np.empty_like(self._words)
        for first in range(0, len(tickets), _PIECE):
            some = slice(first, first + _PIECE)
            tickets[some] = streams.go_on(self._words[some], round)
        return tickets
