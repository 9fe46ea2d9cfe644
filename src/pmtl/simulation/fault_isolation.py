"""An error caused by one client's data must not affect other clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pmtl.engines.base import Trained
from pmtl.errors import PmtlError
from pmtl.plugins import error_text

T = TypeVar("T")
Clients = NDArray[np.int64]
#: Called with a client that could not be computed, and the error; only the data's owner sees them.
Failed = Callable[[int, BaseException], None]
#: What follows from a failure: in a round, and when models are made at the end.
COUNTS_AS_ZERO = "It counts as zero."
NO_MODEL = "It has the shared model, as clients that were never sampled."


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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # The user's code may raise anything, such as SystemExit.
        if not isolate:
            raise
        if len(clients) <= 1:
            if failed is not None and len(clients):
                failed(int(clients[0]), error)
            return []
    half = len(clients) // 2
    return [*isolated(clients[:half], work, failed), *isolated(clients[half:], work, failed)]


def left_out(clients: Clients, done: Sequence[tuple[Clients, object]]) -> Clients:
    """The clients for whom `isolated` gave no result, in order."""
    return np.setdiff1d(clients, np.concatenate([clients[:0], *(some for some, _ in done)]))


def checked(made: Tensor, what: str, like: Tensor) -> Tensor:
    """What was computed for clients, if it has the shape of `like`: with its type, on its device.

    To be called inside `isolated`: shape, type and device of what an algorithm returns may depend
    on one client's rows. `what` is the word for it ("uploads").
    """
    if made.shape != like.shape or made.is_complex():
        raise PmtlError(
            f"The algorithm must return {what} of shape {tuple(like.shape)} for {len(like)} "
            f"clients, in real numbers, but returned shape {tuple(made.shape)} of {made.dtype}."
        )
    return made.detach().to(like)


def checked_training(made: Trained, own: Tensor, shared: Tensor, size: int | None) -> Trained:
    """The result of training, if its vectors are like `own` [K, own] and its uploads are of length
    `size` (None: there are none) and of the type of `shared`; to be called inside `isolated`."""
    kept, uploads = checked(made.kept, "vectors to keep", own), made.uploads
    if size is not None:
        uploads = checked(uploads, "uploads", shared.new_empty(()).expand(len(own), size))
    return made._replace(kept=kept, uploads=uploads)


def failure_notes(
    notify_owner: Callable[[str], None],
    names: Sequence[str],
    what: str,
    round: int,
    instead: str = COUNTS_AS_ZERO,
) -> Failed:
    """A function that tells the owner of the data about a client that could not be computed.
    `names` are the clients' names, `what` is the word for the failed work ("trained"), and
    `instead` says what follows from it."""

    def failed(client: int, error: BaseException) -> None:
        notify_owner(
            f"Round {round}: client {names[client]!r} could not be {what} "
            f"({error_text(error)}). {instead}"
        )

    return failed
