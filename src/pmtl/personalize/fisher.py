"""The Fisher information: how much every weight of the published model matters to a client.

    F_i = E_{row} E_{y ~ p_w̃(·|x)} [ (∂ log p_w̃(y|x) / ∂w_i)² ]

over the client's own training rows. One label for each row is drawn from the model, which is
unbiased. (The rows' own labels would give squared gradients of the *loss*, which are not a
curvature.) A draw is a function of (seed, client, row), so a client's F does not depend on others.

The gradients of rows are computed by `vmap(grad)`. For a linear model the gradient is an outer
product e ⊗ x, with e the derivative at the outputs, so F is a product of two matrices; on sparse
rows it is zero except in the columns that occur in a client's rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from pmtl.data import FederatedData
from pmtl.engines.base import Ints, Mask
from pmtl.engines.row_tensors import to_device
from pmtl.engines.sparse import Block, is_linear, sizes_of, small_model
from pmtl.models import FlatModel, draw_targets, row_nll, uniforms_per_row
from pmtl.models.lowering import lowered
from pmtl.simulation import RowTensors
from pmtl.streams import name_keys, uniforms

#: Floats of the gradients that are held at once on a CPU (so that they fit in its caches) and on a
#: GPU, and rows of a client at once for linear models, which hold no gradients.
CPU_FLOATS, _GPU_FLOATS, _ROWS = 2**22, 2**28, 256


class Fisher:
    """Estimates the diagonal of the Fisher information for any clients of a federation."""

    def __init__(
        self, data: FederatedData, tensors: RowTensors, model: FlatModel, seed: int
    ) -> None:
        self._task = data.task
        self._rows = data.rows("train")
        self._tensors = tensors
        self._model = model
        self._linear = is_linear(model)
        self._layered = model if self._linear else lowered(model, "patches")
        self._seed = seed
        self._keys = name_keys(data.clients)
        self._draws = np.arange(uniforms_per_row(data.task, data.outputs))

    def __call__(self, clients: Ints, weights: Tensor) -> Tensor:
        """F `[K, P]` of the clients, at their `weights` [K, P]."""
        counts, starts = self._rows.counts[clients], self._rows.offsets[clients]
        floats = _GPU_FLOATS if weights.is_cuda else CPU_FLOATS
        at_once = _ROWS if self._linear else max(1, floats // weights.numel())
        at_once = min(at_once, int(counts.max()))
        place = np.arange(-(-int(counts.max()) // at_once) * at_once).reshape(-1, at_once)
        real = place < counts[:, None, None]
        index = self._rows.order[starts[:, None, None] + np.where(real, place, 0)]
        with torch.no_grad():
            total = self._sum(clients, weights, index, real)
            return total / to_device(counts, weights.device)[:, None]

    def _sum(self, clients: Ints, weights: Tensor, index: Ints, real: Mask) -> Tensor:
        """The sum of squared gradients over the rows `index` [K, steps, at_once] where `real`."""
        if not (self._tensors.is_sparse and self._linear):
            read = lambda step, there: self._tensors.rows(index[there, step])[0]  # noqa: E731
            return self._steps(self._layered, weights, clients, real, read)
        block, sizes = Block(self._tensors, index, real), sizes_of(self._model)
        total = self._steps(
            small_model(self._model, block.width),
            block.take(weights, *sizes),
            clients,
            real,
            lambda step, there: block.rows(step)[0][to_device(there, weights.device)],
        )
        whole = torch.zeros_like(weights)
        block.put(whole, total, *sizes)
        return whole

    def _steps(
        self,
        model: FlatModel,
        weights: Tensor,
        clients: Ints,
        real: Mask,
        read: Callable[[int, Ints], Tensor],
    ) -> Tensor:
        model.module.eval()
        total = torch.zeros_like(weights)
        at_once, device = real.shape[2], weights.device
        for step in range(real.shape[1]):
            there = np.flatnonzero(real[:, step].any(axis=1))
            chosen = to_device(there, device)
            at, inputs = weights[chosen], read(step, there)
            place = step * at_once + np.arange(at_once)
            chance = uniforms(
                *(self._seed, "fisher", self._keys[clients[there]][:, None, None]),
                *(place[:, None], self._draws),
            )
            outputs = vmap(model.apply)(at, inputs)
            drawn = to_device(chance, device).to(outputs.dtype)
            targets = draw_targets(self._task, outputs, drawn)
            mask = to_device(real[there, step], device).to(outputs.dtype)
            if self._linear:
                total[chosen] += self._outer(inputs, outputs, targets, mask)
            else:
                total[chosen] += self._mapped(model, at, inputs, targets, mask)
        return total

    def _outer(self, inputs: Tensor, outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """For a linear model: (e ⊗ x)² = e² ⊗ x², and e² for the intercept."""
        slope = grad(lambda given: row_nll(self._task, given, targets).sum())(outputs)
        errors = slope**2 * mask[..., None]
        of_weights = torch.einsum("kro,krf->kof", errors, inputs.flatten(2) ** 2)
        return torch.cat([of_weights.flatten(1), errors.sum(1)], dim=1)

    def _mapped(
        self, model: FlatModel, weights: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor
    ) -> Tensor:
        """For any model, row by row."""

        def surprise(w: Tensor, row: Tensor, target: Tensor) -> Tensor:
            given = model.apply(w, row.unsqueeze(0))
            return row_nll(self._task, given, target.unsqueeze(0))[0]

        slopes = vmap(vmap(grad(surprise), in_dims=(None, 0, 0)))(weights, inputs, targets)
        total: Tensor = (slopes**2 * mask[..., None]).sum(1)
        return total
