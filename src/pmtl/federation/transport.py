"""How messages travel between the server and the sites.

The coordinator (`coordinator.py`) knows only this interface. `InProcess` serves tests and the
demonstration of the protocol; `federation/nvflare/` carries the same bytes between organisations.
A transport authenticates sites: the name of a site comes from its certificate, never from what it
sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

#: A site's part: from the server's message to the answer.
Handler = Callable[[bytes], bytes]


class Transport(Protocol):
    """The server's part."""

    sites: tuple[str, ...]  #: the names of all sites

    def present(self) -> frozenset[str]:
        """The sites that are connected now."""
        ...

    def ask(
        self,
        messages: Mapping[str, bytes],
        deadline: float,
        wait_for: frozenset[str] | None = None,
    ) -> dict[str, bytes]:
        """Send each site its message and return the answers that came within `deadline` seconds.

        Late, duplicate and unasked answers are dropped.

        Args:
            messages: the message of each site, by name.
            deadline: seconds.
            wait_for: return as soon as these sites have answered; by default all that are asked.
        """
        ...


class InProcess:
    """Sites in the same process, called one after the other. A handler that raises an error counts
    as a site that does not answer."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self.handlers = dict(handlers)
        self.sites = tuple(self.handlers)
        self.errors: dict[str, Exception] = {}  #: the last error of each site

    def present(self) -> frozenset[str]:
        return frozenset(self.handlers)

    def ask(
        self,
        messages: Mapping[str, bytes],
        deadline: float,
        wait_for: frozenset[str] | None = None,
    ) -> dict[str, bytes]:
        answers = {}
        for site, content in messages.items():
            if handler := self.handlers.get(site):
                try:
                    answers[site] = handler(content)
                except Exception as error:  # A site's crash must not end the run of the others.
                    self.errors[site] = error
        return answers
