"""Linear models on sparse rows.

A client's batches of one round hold a few hundred of ten thousand words. The gradient of a linear
model is zero on the weights of all other columns. So a round trains a *block*: the columns that
occur in these batches, as a smaller linear model with dense inputs, over the client axis.

The other coordinates still move, since PMTL pulls each of them towards w̃ in every step. An
algorithm's `zero_gradient_steps` computes E such steps in closed form. So a round costs a few
passes over a client's vector and E passes over its block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from pmtl.algorithms import Algorithm
from pmtl.data import Rows
from pmtl.engines.axis import AxisTrainer, rounded_up
from pmtl.engines.base import CohortBatches, Ints, Mask, Trained
from pmtl.engines.row_tensors import RowTensors, to_device
from pmtl.models import FlatModel, Task
from pmtl.models.library import Linear


class Block:
    """The rows `[K, steps, batch]` of K clients on the columns that occur in them.

    `real` marks the rows that are not padding. All clients have blocks of the same `width`, by
    default the largest number of columns that a client has, rounded up so that few widths exist. A
    narrower block repeats its last column, with zeros as inputs.
    """

    def __init__(
        self, tensors: RowTensors, index: Ints, real: Mask, width: int | None = None
    ) -> None:
        self._index = index
        self._tensors = tensors
        clients, steps, self._batch = index.shape
        ordered = real.transpose(1, 0, 2)  # So that the entries of a step are contiguous.
        taken = tensors.data.x[index.transpose(1, 0, 2)[ordered]]  # Still sparse (CSR).
        step, client, place = (np.repeat(n, np.diff(taken.indptr)) for n in np.nonzero(ordered))
        self._bounds = np.searchsorted(step, np.arange(steps + 1))
        present = np.zeros((clients, taken.shape[1]), dtype=bool)
        present[client, taken.indices] = True
        within = present.cumsum(axis=1, dtype=np.int32) - 1
        counts = present.sum(axis=1)
        widest = max(1, int(counts.max(initial=0)))
        self.width = min(rounded_up(widest), taken.shape[1]) if width is None else width
        owner, column = np.nonzero(present)
        columns = np.zeros((clients, self.width), dtype=np.int64)
        columns[owner, within[owner, column]] = column
        last = np.minimum(np.arange(self.width), np.maximum(counts - 1, 0)[:, None])
        self._last = self._tensor(last)
        self.columns = self._tensor(np.take_along_axis(columns, last, axis=1))
        self._entries = self._tensor(np.stack([client, place, within[client, taken.indices]]))
        self._values = self._tensor(taken.data).to(tensors.dtype)

    def rows(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs `[K, batch, width]` and targets of a step."""
        shape = (len(self._index), self._batch, self.width)
        inputs = torch.zeros(shape, dtype=self._tensors.dtype, device=self._tensors.device)
        part = slice(*self._bounds[step : step + 2].tolist())
        client, place, column = self._entries[:, part]
        inputs[client, place, column] = self._values[part]
        return inputs, self._tensors.targets(self._index[:, step])

    def take(self, vectors: Tensor, features: int, outputs: int) -> Tensor:
        """Vectors `[K, n · outputs · (features + 1)]` of n models, cut to the block's columns."""
        weights, bias = _split(vectors, features, outputs)
        chosen = weights.gather(3, _expand_columns(self.columns, weights))
        return torch.cat([chosen.flatten(2), bias], dim=2).flatten(1)

    def put(self, vectors: Tensor, part: Tensor, features: int, outputs: int) -> None:
        """Write the block's coordinates back into the vectors: the inverse of `take`."""
        weights, bias = _split(vectors, features, outputs)
        chosen, bias[:] = _split(part, self.width, outputs)
        # A repeated last column is written several times, with the same value.
        chosen = chosen.gather(3, _expand_columns(self._last, weights))
        weights.scatter_(3, _expand_columns(self.columns, weights), chosen)

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        return to_device(values, self._tensors.device)


