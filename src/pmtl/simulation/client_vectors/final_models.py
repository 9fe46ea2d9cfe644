"""The models that clients have at the end of a production run.

`finish` or `predict` of an algorithm may fail for one client only. Then this client has what a
client that was never sampled has, and only the owner of the data is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from pmtl.algorithms import Algorithm, ExactAlgorithm
from pmtl.simulation.client_vectors.store import Store
from pmtl.simulation.fault_isolation import Failed, checked, isolated

Clients = NDArray[np.int64]
#: From clients to their weights [K, P].
Weights = Callable[[Clients], Tensor]


def unseen_weights(algorithm: Algorithm, start: Tensor, shared: Tensor) -> Tensor:
    """The weights `[K, P]` of clients that were never sampled and read `shared` [K, B]; `start` is
    what they own. They depend on nobody's data."""
    if algorithm.exact:
        return algorithm.published(shared)
    return vmap(algorithm.predict)(start.expand(len(shared), -1), shared)


def no_vectors(start: Tensor, count: int) -> Tensor:
    """What `count` clients own for whom `finish` failed [count, own]: −∞ in place of numbers. They
    have rows like all others, since their absence would be seen in what is saved."""
    return torch.full_like(start, -torch.inf).expand(count, -1)


def _finished(own: Tensor) -> Clients:
    """The places of the clients for whom `finish` did not fail."""
    failed = (own == -torch.inf).all(dim=1) & (own.shape[1] > 0)
    return np.flatnonzero(~failed.cpu().numpy())


def final_weights(
    algorithm: Algorithm,
    predictors: Callable[[Tensor, Tensor], Tensor],
    store: Store,
    read: Weights,
    failed: Failed,
) -> Weights:
    """A function that gives the weights with which clients predict.

    Args:
        algorithm: the algorithm.
        predictors: gives the weights `[K, P]` of clients, from what they own and read.
        store: what the clients own.
        read: gives what the clients read.
        failed: called once for each client whose weights cannot be computed.
    """
    failed = _once(failed)

    def weights(clients: Clients) -> Tensor:
        # An error of the disk is not caused by a client's data.
        own, shared = store.gather(clients), read(clients)
        otherwise = unseen_weights(algorithm, store.start, shared)
        places = _finished(own) if algorithm.exact else np.arange(len(clients))
        return _rows(clients, places, (own, shared), predictors, otherwise, failed)

    return weights


def alone_weights(algorithm: ExactAlgorithm, store: Store, failed: Failed) -> Weights:
    """A function that gives the weights that clients would have without the others; zeros if they
    cannot be computed.

    Args:
        algorithm: the algorithm.
        store: what the clients own.
        failed: called once for each client whose weights cannot be computed.
    """
    failed, each = _once(failed), vmap(algorithm.alone)
    zeros = torch.zeros_like(each(store.start.unsqueeze(0)))

    def alone(own: Tensor) -> Tensor:
        return torch.cat([each(mine.clone()) for mine in torch.split(own, 1)])

    def weights(clients: Clients) -> Tensor:
        own, otherwise = store.gather(clients), zeros.expand(len(clients), -1)
        return _rows(clients, _finished(own), (own,), alone, otherwise, failed)

    return weights


def _rows(
    clients: Clients,
    places: Clients,
    given: tuple[Tensor, ...],
    function: Callable[..., Tensor],
    otherwise: Tensor,
    failed: Failed,
) -> Tensor:
    """`function` of the rows of `given` for the clients at these places. All others, and a client
    for whom it fails, have their rows of `otherwise`."""

    def work(places: Clients) -> Tensor:
        some = torch.from_numpy(places)
        made = function(*(part[some.to(part.device)] for part in given))
        return checked(made, "weights", otherwise[: len(places)])

    def tell(place: int, error: BaseException) -> None:
        failed(int(clients[place]), error)

    done = isolated(places, work, tell)
    if len(done) == 1 and len(done[0][0]) == len(clients):
        return done[0][1]
    rows = otherwise.clone()
    for some, made in done:
        rows[torch.from_numpy(some).to(rows.device)] = made
    return rows


def _once(failed: Failed) -> Failed:
    """`failed` for a client's first failure only: weights are computed whenever they are needed."""
    told: set[int] = set()

    def first(client: int, error: BaseException) -> Any:
        if client not in told:
            told.add(client)
            failed(client, error)

    return first
