"""Fine-tuning: every client trains its own model further.

The engines of training (`simulation/sites.py`) train the clients, one piece of the federation after
the other. Nothing is sampled or uploaded, so it costs no privacy: what a client computes from the
billboard and its own rows is free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from pmtl.algorithms import Algorithm
from pmtl.data import FederatedData
from pmtl.engines.base import Ints
from pmtl.models import FlatModel
from pmtl.personalize.fisher import Fisher
from pmtl.personalize.methods import EWC
from pmtl.simulation import LocalTraining, RowTensors, Sites, Store, Weights
from pmtl.simulation.fault_isolation import isolated
from pmtl.streams import subseed
from pmtl.views.progress import progress_bar


@dataclass(frozen=True)
class Workspace:
    """The federation, the model, and how clients are fine-tuned."""

    data: FederatedData
    tensors: RowTensors  #: the rows of `data` on the device of the computation
    model: FlatModel  #: on the same device
    seed: int = 0  #: the same seed gives the same bits, and other batches than a training run
    engine: str = "auto"  #: as for training
    isolate: bool = False  #: for production: no client's result depends on other clients
    progress: bool = False  #: whether to show a progress bar


class Tuner:
    """One method with its settings, for any clients of a federation."""

    def __init__(self, space: Workspace, method: Algorithm, local: LocalTraining) -> None:
        data, tensors, model = space.data, space.tensors, space.model
        seed = subseed(space.seed, "finetune")
        self.work = Sites(
            data=data,
            tensors=tensors,
            model=model,
            algorithm=method,
            local=local,
            seed=seed,
            engine=space.engine,
            cohort=data.m,
            largest=data.m,
            isolate=space.isolate,
        )
        self._fisher = Fisher(data, tensors, model, seed) if isinstance(method, EWC) else None

    def pieces(self) -> list[Ints]:
        """All clients, as many at a time as memory allows."""
        return self.work.pieces(np.arange(self.work.data.m, dtype=np.int64))

    def __call__(self, clients: Ints, start: Tensor, anchor: Tensor) -> Tensor:
        """The fine-tuned weights `[K, P]` of the clients, from `start` around `anchor`."""
        own = start
        if self._fisher is not None:
            pieces = [(clients, anchor)]
            if self.work.isolate:  # In production, one client after the other.
                ones = zip(np.split(clients, len(clients)), torch.split(anchor, 1), strict=True)
                pieces = [(client, at.clone()) for client, at in ones]
            fishers = torch.cat([self._fisher(*piece) for piece in pieces])
            own = torch.cat([start, fishers], dim=1)
        lr = self.work.local.lr_at(0)
        kept = self.work.train_clients(clients, own, anchor, 0, lr).kept
        return vmap(self.work.algorithm.predict)(kept, anchor)


def tune(
    space: Workspace, method: Algorithm, start: Weights, anchor: Weights, local: LocalTraining
) -> Store:
    """Fine-tune every client from the weights `start`, near the published weights `anchor`. In
    isolation, a client whose training fails keeps its start.

    Returns a store whose `gather` gives the weights of clients."""
    tuner, device = Tuner(space, method, local), space.tensors.device
    store = Store(space.data.m, space.model.start())
    trains = space.data.rows("train").counts > 0

    def work(clients: Ints) -> Tensor:
        return tuner(clients, start(clients).to(device), anchor(clients).to(device))

    pieces = tuner.pieces()
    show = space.progress
    with tuner.work.threads(), progress_bar("fine-tuning", len(pieces), show=show) as bar:
        for piece in pieces:
            if space.isolate:
                store.scatter(piece, start(piece))
            for clients, weights in isolated(piece[trains[piece]], work, isolate=space.isolate):
                store.scatter(clients, weights)
            bar.advance()
    return store
