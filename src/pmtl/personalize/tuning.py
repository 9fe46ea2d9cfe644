"""Fine-tuning in memory: every client goes on from a model of its own, by itself.

The engines that train cohorts (`simulation/local_work.py`) train the clients, a piece of the
federation at a time, so that memory holds the models of one piece and, where there is room, the
results. Nothing is sampled or uploaded, and no privacy is spent: what a client computes from the
billboard and its own rows is free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from pmtl.algorithms import Algorithm
from pmtl.data import FederatedData
from pmtl.models import FlatModel
from pmtl.personalize.fisher import Fisher
from pmtl.personalize.methods import EWC
from pmtl.progress import progress_bar
from pmtl.runs.process import threads_for
from pmtl.simulation import Feed, LocalTraining, Sites, Store, Weights
from pmtl.simulation.fault_isolation import isolated, together
from pmtl.streams import subseed

Clients = NDArray[np.int64]


@dataclass(frozen=True)
class Workspace:
    """Where clients work on for themselves."""

    data: FederatedData
    feed: Feed  #: the rows of `data` on the device of the computation
    model: FlatModel  #: on the same device
    seed: int = 0  #: the same seed gives the same bits, and other batches than a training run
    engine: str = "auto"  #: as for training
    isolate: bool = False  #: for production: no result depends on other clients
    progress: bool = False  #: whether to show a progress bar


class Tuner:
    """One method with its settings, for any clients of a federation."""

    def __init__(self, space: Workspace, method: Algorithm, local: LocalTraining) -> None:
        parts, seed = (space.data, space.feed, space.model), subseed(space.seed, "finetune")
        self.work = Sites(
            *(*parts, method, local, seed),
            engine=space.engine,
            cohort=space.data.m,
            largest=space.data.m,
            in_place=space.isolate,
        )
        self._fisher = Fisher(*parts, seed) if isinstance(method, EWC) else None

    def pieces(self) -> list[Clients]:
        """All clients, as many at a time as memory allows."""
        return self.work.pieces(np.arange(self.work.data.m, dtype=np.int64))

    def __call__(self, clients: Clients, start: Tensor, anchor: Tensor) -> Tensor:
        """The weights `[K, P]` to which the clients come from `start` around `anchor`."""
        own = start
        if self._fisher is not None:
            own = torch.cat([start, self._fishers(clients, anchor)], dim=1)
        lr = self.work.local.lr_at(0)
        kept = self.work.train_clients(clients, own, anchor, 0, lr).kept
        return vmap(self.work.algorithm.predict)(kept, anchor)

    def _fishers(self, clients: Clients, anchor: Tensor) -> Tensor:
        """The Fisher diagonals of the clients; in production of one after the other."""
        assert self._fisher is not None
        if not self.work.in_place:
            return self._fisher(clients, anchor)
        alone = zip(np.split(clients, len(clients)), torch.split(anchor, 1), strict=True)
        return torch.cat([self._fisher(client, at.clone()) for client, at in alone])


def tune(
    space: Workspace, method: Algorithm, start: Weights, anchor: Weights, local: LocalTraining
) -> Store:
    """Fine-tune every client, and keep the results.

    Args:
        space: The federation and the model.
        method: What a client minimises (`build_method`).
        start: Gives the weights `[K, P]` with which any clients begin.
        anchor: Gives the published weights `[K, P]` that they stay near.
        local: How much is done.

    Returns:
        The results, in memory or, where they do not fit, in a nameless file; `store.gather` gives
        the weights of any clients. In isolation, a client for whom it fails keeps its start.
    """
    tuner, device = Tuner(space, method, local), space.feed.device
    store = Store.fresh(space.data.m, space.model.start())
    trains = space.data.rows("train").counts > 0

    def work(clients: Clients) -> Tensor:
        return tuner(clients, start(clients).to(device), anchor(clients).to(device))

    pieces = tuner.pieces()
    each = isolated if space.isolate else together
    show = space.progress
    with threads_for(tuner.work), progress_bar("fine-tuning", len(pieces), show=show) as bar:
        for piece in pieces:
            if space.isolate:
                store.scatter(piece, start(piece))
            for clients, weights in each(piece[trains[piece]], work):
                store.scatter(clients, weights)
            bar.advance()
    return store
