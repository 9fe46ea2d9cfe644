"""Fine-tuning in memory: every client goes on from a model of its own, by itself.

The clients are trained by the very engines that train cohorts (`simulation/local_work.py`), a piece
of the federation at a time, so that memory holds the models of one piece and, where there is room,
the results. Nothing is sampled, nothing is uploaded, and no privacy is spent: what a client
computes from the billboard and its own rows is free.
"""

from __future__ import annotations

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


class Tuner:
    """One method with its settings, for any clients of a federation."""

    def __init__(
        self,
        data: FederatedData,
        feed: Feed,
        model: FlatModel,
        method: Algorithm,
        local: LocalTraining,
        seed: int,
        *,
        engine: str = "auto",
        compile: bool | None = None,
        in_place: bool = False,
    ) -> None:
        """`model` lies on the device of `feed`. A training run with the same `seed` draws other
        batches. `in_place` is for production: nobody's result depends on the other clients."""
        own_seed = subseed(seed, "finetune")
        self.work = Sites(
            *(data, feed, model, method, local, own_seed),
            engine=engine,
            compile=compile,
            cohort=data.m,
            largest=data.m,
            in_place=in_place,
        )
        self._fisher = Fisher(data, feed, model, own_seed) if isinstance(method, EWC) else None

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
    data: FederatedData,
    feed: Feed,
    model: FlatModel,
    method: Algorithm,
    start: Weights,
    anchor: Weights,
    local: LocalTraining,
    seed: int = 0,
    *,
    engine: str = "auto",
    compile: bool | None = None,
    isolate: bool = False,
    progress: bool = False,
) -> Store:
    """Fine-tune every client from its `start` around its `anchor`, and keep the results.

    `start` and `anchor` give the weights `[K, P]` of any clients; `store.gather` does the same for
    the results, which lie in memory or, where they do not fit, in a file without a name. With
    `isolate`, which is for production, nobody's result depends on the other clients, and a client
    for whom it fails keeps its start.
    """
    tuner = Tuner(
        *(data, feed, model, method, local, seed),
        engine=engine,
        compile=compile,
        in_place=isolate,
    )
    store = Store.fresh(data.m, model.start())
    trains = data.rows("train").counts > 0

    def work(clients: Clients) -> Tensor:
        return tuner(clients, start(clients).to(feed.device), anchor(clients).to(feed.device))

    pieces = tuner.pieces()
    each = isolated if isolate else together
    with threads_for(tuner.work), progress_bar("fine-tuning", len(pieces), show=progress) as bar:
        for piece in pieces:
            if isolate:
                store.scatter(piece, start(piece))
            for clients, weights in each(piece[trains[piece]], work):
                store.scatter(clients, weights)
            bar.advance()
    return store
