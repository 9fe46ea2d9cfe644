"""How messages travel between the server and the sites.

The coordinator (`coordinator.py`) knows only this interface; `federation/nvflare/` implements it. A
transport authenticates sites: the name of a site comes from its certificate, never from what it
sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

#: Seconds that sites have for reading their data and for one round.
JOIN_SECONDS, ROUND_SECONDS = 300.0, 600.0
#: The name of the server's ledger in the settings of a site, which does not have it.
AT_THE_SERVER = "(at the server)"

#: A site's part: from the server's message to the answer.
Handler = Callable[[bytes], bytes]


class Transport(Protocol):
    """The server's part."""

    sites: tuple[str, ...]  #: the names of all sites

    def ask(
        self, messages: Mapping[str, bytes], deadline: float, wait_for: frozenset[str] | None = None
    ) -> dict[str, bytes]:
        """Send each site its message and return the answers that came within `deadline` seconds.

        Late, duplicate and unasked answers are dropped.

        Args:
            messages: the message of each site, by name.
            deadline: seconds.
            wait_for: return as soon as these sites have answered; by default all that are asked.
        """
        ...