@dataclass(frozen=True)
class BlockBatches(CohortBatches):
    """The batches of some clients of a block."""

    block: Block
    clients: Ints
    mask: Mask

    def select(self, clients: Ints, rows: int) -> BlockBatches:
        return BlockBatches(self.block, self.clients[clients], self.mask[clients, :, :rows])

    def read(self, step: int, n: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.block.rows(step)
        chosen, rows = to_device(self.clients[:n], inputs.device), self.mask.shape[2]
        return inputs[chosen, :rows], targets[chosen, :rows]


@dataclass(frozen=True)
class SparseTrainer:
    """Trains cohorts of linear models on sparse rows."""

    algorithm: Algorithm
    model: FlatModel
    task: Task
    tensors: RowTensors
    isolate: bool = False  #: for production (`slots.py`)

    @staticmethod
    def fits(algorithm: Algorithm, model: FlatModel, tensors: RowTensors) -> bool:
        """Whether these can be trained on blocks; all others are trained on dense batches."""
        return tensors.is_sparse and is_linear(model) and _has_closed_form(algorithm)

    def train(
        self,
        own: Tensor,
        shared: Tensor,
        index: Ints,
        real: Mask,
        lr: float,
        width: int | None = None,
    ) -> Trained:
        """Train each client from `own` [K, …] around its `shared` [K, P] on its batches: the rows
        `index` [K, steps, batch] where they are `real`. `width`: see `Block`."""
        algorithm, sizes = self.algorithm, sizes_of(self.model)
        with torch.no_grad():
            block = Block(self.tensors, index, real, width)
            small = small_model(self.model, block.width)
            trainer = AxisTrainer(algorithm, small, self.task, isolate=self.isolate)
            batches = BlockBatches(block, np.arange(len(index)), real)
            part = trainer.train(block.take(own, *sizes), block.take(shared, *sizes), batches, lr)
            steps = torch.from_numpy(real.any(axis=2).sum(axis=1)).to(shared)
            state = vmap(algorithm.begin)(own, shared)
            state = vmap(algorithm.zero_gradient_steps, in_dims=(0, 0, None, 0))(
                state, shared, lr, steps
            )
            uploads = vmap(algorithm.upload)(state, own, shared)
            kept = vmap(algorithm.keep)(state)
            # Without a step, `kept` may share its memory with `own`, which must not change.
            shares_memory = kept.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
            kept = kept.clone() if shares_memory else kept.contiguous()
            block.put(kept, part.kept, *sizes)
            block.put(uploads, part.uploads, *sizes)
            return Trained(kept, uploads, part.losses)


def sparse_outputs(
    tensors: RowTensors,
    model: FlatModel,
    weights: Tensor,
    index: Ints,
    real: Mask,
    width: int | None = None,
) -> tuple[Tensor, Tensor]:
    """A linear model's outputs for the rows `[K, n]` under `weights` [K, P], and their targets.
    `width`: see `Block`."""
    block = Block(tensors, index[:, None], real[:, None], width)
    inputs, targets = block.rows(0)
    small = small_model(model, block.width)
    return vmap(small.apply)(block.take(weights, *sizes_of(model)), inputs), targets


def client_widths(x: Any, rows: Rows) -> Ints:
    """Each client's width of its block, by its own rows alone: distinct columns, rounded up."""
    widths = np.ones(len(rows.counts), dtype=np.int64)
    for client in np.flatnonzero(rows.counts):
        columns = len(np.unique(x[rows.of(int(client))].indices))
        widths[client] = min(rounded_up(max(1, columns)), x.shape[1])
    return widths


def is_linear(model: FlatModel) -> bool:
    """Whether it is the library's linear model without frozen parameters."""
    return type(model.module) is Linear and model.size == sum(
        value.numel() for value in model.module.parameters()
    )


def sizes_of(model: FlatModel) -> tuple[int, int]:
    """Features and outputs of a linear model."""
    outputs, features = model.module.get_parameter("linear.weight").shape
    return features, outputs


def small_model(model: FlatModel, features: int) -> FlatModel:
    """The same kind of model on fewer features, as a function of its weights."""
    with torch.device("meta"):  # Takes no memory and draws no random numbers.
        return FlatModel(Linear((features,), sizes_of(model)[1]), model.name)


def _split(vectors: Tensor, features: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Vectors of n linear models in a row, as weights `[K, n, outputs, features]` and biases
    `[K, n, outputs]`, without a copy."""
    cut, size = outputs * features, outputs * (features + 1)
    models = vectors.view(len(vectors), vectors.shape[1] // size, size)
    return models[..., :cut].view(*models.shape[:2], outputs, features), models[..., cut:]


def _expand_columns(columns: Tensor, weights: Tensor) -> Tensor:
    """The same columns [K, width] for every row of the weights."""
    return columns[:, None, None].expand(-1, *weights.shape[1:3], -1)


def _has_closed_form(algorithm: Algorithm) -> bool:
    """Whether `zero_gradient_steps` agrees with `step`. This is tested, because a subclass may
    change `step` and inherit a closed form that no longer agrees."""
    if not algorithm.overrides("zero_gradient_steps"):
        return False
    shared = torch.linspace(-1, 1, 5, dtype=torch.float64)
    own = algorithm.start(shared)
    if len(own) % len(shared):
        return False
    state = algorithm.begin(own + torch.linspace(0.1, 1, len(own), dtype=own.dtype), shared)
    closed_form = algorithm.zero_gradient_steps(
        state, shared, 0.1, torch.tensor(3.0, dtype=torch.float64)
    )
    if closed_form is None:
        return False
    for _ in range(3):
        state = algorithm.step(state, shared, torch.zeros_like, 0.1)
    return all(map(torch.allclose, tree_leaves(closed_form), tree_leaves(state)))
