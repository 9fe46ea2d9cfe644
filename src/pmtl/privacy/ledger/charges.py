"""Counted events: sums, and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pmtl.privacy.ledger.events import GaussianEvent

Events = Counter[GaussianEvent]


class Charge(NamedTuple):
    """A charge of a run: the kind of release, the round, and the charge's hash."""

    kind: str
    round: int
    hash: str


class Largest(NamedTuple):
    """The largest account: its ε, and how many clients have it."""

    epsilon: float
    clients: int

    def larger(self, epsilon: float, clients: int) -> Largest:
        """The larger of this account and one of `clients` other clients; equal ones are merged."""
        if epsilon == self.epsilon:
            return Largest(epsilon, self.clients + clients)
        return max(self, Largest(epsilon, clients))


def total(parts: Iterable[Mapping[GaussianEvent, int]]) -> Events:
    summed: Events = Counter()
    for part in parts:
        summed.update(part)
    return summed


def to_list(events: Mapping[GaussianEvent, int]) -> list[dict[str, Any]]:
    """Counted events for JSON."""
    return [event.to_dict() | {"count": count} for event, count in events.items() if count]


def from_list(values: Any) -> Events:
    """The counted events that `to_list` wrote; anything else is an error."""
    events: Events = Counter()
    for each in values:
        event = dict(each)
        count = event.pop("count")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{count!r} releases")
        events[GaussianEvent.from_dict(event)] += count
    return events
