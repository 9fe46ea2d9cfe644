"""The sums over a ledger's entries: what is spent on each client, and what the caps allow.

Every client has an account: the charges of all populations it was in. Clients that joined and left
together share one (`populations.Span`). A cap holds for each account; reports show the largest. Two
numbers say what an account has spent:

- `spent`: composition (`composition`), valid if all settings were fixed beforehand;
- `filtered`: the smallest cap that admits the account (`adaptive`), valid however the settings were
  chosen. Caps use this number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import adaptive, composition
from pmtl.privacy.ledger.chain import Entry
from pmtl.privacy.ledger.events import (
    Charge,
    Events,
    GaussianEvent,
    Largest,
    from_list,
    total,
)
from pmtl.privacy.ledger.file import READABLE
from pmtl.privacy.ledger.populations import Change, Populations, Span, checked_names, contains

Charges = dict[str, Events]  # what was charged, by run


class Account:
    """The sums over verified entries."""

    def __init__(self, path: Path) -> None:
        """`path` is used in messages only."""
        self.path = path
        self.populations = Populations()
        self._log: list[Entry] = []
        self._charges: dict[str, list[Charge]] = {}
        self._by_population: dict[int, Charges] = {}
        self._plans: Charges = {}
        self._unplanned: set[str] = set()
        self._caps: dict[float, float] = {}
        # The clients that charges are about; None is all clients of the newest population.
        self._names: Sequence[str] | None = None
        self._number = 0  # of their population
        self._change: Change | None = None  # to be written before the next charge
        self._own: Counter[Span] | None = None  # their spans

    # --- adding up ---

    def apply(self, entry: Entry) -> None:
        """Add one verified entry to the totals."""
        try:
            self._count(entry)
        except (ValueError, KeyError, TypeError, AttributeError, PmtlError) as error:
            raise PmtlError(
                f"Entry {entry.sequence} of {self.path} cannot be understood ({error}): use the "
                "version of pmtl that wrote it."
            ) from error
        self._log.append(entry)

    def _count(self, entry: Entry) -> None:
        values, run = entry.values, entry.run or ""
        if entry.kind == "genesis" and entry.sequence == 0:
            if values["format"] not in READABLE or ("joined" in values) != (values["format"] > 1):
                raise ValueError(f"format {values['format']!r}")
            self.populations.add(0, values)
        elif entry.kind == "population":
            self.populations.add(entry.sequence, values)
            self._own = None
        elif entry.kind == "plan":
            planned = from_list(values["events"])
            if run in self._plans or not self._may_plan(run, planned):
                raise ValueError("a plan that comes too late")
            self._plans[run] = planned
        elif entry.kind == "charge":
            self._add_charge(run, entry, values)
        elif entry.kind == "mark":
            if not isinstance(values["digest"], str):
                raise ValueError("a digest that is not a text")
        elif entry.kind == "cap":
            self._caps[float(values["delta"])] = float(values["epsilon"])
        else:
            raise ValueError(f"kind {entry.kind!r}")

    def _may_plan(self, run: str, planned: Events) -> bool:
        """Whether a run may still write its plan: it has no charges, except for charges of format
        1, which had no plans but whose settings were fixed beforehand."""
        return run not in self._unplanned and Counter(self.events(run)) <= planned

    def _add_charge(self, run: str, entry: Entry, values: dict[str, Any]) -> None:
        charge_hash = values.pop("afterwards", None) or entry.hash[:16]
        number = int(values.pop("population", 0))
        event = GaussianEvent.from_dict(values)
        if self.populations.clients[number] != event.clients:
            raise ValueError("a number of clients that differs from its population's")
        if run not in self._plans and self.populations.named:
            self._unplanned.add(run)
        charge = Charge(event.kind, entry.round or 0, str(charge_hash))
        self._charges.setdefault(run, []).append(charge)
        self._by_population.setdefault(number, {}).setdefault(run, Counter())[event] += 1

    # --- reading ---

    @property
    def clients(self) -> int:
        """The number of clients that charges are about."""
        return self.population_clients() if self._names is None else len(self._names)

    def population_clients(self) -> int:
        """The number of clients of the newest population."""
        return self.populations.clients[self.populations.newest]

    @property
    def population(self) -> str:
        """SHA-256 of the sorted names of the newest population."""
        return self.populations.digests[self.populations.newest]

    @property
    def identity(self) -> str:
        """A random number that identifies this ledger."""
        return str(self._log[0].values["ledger"])

    @property
    def format(self) -> int:
        """1 if the ledger does not have the names of its clients, else 2."""
        return 2 if self.populations.named else 1

    @property
    def created(self) -> str:
        """When the ledger was created, in UTC."""
        return self._log[0].time

    @property
    def last(self) -> Entry:
        """The newest entry."""
        return self._log[-1]

    def events(self, run: str | None = None) -> dict[GaussianEvent, int]:
        """All charged events (of a run), and how often each."""
        charges = (each for runs in self._by_population.values() for each in runs.items())
        return dict(total(events for name, events in charges if run in (None, name)))

    def plan(self, run: str) -> dict[GaussianEvent, int] | None:
        """All releases that a run may make, as written before its first."""
        return dict(self._plans[run]) if run in self._plans else None

    def charged(self, run: str, kind: str = "training") -> list[int]:
        """The rounds of a run's charges of one kind, in order."""
        return [charge.round for charge in self.charges(run) if charge.kind == kind]

    def charges(self, run: str) -> list[Charge]:
        """A run's charges, in order; one added later has the hash of the charge it replaces."""
        return list(self._charges.get(run, ()))

    def last_mark(self, run: str) -> tuple[int, str] | None:
        """(round, digest) of the newest checkpoint of a run."""
        for entry in reversed(self._log):
            if entry.kind == "mark" and entry.run == run:
                return entry.round or 0, str(entry.values["digest"])
        return None

    def has(self, sequence: int, hash: str) -> bool:
        """Whether there is an entry with this number and this hash."""
        return 0 <= sequence < len(self._log) and self._log[sequence].hash == hash

    def last_entry_of(self, run: str) -> int:
        """The number of the newest entry about a run; -1 if there is none."""
        return max((entry.sequence for entry in self._log if entry.run == run), default=-1)

    def runs(self) -> list[str]:
        """The runs with a charge or a mark."""
        kinds = ("charge", "mark")
        return sorted({entry.run for entry in self._log if entry.run and entry.kind in kinds})

    def caps(self) -> dict[float, float]:
        """δ → the largest ε allowed there."""
        return {delta: limit for delta, limit in self._caps.items() if limit < math.inf}

    # --- accounts ---

    def set_clients(self, clients: Sequence[str] | None) -> None:
        """Set the clients that the next charges are about; nothing is written yet."""
        if clients is None:
            self._number = self.populations.newest
            return
        names = checked_names(clients)
        self._number, self._change = self.populations.find(names)
        if self._number < 0:
            raise PmtlError(
                f"{self.path} was made by pmtl 0.1 for {self.population_clients()} other clients, "
                "and does not have their names. Write them once, with the data of those clients: "
                f"pmtl ledger clients {self.path} --data SPEC. Then it can be used for others, too."
            )
        self._names = names

    def changes(self) -> tuple[int, int]:
        """How many clients will join and how many will leave with the next charge."""
        if self._change is None or not self.populations.named:
            return 0, 0
        return len(self._change.joined), len(self._change.left)

    def spans(self, own: bool = False) -> Counter[Span]:
        """The spans of all clients ever, or (`own`) of those that charges are about, counted."""
        if not self.populations.named:
            return Counter({(0,): self.population_clients()})
        if not own:
            return self.populations.sizes
        if self._names is None:  # A span of odd length has not ended.
            return Counter({s: n for s, n in self.populations.sizes.items() if len(s) % 2})
        if self._own is None:
            self._own = self.populations.of(self._names)
        return self._own

    def account(self, span: Span) -> Charges:
        """The charges of each client with this span, by run."""
        account: Charges = {}
        for number, charges in self._by_population.items():
            for run, events in charges.items() if contains(span, number) else ():
                account.setdefault(run, Counter()).update(events)
        return account

    def spent(self, delta: float, own: bool = False) -> Largest:
        """The ε of the largest account by composition, among the clients of `spans(own)`."""
        charged = {span: total(self.account(span).values()) for span in self.spans(own)}
        costs = {span: composition.counted(events) for span, events in charged.items()}
        largest = Largest(0.0, 0)
        for span, clients in self.spans(own).items():
            part = any(costs[span] < other for other in costs.values())
            # Composition takes up to a second. An account that is a part of another one is never
            # larger, so it is skipped. Without noise both are infinite, and both count.
            if not part or any(not z > 0 for _, z, _ in costs[span]):
                largest = largest.larger(composition.epsilon(charged[span], delta), clients)
        return largest

    def filtered(self, delta: float, own: bool = False) -> Largest:
        """The smallest cap at δ that admits every account."""
        largest = Largest(0.0, 0)
        for span, clients in self.spans(own).items():
            largest = largest.larger(self.filter_of(span, delta), clients)
        return largest

    def filter_of(self, span: Span, delta: float) -> float:
        """The smallest cap at δ that admits the account of one span."""
        return adaptive.smallest_cap(self.account(span), self._plans, delta)

    def allows(
        self,
        run: str,
        more: Mapping[GaussianEvent, int],
        plan: Mapping[GaussianEvent, int] | None = None,
        caps: Mapping[float, float] | None = None,
    ) -> str | None:
        """None if `more` releases may be charged to a run, else a sentence that says why not.
        `plan` is what the run will write, if it has not done so yet; `caps` (δ → ε) are the
        ledger's unless given."""
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
                account = self.account(span)
                account = {**account, run: account.get(run, Counter()) + Counter(more)}
                value = adaptive.smallest_cap(account, plans, delta, limit)
                if not value <= limit:  # NaN is not allowed either.
                    over = Largest(max(over.epsilon, value), over.clients + clients)
            if over.clients:
                count = sum(more.values())
                what = "one more such release" if count == 1 else f"{count} more such releases"
                return (
                    f"With {what}, {over.clients} of {self.clients} clients would pass the cap of "
                    f"{self.path}: ε = {over.epsilon:.4g} at δ = {delta:.3g}, where {limit:g} is "
                    "allowed (counted so that it holds however the settings were chosen). Stop "
                    "here and keep the last model, use more noise, or raise the cap with `pmtl "
                    "ledger cap`."
                )
        return None
