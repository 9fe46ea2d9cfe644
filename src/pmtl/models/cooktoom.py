"""Convolution with fewer products, after Toom (1963) and Cook (1966).

n neighbouring outputs of a filter with r weights depend on a = n + r − 1 inputs, and are a bilinear
form of rank a: a products give what n·r of them give when written out,

    y = Oᵀ [(F g) ⊙ (Iᵀ d)],

where O, F and I take the values of polynomials at a points. Along the height of an image, for every
tile of n rows and with sums over channels and the filter's width, this becomes a matrix products

    M[p] = V[p] U[p],    V[p] of size [images·tiles·columns, filter width·channels],

and everything else is linear and small. Only one direction is done this way: in both the products
would be fewer still, but the transforms more, and the rounding errors. With n = 4 and the points 0,
±1, ±2, ±1/2, ∞ they are a few times those of adding up.

(Lavin & Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, do it in both
directions, and name it after Winograd, who proved that fewer products are not possible.)
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

#: n, the rows of a tile.
TILE = 4
#: In the order in which they are used, before ∞.
_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
#: Heights of filters that it is used for: shorter ones gain little, taller ones lose digits.
_HEIGHTS = (3, 4, 5)
#: Products saved for each number that is moved instead, from which it pays (benchmarks/steps.py: at
#: 36 it is about as quick as the library, below slower, at 69 and above quicker).
_SAVED = 50
#: Floats of patches at a time: they should stay in a core's own cache.
_BLOCK_FLOATS = 2**19


class Transforms(NamedTuple):
    """The matrices for one height of filter and of image; `tiles` T."""

    inputs: Tensor  #: [a·T, height], Iᵀ for all tiles
    filters: Tensor  #: [a, r], F
    outputs: Tensor  #: [n, a], Oᵀ
    tiles: int


def pays(input: tuple[int, ...], weight: tuple[int, ...]) -> bool:
    """Whether a convolution of this shape, with stride and dilation 1, is quicker this way on a
    CPU: `input` [images, channels, height, width], `weight` [filters, channels, height, width]."""
    filters, channels, high, wide = weight
    rows = input[2] - high + 1
    if rows < 1 or high not in _HEIGHTS:
        return False
    depth, tiles = wide * channels, -(-rows // TILE)
    fewer = rows * high / (tiles * (TILE + high - 1))
    return (fewer - 1) * depth * filters / (depth + filters) >= _SAVED


def suits(input: Tensor, weight: Tensor) -> bool:
    """Whether there are digits to spare: half precision has none, and autocast would bring it."""
    precise = input.dtype == weight.dtype and input.dtype in (torch.float32, torch.float64)
    return precise and len(input) > 0 and not torch.is_autocast_enabled("cpu")


def convolve(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution of `images` [B, height, width, channels] with stride and dilation 1, as
    [B, rows, columns, filters]."""
    return _Convolution.apply(images, weight, bias)[0]  # type: ignore[no-untyped-call, no-any-return]


