"""All rows of many clients, with the network that is trained on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pmtl.models.flat import FlatModel
from pmtl.models.linear.solve import ClientRows, padded_targets
from pmtl.models.losses import Task
from pmtl.models.lowering import floats_per_row, has_convolutions, lowered

#: The most and the fewest rows of a step, and the floats that a step's layers should need.
BATCH, LEAST_BATCH, BATCH_FLOATS = 128, 32, 2**17
#: A network whose layers need more floats for a row is heavy: it is cross-validated once.
HEAVY = 4096


class LastPlaces(NamedTuple):
    """Where the weights and the bias of the last linear layer are in the vector."""

    weights: int
    bias: int
    outputs: int
    columns: int


@dataclass(frozen=True, eq=False)
class Network:
    """A network as an exact algorithm reads it."""

    model: FlatModel
    start: Tensor  #: [P] the common start
    scales: Tensor  #: [P] the size of the start's weights, one number for each parameter tensor
    row_floats: int  #: floats that the layers need for a row
    loops: bool  #: clients one after the other: convolutions on a CPU are faster that way

    @classmethod
    def of(cls, model: FlatModel, input_shape: tuple[int, ...]) -> Network:
        """The network `model`, whose parameters are the common start."""
        start = model.start()
        loops = not start.is_cuda and has_convolutions(model.module)
        faster = lowered(model, "channels_last" if loops else "patches")
        floats = floats_per_row(model, input_shape)
        return cls(faster, start, _scales(model, start), floats, loops)

    @property
    def batch(self) -> int:
        """The most rows of a step; it depends on the network only."""
        fitting = BATCH_FLOATS // max(1, self.row_floats)
        return min(BATCH, max(LEAST_BATCH, fitting))

    @property
    def heavy(self) -> bool:
        """Whether cross-validation is limited to one fold."""
        return self.row_floats > HEAVY

    def floats(self, rows: int, outputs: int) -> int:
        """About how many floats a client with `rows` rows takes."""
        at_once = min(rows, self.batch)
        inputs = rows * (outputs + 2) + at_once * self.row_floats
        return 10 * (6 * self.model.size + 3 * inputs)

    def rows(
        self,
        task: Task,
        outputs: int,
        inputs: Tensor,
        targets: Tensor,
        real: Tensor,
        words: bool = False,
    ) -> NetworkRows:
        """The rows of K clients; the arguments are those of `LastLayer.rows`."""
        place = real.view(*real.shape, *[1] * (inputs.dim() - 2))
        x = torch.where(place, inputs, 0.0)
        y = padded_targets(task, outputs, targets, real)
        return NetworkRows(task, x, y, real.double(), self)


@dataclass(frozen=True)
class NetworkRows(ClientRows):
    """All training rows of K clients, padded to n rows; `x` [K, n, …] is what the network reads."""

    network: Network


def _scales(model: FlatModel, start: Tensor) -> Tensor:
    """The root mean square of every parameter tensor; at least a tenth of the root mean square of
    all weights, so that biases that start at zero move, too."""
    size = float(start.square().mean().sqrt()) or 0.1
    scales = torch.empty_like(start)
    for parameter in model.layout.parameters:
        own = float(start[parameter.place].square().mean().sqrt())
        scales[parameter.place] = max(own, size / 10)
    return scales


def last_places(model: FlatModel, input_shape: tuple[int, ...]) -> LastPlaces | None:
    """The last linear layer, if the network's answers are its outputs and it is trained; else None.

    With other weights in this layer, the outputs are in other units. This is tested on random rows.
    """
    parts = {part.name: part for part in model.layout.parameters}
    layers = [(n, one) for n, one in model.module.named_modules() if isinstance(one, nn.Linear)]
    if not layers:
        return None
    name, layer = layers[-1]
    weight, bias = (parts.get(f"{name}.{kind}" if name else kind) for kind in ("weight", "bias"))
    if weight is None or bias is None:
        return None
    found = LastPlaces(weight.first, bias.first, layer.out_features, layer.in_features)
    start = model.start()
    like = start.new_ones(found.outputs)
    other = in_target_units(start.unsqueeze(0), found, (3 * like)[None], (2 * like)[None])[0]
    with torch.random.fork_rng(devices=()), torch.no_grad():
        training = model.module.training
        model.module.eval()
        x = torch.rand((3, *input_shape), dtype=start.dtype).to(start.device)
        before, after = model.apply(start, x), model.apply(other, x)
        model.module.train(training)
    size = float(before.abs().max()) + 1
    same = math.isfinite(size) and torch.allclose(after, 3 * before + 2, atol=1e-3 * size)
    return found if same else None


def in_target_units(vectors: Tensor, last: LastPlaces, size: Tensor, level: Tensor) -> Tensor:
    """Vectors [K, P] whose outputs are the outputs of `vectors`, times `size` plus `level`."""
    vectors = vectors.clone()
    weights = slice(last.weights, last.weights + last.outputs * last.columns)
    bias = slice(last.bias, last.bias + last.outputs)
    size, level = size.to(vectors.dtype), level.to(vectors.dtype)
    rows = vectors[:, weights].reshape(-1, last.outputs, last.columns)
    vectors[:, weights] = (rows * size.unsqueeze(-1)).flatten(1)
    vectors[:, bias] = vectors[:, bias] * size + level
    return vectors
