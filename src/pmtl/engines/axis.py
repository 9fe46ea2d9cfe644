"""Clients as an axis of an array: a step of a whole cohort is one computation.

`torch.func.vmap` maps the algorithm's functions, which are written for one client, over `[K, P]`
weights and `[K, batch, …]` rows.

A step that is not compiled takes any number of clients, and clients leave when they are done. A
compiled step takes exactly the number it was compiled for, so the number is rounded up to one of a
few; the extra slots repeat clients, with padding only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from pmtl.algorithms import Algorithm
from pmtl.client.step import client_step
from pmtl.engines.base import CohortBatches, CohortTrainer, Ints, Trained
from pmtl.engines.compiled import CompiledStep
from pmtl.engines.row_tensors import to_device
from pmtl.engines.schedule import row_groups, schedule, widths
from pmtl.models import FlatModel, Task


class AxisTrainer(CohortTrainer):
    """Trains all clients of a cohort together, step by step.

    Dropout masks are drawn for a whole cohort at once, so they differ from those of other engines.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: FlatModel,
        task: Task,
        *,
        compile: bool = False,
        width: int | None = None,
        backend: Any = "inductor",
        isolate: bool = False,
    ) -> None:
        """`width` is what a whole cohort is rounded up to before compiling; without it, cohorts
        vary and are rounded up to one of a few widths. With `isolate` a client keeps its slot in
        the arrays from the first step to the last (`slots.py`)."""
        super().__init__(algorithm, model, task)
        self.compiled = compile
        self._width = width
        self._isolate = isolate
        step = partial(client_step, algorithm, model, task)
        self._step: Callable[..., tuple[Any, Tensor]] = vmap(
            partial(_unless_padding, step) if compile or isolate else step,
            in_dims=(0, 0, 0, 0, 0, None),
            randomness="different" if model.traits.random_forward else "error",
        )
        if compile:
            self._step = CompiledStep(self._step, backend, not model.traits.random_forward)

    def train(self, own: Tensor, shared: Tensor, batches: CohortBatches, lr: float) -> Trained:
        self._model.module.train()
        all_clients = (np.arange(len(own)), batches.mask.shape[2])
        groups = [all_clients] if self._isolate else row_groups(batches.mask)
        with torch.no_grad():
            parts = [
                self._train_group(
                    _take(own, clients), _take(shared, clients), batches.select(clients, rows), lr
                )
                for clients, rows in groups
            ]
            if len(parts) == 1:
                return parts[0]
            back = np.argsort(np.concatenate([clients for clients, _ in groups]))
            return Trained.joined(parts).take(torch.from_numpy(back).to(own.device))

    def _train_group(
        self, own: Tensor, shared: Tensor, batches: CohortBatches, lr: float
    ) -> Trained:
        """Train clients whose batches have about the same number of rows."""
        device, dtype = shared.device, shared.dtype
        order, sizes = np.arange(len(own)), [len(own)] * batches.mask.shape[1]
        if not self._isolate:
            order, sizes = schedule(np.asarray(batches.mask.any(axis=2)))
        back = np.argsort(order)
        if self.compiled:
            sizes = widths(len(own), sizes, self._width)
        extra = max(0, max(sizes, default=0) - len(own))
        slots = np.pad(order, (0, extra), mode="wrap")
        batches = batches.select(slots, batches.mask.shape[2])
        real = torch.from_numpy(batches.mask.copy())
        real[len(own) :] = False
        real = real.to(device, non_blocking=True)
        counts = real.any(dim=2)
        own, shared = _take(own, slots), _take(shared, slots)
        # A shared vector may be one row that is read K times; a compiled step needs the memory
        # layout of its own results.
        state = tree_map(Tensor.contiguous, vmap(self._algorithm.begin)(own, shared))
        losses = torch.zeros(len(slots), dtype=dtype, device=device)
        step_size = torch.full((), lr, dtype=dtype, device=device)
        done: list[Any] = []
        now = len(slots)
        for step, n in enumerate(sizes):
            if n < now:
                done.append(tree_map(lambda part, n=n: part[n:].clone(), state))
                state, now = tree_map(lambda part, n=n: part[:n], state), n
            rows = batches.read(step, n)
            state, loss = self._step(state, shared[:n], *rows, real[:n, step], step_size)
            losses[:n] += loss * counts[:n, step]
        if self.compiled:  # The next call may overwrite its results.
            state = tree_map(torch.clone, state)
        if done:
            state = tree_map(lambda *parts: torch.cat(parts), state, *reversed(done))
        return Trained(
            kept=_take(vmap(self._algorithm.keep)(state), back),
            uploads=_take(vmap(self._algorithm.upload)(state, own, shared), back),
            losses=_take(losses / counts.sum(dim=1).clamp(min=1), back),
        )


def _unless_padding(step: Callable[..., Any], state: Any, *given: Any) -> tuple[Any, Tensor]:
    """The step; the state of a client without real rows does not change."""
    after, loss = step(state, *given)
    active = given[3].any()  # given[3] is the mask.
    return tree_map(lambda new, old: torch.where(active, new, old), after, state), loss


def _take(vectors: Tensor, slots: Ints) -> Tensor:
    """These rows, without a copy where one row is read many times or the order does not change."""
    if vectors.dim() > 1 and vectors.stride(0) == 0:
        return vectors[:1].expand(len(slots), -1)
    if np.array_equal(slots, np.arange(len(slots))):
        return vectors[: len(slots)]
    return vectors[to_device(slots, vectors.device)]
