"""One client per thread: plain PyTorch, as many clients at a time as there are cores.

On a CPU this is the way for convolutions. One client's images stay in the core's own cache, where
a cohort's would travel to memory and back for every layer; and threads that each have a client wait
for each other once a round, where threads that share a layer wait at its end. Steps that come often
are recorded and run without Python (`recording.py`), whose lock the threads share.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.engines.base import CohortTrainer, Reader, Rows, Slope, Trained, client_step
from pmtl.engines.recording import Programs
from pmtl.models import FlatModel, Task, lowered

Step = Callable[..., Any]


class ThreadsTrainer(CohortTrainer):
    """Trains the clients of a cohort side by side.

    A client's numbers do not depend on how many threads there are: each has one for itself. A
    model with dropout is trained in one thread, because torch has one generator for all of them,
    and who came first would decide about the masks.
    """

    name: ClassVar[str] = "threads"

    def __init__(
        self, algorithm: Algorithm, model: FlatModel, task: Task, *, record: bool = True
    ) -> None:
        """Without `record` every step is run from Python."""
        super().__init__(algorithm, model, task)
        self._copies: list[FlatModel] = []
        self._programs = Programs()
        self._record = record and not model.traits.random_forward

    def train(self, own: Tensor, shared: Tensor, rows: Rows, mask: Tensor, lr: float) -> Trained:
        algorithm = self._algorithm
        sent = algorithm.upload(algorithm.begin(own[0], shared[0]), own[0], shared[0])
        trained = Trained(
            kept=torch.empty_like(own),
            uploads=shared.new_empty(len(own), len(sent)),
            losses=shared.new_zeros(len(own)),
        )
        sizes = mask.numpy().sum(axis=2)
        cohort = _Cohort(algorithm, self._programs, own, shared, rows, mask, sizes, lr)
        due = (
            []
            if self._model.traits.random_forward
            else self._programs.due(sizes[sizes > 0].tolist())
        )
        # Before anybody trains, one after the other, and like them in a thread with its own core.
        places = [tuple(np.argwhere(sizes == size)[0]) for size in due]
        self._share_out(cohort.record, places, most=1)
        # Those with most to do go first, so that nobody is waited for at the end.
        order = np.argsort(-(sizes > 0).sum(axis=1), kind="stable")
        self._share_out(lambda k, step: cohort.train(k, step, trained), order.tolist())
        return trained

    def _share_out(
        self, work: Callable[[Any, Step], None], jobs: list[Any], most: int | None = None
    ) -> None:
        """Do `work` for every job, as many of them at a time as there are threads."""
        if not jobs:
            return
        threads = torch.get_num_threads()
        workers = (
            1 if self._model.traits.random_forward else min(most or threads, threads, len(jobs))
        )
        free: SimpleQueue[Step] = SimpleQueue()
        for model in self._models(workers):
            free.put(client_step(self._algorithm, model, self._task, _slope, guarded=False))

        def one(job: Any) -> None:
            step = free.get()
            try:
                with torch.no_grad():
                    work(job, step)
            finally:
                free.put(step)

        pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
        try:
            for done in [pool.submit(one, job) for job in jobs]:
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


@dataclass(frozen=True)
class _Cohort:
    """The arguments of `CohortTrainer.train`, client by client."""

    algorithm: Algorithm
    programs: Programs
    own: Tensor
    shared: Tensor
    rows: Rows
    mask: Tensor
    sizes: NDArray[np.int64]  #: [K, steps] real rows
    lr: float

    def train(self, k: int, step: Step, trained: Trained) -> None:
        """Train the client k, and put down what it comes to."""
        # In memory of their own: where numbers lie must not depend on who else is trained.
        algorithm, own, around = self.algorithm, self.own[k].clone(), self.shared[k].clone()
        state, total, steps, read = algorithm.begin(own, around), 0.0, 0, self._reader(k)
        for number in np.flatnonzero(self.sizes[k]).tolist():
            given = (state, around, *self._batch(k, number, read), self.lr)
            run = self.programs[self.sizes[k, number]] or step
            try:
                state, loss = run(*given)
            except RuntimeError:  # Said again in the words of the operation that failed.
                state, loss = step(*given)
            total, steps = total + float(loss), steps + 1
        trained.kept[k] = algorithm.keep(state)
        trained.uploads[k] = algorithm.upload(state, own, around)
        trained.losses[k] = total / max(1, steps)

    def record(self, place: tuple[int, int], step: Step) -> None:
        """Make a program of the step that a client would take first on one of its batches."""
        k, number = place
        state = self.algorithm.begin(self.own[k], self.shared[k])
        batch = self._batch(k, number, self._reader(k))
        self.programs.make(step, state, self.shared[k], *batch, self.lr)

    def _reader(self, k: int) -> Reader:
        return self.rows(np.array([k]), self.mask.shape[2])

    def _batch(self, k: int, number: int, read: Reader) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and mask of a step, without padding."""
        inputs, targets = (part[0] for part in read(number, 1))
        real = self.mask[k, number]
        if self.sizes[k, number] == len(real):
            return inputs, targets, real
        return inputs[real], targets[real], real[real]


def _slope(loss: Callable[..., Tensor]) -> Slope:
    def at(w: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            value = loss(w, *batch)
        (direction,) = torch.autograd.grad(value, w)
        return direction, value.detach()

    return at
