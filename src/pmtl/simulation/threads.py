"""One client per thread: plain PyTorch, as many clients at a time as there are cores.

On a CPU this is the way for convolutions. One client's images stay in the core's own cache, where
a cohort's would travel to memory and back for every layer; and threads that each have a client wait
for each other once a round, where threads that share a layer wait at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.models import FlatModel, Task, lowered
from pmtl.simulation.cohort import CohortTrainer, Rows, Slope, Trained, client_step


class ThreadsTrainer(CohortTrainer):
    """Trains the clients of a cohort side by side.

    A client's numbers do not depend on how many threads there are: each has one for itself. A
    model with dropout is trained in one thread, because torch has one generator for all of them,
    and who came first would decide about the masks.
    """

    name: ClassVar[str] = "threads"

    def __init__(self, algorithm: Algorithm, model: FlatModel, task: Task) -> None:
        super().__init__(algorithm, model, task)
        self._copies: list[FlatModel] = []

    def train(self, own: Tensor, shared: Tensor, rows: Rows, mask: Tensor, lr: float) -> Trained:
        algorithm = self._algorithm
        begun = algorithm.begin(own[0], shared[0])
        sent = algorithm.upload(begun, own[0], shared[0])
        trained = Trained(
            kept=torch.empty_like(own),
            uploads=shared.new_empty(len(own), len(sent)),
            losses=shared.new_zeros(len(own)),
        )
        active = mask.any(dim=2)

        def client(k: int, step: Callable[..., Any]) -> None:
            before, around = own[k], shared[k]
            state, total, steps = algorithm.begin(before, around), 0.0, 0
            read = rows(np.array([k]), mask.shape[2])
            for number in active[k].nonzero().flatten().tolist():
                inputs, targets = (part[0] for part in read(number, 1))
                real = mask[k, number]
                if not real.all():
                    inputs, targets, real = inputs[real], targets[real], real[real]
                state, loss = step(state, around, inputs, targets, real, lr)
                total, steps = total + float(loss), steps + 1
            trained.kept[k] = algorithm.keep(state)
            trained.uploads[k] = algorithm.upload(state, before, around)
            trained.losses[k] = total / max(1, steps)

        # Those with most to do go first, so that nobody is waited for at the end.
        order = torch.argsort(active.sum(dim=1), descending=True, stable=True).tolist()
        self._share_out(client, order)
        return trained

    def _share_out(
        self, client: Callable[[int, Callable[..., Any]], None], order: list[int]
    ) -> None:
        threads = torch.get_num_threads()
        workers = 1 if self._model.random_forward else min(threads, len(order))
        free: SimpleQueue[Callable[..., Any]] = SimpleQueue()
        for model in self._models(workers):
            free.put(client_step(self._algorithm, model, self._task, _slope, guarded=False))

        def work(k: int) -> None:
            step = free.get()
            try:
                with torch.no_grad():
                    client(k, step)
            finally:
                free.put(step)

        pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
        try:
            for done in [pool.submit(work, k) for k in order]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # It is also what new threads begin with.

    def _models(self, count: int) -> list[FlatModel]:
        """A model for each thread: weights are put into a module while it runs."""
        while len(self._copies) < count:
            self._copies.append(lowered(self._model, "channels_last"))
        for model in self._copies:
            model.module.train()
        return self._copies[:count]


def _slope(loss: Callable[..., Tensor]) -> Slope:
    def at(w: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            value = loss(w, *batch)
        (direction,) = torch.autograd.grad(value, w)
        return direction, value.detach()

    return at
