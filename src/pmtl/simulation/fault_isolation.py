"""An error caused by one client's data must not affect other clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Clients = NDArray[np.int64]
#: Told which client could not be computed, and why: for the owner of the data alone.
Failed = Callable[[int, Exception], None]


def isolated(
    clients: Clients, work: Callable[[Clients], T], failed: Failed | None = None
) -> list[tuple[Clients, T]]:
    """The work on all clients, without those for whom it fails.

    In production an error that one client's data causes must not show: it would say something about
    that client that nobody paid for. A lack of memory is such an error, too, since it depends on
    numbers of rows. The client is found by halving; its upload counts as zero and the divisor stays
    what it is. `work` must give the same for a client whoever else it is done for.
    """
    try:
        return [(clients, work(clients))]
    except Exception as error:
        if len(clients) <= 1:
            if failed is not None and len(clients):
                failed(int(clients[0]), error)
            return []
    half = len(clients) // 2
    return [*isolated(clients[:half], work, failed), *isolated(clients[half:], work, failed)]


def together(
    clients: Clients, work: Callable[[Clients], T], failed: Failed | None = None
) -> list[tuple[Clients, T]]:
    """The work on all clients at once; in an experiment an error is for everybody to see."""
    return [(clients, work(clients))]
