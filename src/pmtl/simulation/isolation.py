"""What goes wrong with one client's data stays with that client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

T = TypeVar("T")
Clients = NDArray[np.int64]


def isolated(clients: Clients, work: Callable[[Clients], T]) -> list[tuple[Clients, T]]:
    """The work on all clients at once, and without those for whom it fails.

    In production an error that only one client's data brings about must not show: it would say
    something about that client that nobody paid for. Such a client is found by halving, and takes
    no part; its upload counts as zero, and the divisor stays what it is.
    """
    try:
        return [(clients, work(clients))]
    except (MemoryError, torch.OutOfMemoryError):
        raise  # of shapes, which are no secret
    except Exception:
        if len(clients) <= 1:
            return []
    half = len(clients) // 2
    return [*isolated(clients[:half], work), *isolated(clients[half:], work)]


def together(clients: Clients, work: Callable[[Clients], T]) -> list[tuple[Clients, T]]:
    """The work on all clients at once; in an experiment an error is for everybody to see."""
    return [(clients, work(clients))]
