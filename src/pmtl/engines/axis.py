"""Clients as an axis of an array: a step of a whole cohort is one computation.

`torch.func.vmap` maps the algorithm's functions, which are written for one client, over `[K, P]`
weights and `[K, batch, …]` rows.

A step that is not compiled takes any number of clients. A compiled step takes exactly the number it
was compiled for, so the number is rounded up to one of a few; the extra slots repeat clients, with
padding only.

Clients with fewer rows or batches are padded. To keep the padding small, clients with much smaller
batches are trained separately (`row_groups`), and clients leave when they are done (`schedule`). A
client's padding within a batch depends on its own rows alone, and steps of padding change nothing,
so results do not depend on the other clients.
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
from pmtl.client.batches import MIN_BATCH_ROWS
from pmtl.client.step import client_step
from pmtl.engines.base import CohortBatches, CohortTrainer, Ints, Mask, Trained
from pmtl.engines.compiled import CompiledStep
from pmtl.engines.row_tensors import to_device
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


def schedule(active: Mask) -> tuple[Ints, list[int]]:
    """The cohort ordered by number of steps, most first, and how many clients are left in each
    step. `active` [K, steps] says which clients have real rows in which step."""
    last = _last(active)
    if (active.sum(axis=1) < last).any():
        raise ValueError("A client has a step without real rows before one with real rows.")
    left = [int((last > step).sum()) for step in range(int(last.max(initial=0)))]
    return np.argsort(-last, kind="stable"), left


def row_groups(mask: Mask) -> list[tuple[Ints, int]]:
    """The cohort in groups, each with the number of rows that its batches need, rounded up to all,
    a quarter, a sixteenth, …, but not below `MIN_BATCH_ROWS`."""
    needs = _last(np.asarray(mask.any(axis=1)))
    rows_of = np.full(len(mask), mask.shape[2])
    while (smaller := -(-int(rows_of.min()) // 4)) >= MIN_BATCH_ROWS:
        fits = needs <= smaller
        if not fits.any():
            break
        rows_of[fits] = smaller
    return [(np.flatnonzero(rows_of == rows), int(rows)) for rows in np.unique(rows_of)]


def widths(cohort: int, left: list[int], usual: int | None) -> list[int]:
    """The number of clients in each step, rounded up so that there are few different ones.

    A whole cohort is rounded up to the `usual` width or, where cohorts vary, by at most a quarter.
    As clients finish, the width falls to the next power of four, down to 16.
    """
    whole = usual if usual is not None and cohort <= usual else rounded_up(cohort)
    return [min(whole, _power_of_four(n)) for n in left]


def _last(marks: Mask) -> Ints:
    """For each row, one more than its last marked column; 0 where none is marked."""
    number = np.arange(1, marks.shape[1] + 1)
    return np.asarray(np.where(marks, number, 0).max(axis=1, initial=0))


def rounded_up(n: int) -> int:
    """Rounded up to three significant bits, so by at most a quarter: 64, 80, 96, 112, 128, …"""
    grain: int = 2 ** max(0, n.bit_length() - 3)
    return -(-n // grain) * grain


def _power_of_four(n: int) -> int:
    power = 16
    while power < n:
        power *= 4
    return power
