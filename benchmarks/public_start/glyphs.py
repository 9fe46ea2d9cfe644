"""Random distortions of public glyphs, as large batches on one device.

A glyph is white on black, 112 pixels a side, and a capital letter is 44 pixels high. FEMNIST shows
black ink on white paper, 28 pixels a side. A distorted glyph is slanted, turned, stretched, moved,
bent and made thinner or thicker, then reduced to 28 pixels and inverted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

SIDE = 28
#: Points a side that are sampled of every pixel, to avoid jagged edges.
FINE = 3
#: How often a glyph is thinned, left alone, or thickened by 1, 2 or 3 pixels a side.
THICKNESS = (0.15, 0.35, 0.3, 0.15, 0.05)


@dataclass(frozen=True)
class Style:
    """Standard deviations of the distortions; a style of its own for every image of a batch."""

    turn: float = 0.10  #: radians
    slant: float = 0.22
    size: float = 0.16  #: of the logarithm
    aspect: float = 0.12  #: of the logarithm
    move: float = 0.07  #: of half the image
    bend: float = 0.05  #: of half the image; of the points of a coarse grid


class Glyphs:
    """The glyphs of some fonts in five thicknesses."""

    def __init__(self, file: str, device: str, fonts: list[int] | None = None) -> None:
        """`fonts` are the fonts that are used; all unless given."""
        with np.load(file) as stored:
            pixels = stored["g"] if fonts is None else stored["g"][fonts]
        plain = torch.from_numpy(pixels).to(device)
        self.fonts, self.classes = plain.shape[:2]
        flat = plain.flatten(0, 1)[:, None].half() / 255
        thin = 1 - F.max_pool2d(1 - flat, 3, 1, 1)
        lost = thin.sum((1, 2, 3)) < 0.4 * flat.sum((1, 2, 3))
        thin[lost] = flat[lost]  # A hairline would vanish.
        thick = [F.max_pool2d(flat, size, 1, size // 2) for size in (3, 5, 7)]
        self._all = torch.stack([thin, flat, *thick])
        self._odds = torch.tensor(THICKNESS, device=device)
        self.device = device

    def batch(self, rows: int, style: Style) -> tuple[Tensor, Tensor]:
        """Images [rows, 1, 28, 28] with paper 1 and ink 0, and their classes."""
        font = torch.randint(self.fonts, (rows,), device=self.device)
        label = torch.randint(self.classes, (rows,), device=self.device)
        weight = torch.multinomial(self._odds, rows, replacement=True)
        return self.draw(font, label, weight, distortions(rows, style, self.device), style), label

    def draw(
        self, font: Tensor, label: Tensor, weight: Tensor, affine: Tensor, style: Style
    ) -> Tensor:
        """These glyphs, with these affine distortions, bent at random."""
        rows = len(font)
        image = self._all[weight, font * self.classes + label].float()
        side = SIDE * FINE
        grid = F.affine_grid(affine, [rows, 1, side, side], align_corners=False)
        amount = style.bend * 2 * torch.rand(rows, 1, 1, 1, device=self.device)
        coarse = amount * torch.randn(rows, 2, 6, 6, device=self.device)
        bend = F.interpolate(coarse, (side, side), mode="bicubic", align_corners=True)
        grid = grid + bend.permute(0, 2, 3, 1)
        fine = F.grid_sample(image, grid, align_corners=False)
        ink = F.avg_pool2d(fine, FINE)
        strength = 0.9 + 0.4 * torch.rand(rows, 1, 1, 1, device=self.device)
        return 1 - (ink * strength).clamp(0, 1)


def distortions(rows: int, style: Style, device: str) -> Tensor:
    """Random affine maps [rows, 2, 3] from places in the result to places in the glyph."""
    random = torch.randn(rows, 6, device=device)
    turn, slant = style.turn * random[:, 0], style.slant * random[:, 1]
    size, aspect = style.size * random[:, 2], style.aspect * random[:, 3]
    cos, sin = turn.cos(), turn.sin()
    wide, high = (-(size + aspect)).exp(), (aspect - size).exp()
    first = torch.stack([wide * cos, wide * (slant * cos - sin)], 1)
    second = torch.stack([high * sin, high * (slant * sin + cos)], 1)
    return torch.stack(
        [
            torch.cat([row, style.move * random[:, 4 + n : 5 + n]], 1)
            for n, row in enumerate((first, second))
        ],
        1,
    )
