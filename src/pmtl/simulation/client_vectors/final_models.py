"""The models that clients have at the end of a production run.

`predict` of an algorithm may fail for one client's vector only. Then this client has what a client
that was never sampled has, and only the owner of the data is told.
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
        return _rows(clients, (own, shared), predictors, otherwise, failed)

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
        otherwise = zeros.expand(len(clients), -1)
        return _rows(clients, (store.gather(clients),), alone, otherwise, failed)

    return weights


def _rows(
    clients: Clients,
    given: tuple[Tensor, ...],
    function: Callable[..., Tensor],
    otherwise: Tensor,
    failed: Failed,
) -> Tensor:
    """`function` of the rows of `given` for each client; a client for whom it fails has its row of
    `otherwise`."""

    def work(places: Clients) -> Tensor:
        some = torch.from_numpy(places)
        made = function(*(part[some.to(part.device)] for part in given))
        return checked(made, "weights", otherwise[: len(places)])

    def tell(place: int, error: BaseException) -> None:
        failed(int(clients[place]), error)

    done = isolated(np.arange(len(clients)), work, tell)
    if len(done) == 1 and len(done[0][0]) == len(clients):
        return done[0][1]
    rows = otherwise.clone()
    for places, made in done:
        rows[torch.from_numpy(places).to(rows.device)] = made
    return rows


def _once(failed: Failed) -> Failed:
    """`failed` for a client's first failure only: weights are computed whenever they are needed."""
    told: set[int] = set()

    def first(client: int, error: BaseException) -> Any:
        if client not in told:
            told.add(client)
            failed(client, error)

    return first