@cache
def transforms(high: int, height: int, dtype: torch.dtype) -> Transforms:
    """For filters of height r = `high` on images of a height."""
    a = TILE + high - 1
    tiles = -(-(height - high + 1) // TILE)
    # To multiply polynomials with n and r terms is to evaluate both at a points, to multiply, and
    # to solve with the square matrix of powers; to slide a filter is the transpose of that.
    solving = np.linalg.inv(_powers(a, a)).T
    inputs = np.zeros((a, tiles, tiles * TILE + high - 1))
    for tile in range(tiles):
        inputs[:, tile, tile * TILE : tile * TILE + a] = solving
    return Transforms(
        # Below the image there would only be zeros.
        inputs=torch.tensor(inputs[:, :, :height], dtype=dtype).flatten(0, 1),
        filters=torch.tensor(_powers(a, high), dtype=dtype),
        outputs=torch.tensor(_powers(a, TILE).T, dtype=dtype),
        tiles=tiles,
    )


def _powers(points: int, terms: int) -> NDArray[np.float64]:
    """[points, terms]: the powers of every point; at ∞ only the last one counts."""
    finite = np.vander(_POINTS[: points - 1], terms, increasing=True)
    return np.vstack([finite, np.eye(terms)[-1]])


class _Convolution(torch.autograd.Function):
    """Forward and backward are the same matrix products, on as many images at a time as fit."""

    @staticmethod
    def forward(
        images: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, height, width, channels = images.shape
        filters, _, high, wide = weight.shape
        by = transforms(high, height, images.dtype)
        a, columns = TILE + high - 1, width - wide + 1
        seen = by.inputs @ images.reshape(rows, height, width * channels)
        seen = seen.view(rows, a, by.tiles, width, channels)
        kernel = by.filters @ weight.permute(0, 2, 3, 1).reshape(filters, high, wide * channels)
        kernel = kernel.permute(1, 2, 0)  # [a, wide·channels, filters]
        out = images.new_empty(rows, by.tiles, TILE, columns, filters)
        for some in _blocks(seen, wide):
            products = _patches(seen[some], wide).bmm(kernel)
            tiles = by.outputs @ products.view(a, products[0].numel())
            tiles = tiles.view(TILE, len(out[some]), by.tiles, columns, filters)
            torch.add(tiles.permute(1, 2, 0, 3, 4), 0 if bias is None else bias, out=out[some])
        return out.flatten(1, 2)[:, : height - high + 1].contiguous(), seen, kernel

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        images, weight, bias = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(images, weight, *output[1:])
        ctx.biased = bias is not None

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        images, weight, seen, kernel = ctx.saved_tensors
        if torch.is_grad_enabled():  # Somebody will ask for derivatives of derivatives.
            return _differentiable(images, weight, slope, ctx.biased)
        filters, channels, high, wide = weight.shape
        rows, height, columns = len(seen), slope.shape[1] + high - 1, slope.shape[2]
        by = transforms(high, height, slope.dtype)
        a, width = TILE + high - 1, columns + wide - 1
        by_bias = slope.sum((0, 1, 2)) if ctx.biased else None
        missing = by.tiles * TILE - slope.shape[1]
        slope = F.pad(slope, (0, 0, 0, 0, 0, missing)) if missing else slope
        slope = slope.view(rows, by.tiles, TILE, columns, filters)
        by_kernel, by_seen = kernel.new_zeros(a, filters, wide * channels), torch.zeros_like(seen)
        for some in _blocks(seen, wide):
            tiles = slope[some].permute(2, 0, 1, 3, 4).reshape(TILE, slope[some].numel() // TILE)
            products = (by.outputs.t() @ tiles).view(a, tiles.shape[1] // filters, filters)
            by_kernel.baddbmm_(products.transpose(1, 2), _patches(seen[some], wide))
            patches = products.bmm(kernel.transpose(1, 2))
            patches = patches.view(a, len(seen[some]), by.tiles, columns, wide, channels)
            for k, met in enumerate(patches.transpose(0, 1).unbind(4)):
                by_seen[some].narrow(3, k, columns).add_(met)
        by_images = by.inputs.t() @ by_seen.view(rows, a * by.tiles, width * channels)
        by_weight = by.filters.t() @ by_kernel.transpose(0, 1)
        return (
            by_images.view(rows, height, width, channels),
            by_weight.view(filters, high, wide, channels).permute(0, 3, 1, 2),
            by_bias,
        )


def _differentiable(
    images: Tensor, weight: Tensor, slope: Tensor, biased: bool
) -> tuple[Tensor | None, ...]:
    """The derivatives as the library has them, which can be differentiated again."""
    x, out = images.permute(0, 3, 1, 2), slope.permute(0, 3, 1, 2)
    by_images = conv2d_input(x.shape, weight, out)  # type: ignore[no-untyped-call]
    by_weight = conv2d_weight(x, weight.shape, out)  # type: ignore[no-untyped-call]
    return by_images.permute(0, 2, 3, 1), by_weight, out.sum((0, 2, 3)) if biased else None


def _blocks(seen: Tensor, wide: int) -> list[slice]:
    """Images whose patches fit together."""
    step = max(1, _BLOCK_FLOATS // (seen[0].numel() * wide))
    return [slice(first, first + step) for first in range(0, len(seen), step)]


def _patches(seen: Tensor, wide: int) -> Tensor:
    """[a, images·tiles·columns, wide·channels]: what every column of a filter's window meets."""
    images, a, tiles, width, channels = seen.shape
    size = (a, images, tiles, width - wide + 1, wide * channels)
    row = width * channels
    strides = (tiles * row, a * tiles * row, row, channels, 1)
    return seen.as_strided(size, strides, seen.storage_offset()).reshape(a, -1, wide * channels)
