"""Whether a release may still be charged: the caps of a ledger, held for each client.

The rules are in `adaptive`; here they are asked for every account that a charge is about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import adaptive, composition
from pmtl.privacy.ledger.account import Account, Charges
from pmtl.privacy.ledger.charges import Events, Largest, total
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.populations import Span


class Allowance(Account):
    """An account that says whether more may be charged."""

    def __init__(self, path: Path) -> None:
        """`path` is only named, in what is said."""
        super().__init__(path)
        # By run and δ, the run's plan and its ε.
        self._known: dict[tuple[str, float], tuple[Events, float]] = {}

    def allows(
        self,
        run: str,
        more: Mapping[GaussianEvent, int],
        plan: Mapping[GaussianEvent, int] | None = None,
        caps: Mapping[float, float] | None = None,
    ) -> str | None:
        """None if `more` may be charged to a run, else the sentence why not.

        `plan` is what the run will put down as its plan if it has not done so yet. `caps` (δ → ε)
        are those of the ledger unless given.
        """
        for event, count in more.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise PmtlError(f"The number of releases must be 0 or more, but {count!r} is not.")
            if event.clients != self.clients:
                return (
                    f"{self.path} is open for {self.clients} clients, but the release is about "
                    f"{event.clients}: open it with the names of those clients."
                )
        plans = dict(self._plans)
        if plan is not None and run not in plans and self._may_plan(run, Counter(plan)):
            plans[run] = Counter(plan)
        for delta, limit in (self.caps() if caps is None else caps).items():
            over = Largest(0.0, 0)
            for span, clients in self.spans(own=True).items():
                value = self._at_most(span, run, Counter(more), plans, delta, limit)
                if value > limit:
                    over = Largest(max(over.epsilon, value), over.clients + clients)
            if over.clients:
                return self._refusal(sum(more.values()), over, delta, limit)
        return None

    def _refusal(self, more: int, over: Largest, delta: float, limit: float) -> str:
        what = "one more such release" if more == 1 else f"{more} more such releases"
        return (
            f"With {what}, {over.clients} of {self.clients} clients would pass the cap of "
            f"{self.path}: ε = {over.epsilon:.4g} at δ = {delta:.3g}, where {limit:g} is allowed "
            "(counted so that it holds however the settings were chosen). Stop here and keep the "
            "last model, use more noise, or raise the cap with `pmtl ledger cap`."
        )

    def _at_most(
        self,
        span: Span,
        run: str,
        more: Events,
        plans: Charges,
        delta: float,
        limit: float,
    ) -> float:
        """A bound on what `filter_of` would say after `more`, to be compared with `limit`."""
        before = self.account(span)
        after = {**before, run: before.get(run, Counter()) + more}
        wanted = total(after.values())
        bound = adaptive.by_orders(wanted, delta)
        if bound <= limit:
            return bound
        if self._full(after, plans):
            return min(bound, composition.epsilon(wanted, delta))
        if self._settled(after, plans):
            return min(bound, self._settled_cost(run, wanted, plans[run], delta, limit))
        return bound

    def _settled_cost(
        self, run: str, wanted: Events, plan: Events, delta: float, limit: float
    ) -> float:
        """The ordinary composition of a run's whole plan, or of a part of it that leaves no choice.

        Composing takes up to a second and a run asks before every round: the plan's cost is kept.
        """
        if (run, delta) not in self._known or self._known[run, delta][0] != plan:
            self._known[run, delta] = plan, composition.epsilon(plan, delta)
        whole = self._known[run, delta][1]
        return whole if whole <= limit else adaptive.fixed_cost(wanted, plan, delta)
