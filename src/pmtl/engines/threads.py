"""One client per thread: plain PyTorch, as many clients at a time as there are cores.

On a CPU this is the way for convolutions. One client's images stay in the core's own cache, where
a cohort's would travel to memory and back for every layer; and threads that each have a client wait
for each other once a round, where threads that share a layer wait at its end.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue

import numpy as np
import torch
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.client.step import OneTrained, train_client
from pmtl.engines.base import CohortBatches, CohortTrainer, Trained, client_batches
from pmtl.models import FlatModel, Task


class ThreadsTrainer(CohortTrainer):
    """Maps `train_client` over the clients of a cohort, with one thread per core.

    A client's numbers do not depend on how many threads there are. A model with dropout is trained
    in one thread: torch has one random generator for all of them, and who came first would decide
    about the masks.
    """

    def __init__(self, algorithm: Algorithm, model: FlatModel, task: Task) -> None:
        super().__init__(algorithm, model, task)
        self._free: SimpleQueue[FlatModel] = SimpleQueue()

    def train(
        self,
        own: Tensor,
        shared: Tensor,
        batches: CohortBatches,
        lr: float,
        name_of: Callable[[int], str] = str,
    ) -> Trained:
        def one(k: int) -> OneTrained:
            model = self._copy()
            try:
                rows = client_batches(batches, k)
                return train_client(self._algorithm, model, self._task, own[k], shared[k], rows, lr)
            finally:
                self._free.put(model)

        workers = 1 if self._model.traits.random_forward else torch.get_num_threads()
        # Those with most steps go first, so that no thread is waited for at the end.
        order = np.argsort(-batches.mask.any(axis=2).sum(axis=1), kind="stable")
        with (
            single_threaded(),
            ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            trained = Trained.stacked(list(pool.map(one, order.tolist())))
        return trained.take(torch.from_numpy(np.argsort(order)))

    def _copy(self) -> FlatModel:
        """A model that no other thread is using: weights are put into a module while it runs."""
        try:
            return self._free.get_nowait()
        except Empty:
            return copy.deepcopy(self._model)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let torch compute with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
