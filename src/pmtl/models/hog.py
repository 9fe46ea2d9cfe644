"""A linear layer on histograms of oriented gradients: fixed features, so few parameters.

Noise on a published model has norm σ√d, so the shared model should be small. With features that
need no training (Dalal & Triggs, CVPR 2005, without overlapping blocks), 4 × 4 cells and 18
directions, 62 classes take 17,918 parameters; the paper's network has 115,646.
"""

from __future__ import annotations

from math import isqrt, pi, prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pmtl.errors import PmtlError
from pmtl.models.library import Shape


class HogLinear(nn.Module):
    """One linear layer, started at zero, on `cells` × `cells` histograms of `bins` directions.

    It reads grey square images, as `[rows, pixels]` or `[rows, 1, height, width]`.
    """

    def __init__(self, input_shape: Shape, outputs: int, cells: int = 4, bins: int = 18) -> None:
        super().__init__()
        self.side = isqrt(prod(input_shape))
        if self.side**2 != prod(input_shape) or not 1 <= cells <= self.side or bins < 2:
            raise PmtlError(
                f"The model 'hog' reads grey square images and cuts them into cells, but one row "
                f"of this data has shape {input_shape} (with cells={cells}, bins={bins})."
            )
        self.cells, self.bins = cells, bins
        self.head = nn.Linear(bins * cells**2, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """Histograms of the gradients' directions, each pixel with the length of its gradient,
        normalised to a common size; `[rows, bins · cells²]`."""
        x = F.pad(x.reshape(-1, 1, self.side, self.side), (1, 1, 1, 1), mode="replicate")
        right = x[..., 1:-1, 2:] - x[..., 1:-1, :-2]
        down = x[..., 2:, 1:-1] - x[..., :-2, 1:-1]
        length = torch.sqrt(right.square() + down.square() + 1e-12)
        direction = torch.atan2(down, right) * (self.bins / (2 * pi))
        centres = torch.arange(self.bins, dtype=x.dtype, device=x.device).view(1, -1, 1, 1)
        # A direction adds to its two neighbouring bins, by distance; the bins are periodic.
        apart = torch.remainder(direction - centres + self.bins / 2, self.bins) - self.bins / 2
        weights = length * (1 - apart.abs()).clamp(min=0)
        sums: Tensor = F.adaptive_avg_pool2d(weights, self.cells).flatten(1)
        size: Tensor = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
        return sums / (size + 1e-3)
