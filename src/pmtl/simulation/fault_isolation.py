"""An error caused by one client's data must not affect other clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Clients = NDArray[np.int64]
#: Called with a client that could not be computed, and the error; only the data's owner sees them.
Failed = Callable[[int, Exception], None]


def isolated(
    clients: Clients,
    work: Callable[[Clients], T],
    failed: Failed | None = None,
    isolate: bool = True,
) -> list[tuple[Clients, T]]:
    """Run `work` for all clients, leaving out those for whom it fails. In an experiment (without
    `isolate`) the error is raised.

    In production an error caused by one client's data must not be visible: it would release
    something about that client without a charge. This includes a lack of memory, which depends on
    numbers of rows. The client is found by halving. Its upload counts as zero, and the divisor does
    not change. The result of `work` for a client must not depend on the other clients.
    """
    try:
        return [(clients, work(clients))]
    except Exception as error:
        if not isolate:
            raise
        if len(clients) <= 1:
            if failed is not None and len(clients):
                failed(int(clients[0]), error)
            return []
    half = len(clients) // 2
    return [*isolated(clients[:half], work, failed), *isolated(clients[half:], work, failed)]


def failure_notes(
    notify_owner: Callable[[str], None], names: Sequence[str], what: str, round: int
) -> Failed:
    """A function that tells the owner of the data about a client that could not be computed.
    `names` are the clients' names, and `what` is the word for the failed work ("trained")."""

    def failed(client: int, error: Exception) -> None:
        notify_owner(
            f"Round {round}: client {names[client]!r} could not be {what} "
            f"({type(error).__name__}: {error}). It counts as zero."
        )

    return failed
