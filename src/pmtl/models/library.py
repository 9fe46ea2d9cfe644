"""The models of the paper's experiments, and small models for tables."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pmtl.errors import PmtlError

Shape = tuple[int, ...]
Floats = NDArray[np.float32]


class Linear(nn.Module):
    """One linear layer on the flattened input. It starts at zero, because the problem is convex."""

    def __init__(self, input_shape: Shape, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(prod(input_shape), outputs)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]


class Standardise(nn.Module):
    """(x − mean) / width, clipped, as a client did to its rows before training. Before that, NaN is
    replaced by `fill`, if there is one."""

    def __init__(
        self, mean: Floats, width: Floats, limit: Floats, fill: Floats | None = None
    ) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("width", width), ("limit", limit), ("fill", fill)):
            held = None if values is None else torch.from_numpy(np.array(values))
            self.register_buffer(name, held)

    def forward(self, x: Tensor) -> Tensor:
        if self.fill is not None:
            x = torch.where(torch.isnan(x), self.fill, x)  # type: ignore[arg-type]
        scaled = (x - self.mean) / self.width  # type: ignore[operator]
        return torch.clamp(scaled, -self.limit, self.limit)  # type: ignore[arg-type, operator]


class MLP(nn.Sequential):
    """`layers` hidden layers of `hidden` units with ReLU."""

    def __init__(self, input_shape: Shape, outputs: int, hidden: int = 64, layers: int = 1) -> None:
        if hidden < 1 or layers < 1:
            raise PmtlError("An mlp needs hidden ≥ 1 and layers ≥ 1; use logistic for no layer.")
        widths = [prod(input_shape)] + [hidden] * layers
        parts: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            parts += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*parts, nn.Linear(widths[-1], outputs))


class FemnistCNN(nn.Module):
    """The paper's FEMNIST network: two 5×5 convolutions, 115,646 parameters at 62 classes."""

    def __init__(self, input_shape: Shape, outputs: int) -> None:
        super().__init__()
        _require_pixels("femnist_cnn", input_shape, (1, 28, 28))
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(1024, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 1, 28, 28)
        # ReLU commutes with the maximum; after it, ReLU is a quarter of the work.
        x = torch.relu(self.pool(self.conv1(x)))
        x = torch.relu(self.pool(self.conv2(x)))
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


class CelebaCNN(nn.Module):
    """The paper's CelebA network, 30,498 parameters at two classes: four 3×3 convolutions.

    The paper uses batch normalisation, whose running statistics are outside the clipped vector;
    this model uses group normalisation instead (same number of parameters).
    """

    def __init__(self, input_shape: Shape, outputs: int, groups: int = 8) -> None:
        super().__init__()
        _require_pixels("celeba_cnn", input_shape, (3, 84, 84))
        parts: list[nn.Module] = []
        for channels in (3, 32, 32, 32):
            parts += [
                nn.Conv2d(channels, 32, 3, padding=1),
                nn.GroupNorm(groups, 32),
                nn.MaxPool2d(2),
                nn.ReLU(),
            ]
        self.features = nn.Sequential(*parts)
        self.head = nn.Linear(800, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x.reshape(-1, 3, 84, 84))
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


def _require_pixels(model: str, given: Shape, needed: Shape) -> None:
    if prod(given) != prod(needed):
        raise PmtlError(
            f"The model {model!r} reads images of shape {needed}, but one row of this data has "
            f"shape {given}. Use mlp or logistic, or a model of your own (package.module:factory)."
        )
