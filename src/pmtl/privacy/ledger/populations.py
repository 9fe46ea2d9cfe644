"""Which clients were in which population of a ledger.

A population is all clients that a run could sample. Entry 0 names the first; an entry of the kind
`population` says who joined and who left since the one before. The number of a population is the
number of its entry. Clients that joined and left at the same entries have the same account, so
there is one account for each *span* and not for each client.

A ledger of format 1 has one population and only a digest of its names. The first entry of the kind
`population` in such a ledger adds those names.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pmtl.errors import PmtlError
from pmtl.privacy.ledger.chain import canonical

Span = tuple[int, ...]
"""The numbers of the populations at which a client joined, left, joined again, and so on."""


class Change(NamedTuple):
    """The difference between the newest population and another, as the values of an entry."""

    joined: list[str]
    left: list[str]
    clients: int
    population: str  #: the digest of its names


class Populations:
    """The populations of a ledger, from the first on."""

    def __init__(self) -> None:
        self.newest = 0
        self.named = False
        self.clients: dict[int, int] = {}  #: the number of clients by the population's number
        self.digests: dict[int, str] = {}
        self.spans: dict[str, Span] = {}  #: of every client that was ever in a population
        self.sizes: Counter[Span] = Counter()  #: how many clients have a span
        self._one: dict[Span, Span] = {}  # equal spans are one object

    def add(self, number: int, values: Mapping[str, Any]) -> None:
        """Add an entry; ValueError if it does not fit the entries before it."""
        clients, digest = values["clients"], values["population"]
        if not isinstance(clients, int) or clients < 1 or not isinstance(digest, str):
            raise ValueError("a population without its number or digest of clients")
        if number == 0 and "joined" not in values:  # format 1
            self.clients[0], self.digests[0] = clients, digest
            return
        joined, left = values["joined"], values["left"]
        if not all(isinstance(name, str) for names in (joined, left) for name in names):
            raise ValueError("a client whose name is not a text")
        start = number if self.named else 0
        if start != number and not digest_of(joined) == digest == self.digests[0]:
            raise ValueError("names of another population than the ledger's")
        for name in joined:
            self._toggle(name, start, joins=True)
        for name in left:
            self._toggle(name, number, joins=False)
        before = self.clients[self.newest] if self.named else 0
        if before + len(joined) - len(left) != clients:
            raise ValueError("a wrong number of clients")
        self.newest, self.named = number, True
        self.clients[number], self.digests[number] = clients, digest

    def _toggle(self, name: str, number: int, joins: bool) -> None:
        old = self.spans.get(name, ())
        if (len(old) % 2 == 0) != joins or (old and old[-1] == number):
            raise ValueError("a client that joined or left twice")
        new = (*old, number)
        new = self._one.setdefault(new, new)
        self.spans[name] = new
        self.sizes[new] += 1
        if old:
            self.sizes[old] -= 1
            if not self.sizes[old]:
                del self.sizes[old]

    def find(self, names: Sequence[str]) -> tuple[int, Change | None]:
        """The number of the population of these clients and, if it is new or has no names yet, the
        change to be written. -1 if a ledger of format 1 has other clients."""
        digest = digest_of(names)
        if not self.named:
            change = Change(sorted(names), [], len(names), digest)
            return (0, change) if digest == self.digests[0] else (-1, None)
        # The newest of several that are equal.
        for number in sorted(self.digests, reverse=True):
            if self.digests[number] == digest:
                return number, None
        new = set(names)
        present = {name for name, span in self.spans.items() if len(span) % 2}
        return self.newest, Change(sorted(new - present), sorted(present - new), len(names), digest)

    def of(self, names: Iterable[str]) -> Counter[Span]:
        """The spans of these clients, and how many of them have each; () for new clients."""
        return Counter(self.spans.get(name, ()) for name in names)


def contains(span: Span, number: int) -> bool:
    """Whether clients with this span were in the population with this number."""
    return bisect_right(span, number) % 2 == 1


def first_population(names: Sequence[str]) -> dict[str, Any]:
    """The first population as the values of entry 0."""
    checked = checked_names(names)
    return Change(sorted(checked), [], len(checked), digest_of(checked))._asdict()


def checked_names(clients: Sequence[str]) -> list[str]:
    """The names; an error if two are equal or there are none."""
    names = [str(name) for name in clients]
    if isinstance(clients, str) or not names or len(set(names)) < len(names):
        raise PmtlError(
            "A ledger needs at least one client, and every client needs a different name, but "
            f"{len(names)} names were given, of which {len(set(names))} differ."
        )
    return names


def digest_of(names: Iterable[str]) -> str:
    """SHA-256 of the sorted names."""
    return hashlib.sha256(canonical(sorted(names)).encode()).hexdigest()
