"""One client at a time per core: loops over `train_client`.

`ThreadsTrainer` has one thread per core. It is fastest for convolutions on a CPU: one client's
images stay in the core's cache, while a cohort's images would be read from memory for every layer;
and threads wait for each other once a round instead of after every layer.

`DebugTrainer` is slow, and its errors name the client. The other engines are tested against it.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import numpy as np
import torch
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.client.step import OneTrained, train_client
from pmtl.engines.base import CohortBatches, CohortTrainer, Trained
from pmtl.engines.process import torch_threads
from pmtl.errors import PmtlError, place_in_code
from pmtl.models import FlatModel, Task
from pmtl.plugins import error_text


class DebugTrainer(CohortTrainer):
    """One client after the other. An error names the client and the stage that failed."""

    def train(self, own: Tensor, shared: Tensor, batches: CohortBatches, lr: float) -> Trained:
        def one(k: int) -> OneTrained:
            stages = ["reading its rows"]
            try:
                rows = list(batches.of_client(k))
                return train_client(
                    algorithm=self._algorithm,
                    model=self._model,
                    task=self._task,
                    own=own[k],
                    shared=shared[k],
                    batches=rows,
                    lr=lr,
                    on_stage=stages.append,
                )
            except (Exception, SystemExit) as error:
                raise training_error(batches.name(k), stages[-1], error) from error

        with torch_threads(1):
            return Trained.stacked([one(k) for k in range(len(own))])


class ThreadsTrainer(CohortTrainer):
    """As many clients at a time as there are cores, each with one thread.

    Results do not depend on the number of threads. A model with dropout is trained in one thread:
    torch has one random generator for all threads, so masks would depend on their order.
    """

    def __init__(self, algorithm: Algorithm, model: FlatModel, task: Task) -> None:
        super().__init__(algorithm, model, task)
        self._free: SimpleQueue[FlatModel] = SimpleQueue()  #: copies of the model, one per thread

    def train(self, own: Tensor, shared: Tensor, batches: CohortBatches, lr: float) -> Trained:
        def one(k: int) -> OneTrained:
            try:  # A module holds weights while it runs, so threads cannot share one.
                model = self._free.get_nowait()
            except Empty:
                model = copy.deepcopy(self._model)
            try:
                return train_client(
                    algorithm=self._algorithm,
                    model=model,
                    task=self._task,
                    own=own[k],
                    shared=shared[k],
                    batches=batches.of_client(k),
                    lr=lr,
                )
            finally:
                self._free.put(model)

        workers = 1 if self._model.traits.random_forward else torch.get_num_threads()
        # Clients with the most steps go first, so that all threads end at about the same time.
        order = np.argsort(-batches.mask.any(axis=2).sum(axis=1), kind="stable")
        with (
            torch_threads(1),
            ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            trained = list(pool.map(one, order.tolist()))
        return Trained.stacked([trained[position] for position in np.argsort(order)])


def training_error(client: str, stage: str, error: BaseException) -> PmtlError:
    """An error that names the client, the stage of its training and the place in the code."""
    return PmtlError(
        f"Local training of the client {client!r} failed in {stage!r} ({place_in_code(error)}): "
        f"{error_text(error)}"
    )
