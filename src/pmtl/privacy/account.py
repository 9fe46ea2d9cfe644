"""What the entries of a ledger add up to: what is spent, by whom, and what may still be charged.

Only counting; the file is `ledger.py`'s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pmtl.errors import PmtlError
from pmtl.privacy import composition
from pmtl.privacy.chain import Entry
from pmtl.privacy.events import GaussianEvent
from pmtl.privacy.ledger_file import FORMAT


class Account:
    """The sums over entries that were verified, one after the other."""

    def __init__(self, path: Path) -> None:
        """`path` is only named, in what is said."""
        self.path = path
        self._last: Entry
        self._events: Counter[GaussianEvent] = Counter()
        self._charged: dict[tuple[str, str], list[int]] = {}
        self._by_run: dict[str, Counter[GaussianEvent]] = {}
        self._marks: dict[str, tuple[int, str]] = {}
        self._caps: dict[float, float] = {}
        # For each δ, events whose total ε is known: whatever is part of them costs no more.
        self._known: dict[float, tuple[Counter[GaussianEvent], float]] = {}
        self._ahead = 1

    def apply(self, entry: Entry) -> None:
        """Add one verified entry to the totals."""
        try:
            self._count(entry)
        except (ValueError, KeyError, TypeError, PmtlError) as error:
            raise PmtlError(
                f"Entry {entry.sequence} of {self.path} cannot be understood ({error}): use the "
                "version of pmtl that wrote it."
            ) from error
        self._last = entry

    def _count(self, entry: Entry) -> None:
        values, run, round = entry.values, entry.run or "", entry.round or 0
        if entry.kind == "genesis" and entry.sequence == 0:
            if values["format"] != FORMAT:
                raise ValueError(f"format {values['format']!r}")
            self._genesis, self._created = values, entry.time
        elif entry.kind == "charge":
            event = GaussianEvent.from_dict(values)
            self._events[event] += 1
            self._by_run.setdefault(run, Counter())[event] += 1
            self._charged.setdefault((run, event.kind), []).append(round)
        elif entry.kind == "mark":
            self._marks[run] = (round, values["digest"])
        elif entry.kind == "cap":
            self._caps[float(values["delta"])] = float(values["epsilon"])
        else:
            raise ValueError(f"kind {entry.kind!r}")

    @property
    def clients(self) -> int:
        """m, the size of the population."""
        return int(self._genesis["clients"])

    @property
    def population(self) -> str:
        """SHA-256 of the sorted names of the clients."""
        return str(self._genesis["population"])

    @property
    def created(self) -> str:
        """When, in UTC."""
        return self._created

    @property
    def last(self) -> Entry:
        """The newest entry."""
        return self._last

    def events(self, run: str | None = None) -> dict[GaussianEvent, int]:
        """Everything that was charged (to a run), and how often."""
        return dict(self._events if run is None else self._by_run.get(run, Counter()))

    def charged(self, run: str, kind: str = "training") -> list[int]:
        """The rounds whose releases of a kind were charged to a run, in the order of the charges,
        repetitions included."""
        return list(self._charged.get((run, kind), ()))

    def last_mark(self, run: str) -> tuple[int, str] | None:
        """(round, digest) of the newest checkpoint of a run that was put down."""
        return self._marks.get(run)

    def runs(self) -> list[str]:
        """The runs with a charge or a mark."""
        return sorted({*self._by_run, *self._marks})

    def caps(self) -> dict[float, float]:
        """δ → the largest ε allowed there."""
        return {delta: limit for delta, limit in self._caps.items() if limit < math.inf}

    def spent(self, delta: float) -> float:
        """The ε of everything charged so far."""
        return composition.epsilon(self._events, delta)

    def would_spend(self, event: GaussianEvent, count: int, delta: float) -> float:
        """The ε after `count` more of `event`."""
        return composition.epsilon(self._with(event, count, {}), delta)

    def allows(
        self, event: GaussianEvent, count: int = 1, also: Mapping[GaussianEvent, int] | None = None
    ) -> str | None:
        """None if `count` more of `event` (and what is in `also`) may be charged, else the
        sentence why not."""
        also = also or {}
        for other in (event, *also):
            if other.clients != self.clients:
                return (
                    f"{self.path} is about {self.clients} clients, but the release is about "
                    f"{other.clients}: use the ledger of that population."
                )
        more = count + sum(also.values())
        for delta, limit in self.caps().items():
            if (total := self._at_most(event, count, also, delta, limit)) > limit:
                return (
                    f"With {more} more such release{'s' * (more > 1)}, {self.path} would reach "
                    f"ε = {total:.4g} at δ = {delta:.3g}, and its cap is {limit:g}: stop here and "
                    "keep the last model, use more noise, or raise the cap with `pmtl ledger cap`."
                )
        return None

    def _with(
        self, event: GaussianEvent, count: int, also: Mapping[GaussianEvent, int]
    ) -> Counter[GaussianEvent]:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise PmtlError(f"The number of releases must be 0 or more, but {count!r} was given.")
        return self._events + Counter({event: count}) + Counter(also)

    def _at_most(
        self,
        event: GaussianEvent,
        count: int,
        also: Mapping[GaussianEvent, int],
        delta: float,
        limit: float,
    ) -> float:
        """A bound on ε after `count` more events, good enough to compare with `limit`.

        Composing takes up to a second, and a run asks before every round. Fewer releases never
        cost more, so one answer for many rounds ahead serves all of them; how far ahead to ask
        doubles as long as it goes well.
        """
        wanted = self._with(event, count, also)
        known, total = self._known.get(delta, (Counter(), math.inf))
        if total <= limit and wanted <= known:
            return total
        for number in sorted({max(count, self._ahead), count}, reverse=True):
            known = self._with(event, number, also)
            total = composition.epsilon(known, delta)
            if total <= limit:
                self._known[delta] = known, total
                self._ahead = min(2 * max(number, 1), 1 << 20)
                return total
            self._ahead = max(self._ahead // 4, 1)
        return total
