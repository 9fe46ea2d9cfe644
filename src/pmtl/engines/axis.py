"""Clients as an axis of an array: a step of a whole cohort is one computation.

`torch.func.vmap` maps the algorithm's functions, which are written for one client, over `[K, P]`
weights and `[K, batch, …]` rows. Convolutions become batched products (`models/lowering.py`).

Run as it is, a step takes any number of clients, and clients that are done leave at once. Compiled,
it takes exactly as many as it was compiled for: the number is rounded up to one of a few, and the
places left over hold clients a second time, without a single real row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.utils._pytree import tree_map

from pmtl.algorithms import Algorithm
from pmtl.engines.base import CohortTrainer, Reader, Rows, Trained, client_step
from pmtl.engines.compiled import CompiledStep
from pmtl.engines.schedule import Places, Schedule, row_groups, widths
from pmtl.engines.to_device import to_device
from pmtl.models import FlatModel, Task, lowered

Step = Callable[..., tuple[Any, Tensor]]


class AxisTrainer(CohortTrainer):
    """Trains all clients of a cohort in step.

    With `compile` every step is compiled, once for each width; should that fail, there is one
    warning and the steps are run as they are. `width` is what a whole cohort is rounded up to;
    without, cohorts may vary, and are rounded up to the next of a few widths. Dropout's masks are
    drawn for a whole cohort at once, and so are not those of another engine. With `in_place`
    clients are computed where they are in the arrays that come, from the first step to the last,
    so that nobody's place depends on the others (`places.py`).
    """

    name: ClassVar[str] = "axis"

    def __init__(
        self,
        algorithm: Algorithm,
        model: FlatModel,
        task: Task,
        *,
        compile: bool = False,
        width: int | None = None,
        backend: Any = "inductor",
        convolutions: str = "patches",
        in_place: bool = False,
    ) -> None:
        model = lowered(model, "patches") if convolutions == "patches" else model
        super().__init__(algorithm, model, task)
        self._begin = vmap(algorithm.begin)
        self._upload = vmap(algorithm.upload)
        self._keep = vmap(algorithm.keep)
        self._width = width
        self._in_place = in_place
        self._plain = {guarded: self._mapped(guarded) for guarded in (False, True)}
        self._compiled: CompiledStep | None = None
        if compile:
            self._compiled = CompiledStep(
                self._plain[True], backend, not model.traits.random_forward
            )

    @property
    def compiled(self) -> bool:
        return self._compiled is not None

    def train(self, own: Tensor, shared: Tensor, rows: Rows, mask: Tensor, lr: float) -> Trained:
        self._model.module.train()
        everybody = (np.arange(len(own)), mask.shape[2])
        groups = [everybody] if self._in_place else row_groups(mask.numpy())
        with torch.no_grad():
            parts = [
                self._train(
                    _take(own, clients),
                    _take(shared, clients),
                    partial(_read, rows, clients, tall),
                    mask[torch.from_numpy(clients), :, :tall],
                    lr,
                )
                for clients, tall in groups
            ]
            if len(parts) == 1:
                return parts[0]
            back = np.argsort(np.concatenate([clients for clients, _ in groups]))
            return Trained.joined(parts).take(torch.from_numpy(back).to(own.device))

    def _train(
        self,
        own: Tensor,
        shared: Tensor,
        rows: Callable[[Places], Reader],
        mask: Tensor,
        lr: float,
    ) -> Trained:
        """Train clients whose batches have about as many rows."""
        device, dtype = shared.device, shared.dtype
        busy = mask.any(dim=2).numpy()
        plan = Schedule.in_place(busy) if self._in_place else Schedule.of(busy)
        sizes, one_step = plan.left, self._plain[plan.holes]
        if self._compiled is not None:
            sizes, one_step = widths(len(own), plan.left, self._width), self._compiled
        extra = max(0, max(sizes, default=0) - len(own))
        places = np.pad(plan.order, (0, extra), mode="wrap")
        real = mask[torch.from_numpy(places)]
        real[len(own) :] = False
        real = real.to(device, non_blocking=True)
        active = real.any(dim=2)
        read = rows(places)
        before, around = _take(own, places), _take(shared, places)
        # In memory of its own: a shared vector may be one row read K times, and a compiled step
        # expects weights to lie as those of its own making do.
        state = tree_map(torch.Tensor.contiguous, self._begin(before, around))
        losses = torch.zeros(len(places), dtype=dtype, device=device)
        step_size = torch.full((), lr, dtype=dtype, device=device)
        done: list[Any] = []
        now = len(places)
        for step, n in enumerate(sizes):
            if n < now:
                done.append(tree_map(torch.clone, _part(state, slice(n, None))))
                state, now = _part(state, slice(n)), n
            inputs, targets = read(step, n)
            state, loss = one_step(state, around[:n], inputs, targets, real[:n, step], step_size)
            losses[:n] += loss * active[:n, step]
        if self._compiled is not None:  # A copy: the next step may overwrite it.
            state = tree_map(torch.clone, state)
        if done:
            state = tree_map(lambda *parts: torch.cat(parts), state, *reversed(done))
        return Trained(
            kept=_take(self._keep(state), plan.back),
            uploads=_take(self._upload(state, before, around), plan.back),
            losses=_take(losses / active.sum(dim=1).clamp(min=1), plan.back),
        )

    def _mapped(self, guarded: bool) -> Step:
        step = client_step(self._algorithm, self._model, self._task, grad_and_value, guarded)
        randomness = "different" if self._model.traits.random_forward else "error"
        return vmap(step, in_dims=(0, 0, 0, 0, 0, None), randomness=randomness)


def _read(rows: Rows, clients: Places, tall: int, places: Places) -> Reader:
    return rows(clients[places], tall)


def _part(state: Any, which: slice) -> Any:
    return tree_map(lambda vectors: vectors[which], state)


def _take(vectors: Tensor, places: Places) -> Tensor:
    """These rows; no copy is made of a row that is read many times, or where all stay in place."""
    if vectors.dim() > 1 and vectors.stride(0) == 0:
        return vectors[:1].expand(len(places), -1)
    if np.array_equal(places, np.arange(len(places))):
        return vectors[: len(places)]
    return vectors[to_device(places, vectors.device)]
