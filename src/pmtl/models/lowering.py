"""Faster forms of convolution and pooling, equal up to the order of summation.

Many clients have many *different* filters, for which libraries have only the slow grouped
convolution. As patches times filters it is one batched matrix product:

    y[o, (b,h,w)] = Σ_{c,i,j} W[o, (c,i,j)] · x[b, c, h·s + i·d, w·s + j·d]

For one client on a CPU the library's convolution is fast if images are stored with the channels
last; only a first layer on grey images is faster as patches. Layers of exactly the types
`nn.Conv2d` and `nn.MaxPool2d` are replaced, in a copy of the module with the same parameters.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pmtl.models.flat import FlatModel

Way = Literal["patches", "channels_last"]
Pair = tuple[int, ...]


def lowered(model: FlatModel, way: Way) -> FlatModel:
    """A copy of the model with faster layers: `patches` for many clients at once, `channels_last`
    for one client on a CPU."""
    module = copy.deepcopy(model.module)
    for part in module.modules():
        if type(part) is nn.Conv2d and part.groups == 1:
            part.__class__ = PatchConv2d if way == "patches" else ChannelsLastConv2d
        elif type(part) is nn.MaxPool2d and way == "patches" and _tiles(part):
            part.__class__ = TilePool2d
    return FlatModel(module, model.name, model.traits)


def has_convolutions(module: nn.Module) -> bool:
    """Whether one of its layers is a convolution."""
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())


def floats_per_row(model: FlatModel, input_shape: tuple[int, ...]) -> int:
    """About how many floats the layers need for one row: their outputs, and patches."""
    counts: list[int] = []

    def count(layer: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            counts.append(output.numel())
        if isinstance(layer, nn.Conv2d):
            counts.append(layer.weight[0].numel() * output[0, 0].numel())

    # A copy in float32: some layers do not support half precision on a CPU.
    module = copy.deepcopy(model.module).eval().to("cpu", torch.float32)
    for part in module.modules():
        if not any(part.children()):
            part.register_forward_hook(count)
    with torch.no_grad():
        module(torch.zeros((1, *input_shape)))
    return sum(counts)


class PatchConv2d(nn.Conv2d):
    """A convolution as a matrix product of filters and patches."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.dim() != 4:
            return cast(Tensor, super()._conv_forward(input, weight, bias))
        sizes = (self.kernel_size, self.stride, self.dilation)
        patches = _Patches.apply(_padded(self, input), *sizes)  # type: ignore[no-untyped-call]
        rows, height, width = patches.shape[-3:]
        out = weight.flatten(1) @ patches.flatten(3).flatten(0, 2)
        if bias is not None:
            out = out + bias.unsqueeze(1)
        images: Tensor = out.view(-1, rows, height, width).transpose(0, 1)
        return images


class ChannelsLastConv2d(nn.Conv2d):
    """A convolution whose output is stored with the channels last."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.dim() != 4:
            return cast(Tensor, super()._conv_forward(input, weight, bias))
        if self.in_channels == 1 and not input.requires_grad:
            # Without autograd, because the derivative of the input is not needed.
            sizes = (self.kernel_size, self.stride, self.dilation)
            patches = _Patches.forward(_padded(self, input), *sizes)
            rows, height, width = patches.shape[-3:]
            matrix = patches.flatten(3).flatten(0, 2).t()
            filters = weight.flatten(1).t().contiguous()
            out = matrix @ filters if bias is None else torch.addmm(bias, matrix, filters)
            return out.view(rows, height, width, -1).permute(0, 3, 1, 2)
        input = input.contiguous(memory_format=torch.channels_last)
        return cast(Tensor, super()._conv_forward(input, weight, bias))


class TilePool2d(nn.MaxPool2d):
    """A maximum over tiles that do not overlap."""

    def forward(self, input: Tensor) -> Tensor:
        # Rows inside channels, as in `PatchConv2d`: the derivative then has the memory order that
        # the convolution needs.
        images = input.transpose(-4, -3) if input.dim() == 4 else input
        best, _ = _TileMax.apply(images, _pair(self.kernel_size))  # type: ignore[no-untyped-call]
        return best.transpose(-4, -3) if input.dim() == 4 else best  # type: ignore[no-any-return]


def _padded(layer: nn.Conv2d, input: Tensor) -> Tensor:
    """The input with the layer's padding."""
    around = layer._reversed_padding_repeated_twice  # As numbers, also for "same" and "valid".
    if not any(around):
        return input
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(input, around, mode=mode)


class _Patches(torch.autograd.Function):
    """`[C, kh, kw, B, H, W]`: the inputs that each weight of a filter is multiplied with.

    The derivative is a sum of shifted images, without atomic additions, whose order is not
    repeatable."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, kernel: Pair, stride: Pair, dilation: Pair) -> Tensor:
        view = input
        for dim in (0, 1):
            reach = (kernel[dim] - 1) * dilation[dim] + 1
            view = view.unfold(2 + dim, reach, stride[dim])[..., :: dilation[dim]]
        return view.permute(1, 4, 5, 0, 2, 3).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, ctx.kernel, ctx.stride, ctx.dilation = inputs
        ctx.size = input.shape[-2:]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        spread = _spread(_spread(gradients[0], -1, ctx.stride[1]), -2, ctx.stride[0])
        (height, width), (tall, wide) = ctx.size, spread.shape[-2:]
        pieces = []
        for i in range(ctx.kernel[0]):
            for j in range(ctx.kernel[1]):
                top, left = i * ctx.dilation[0], j * ctx.dilation[1]
                place = (left, width - left - wide, top, height - top - tall)
                pieces.append(F.pad(spread[:, i, j], place))
        total = pieces[0]
        for piece in pieces[1:]:
            total = total + piece
        return total.transpose(0, 1), None, None, None


def _spread(values: Tensor, dim: int, stride: int) -> Tensor:
    """The values with `stride` − 1 zeros after each."""
    if stride == 1:
        return values
    last = values.movedim(dim, -1).unsqueeze(-1)
    return F.pad(last, (0, stride - 1)).flatten(-2).movedim(-1, dim)


class _TileMax(torch.autograd.Function):
    """The maximum of every tile and its position. As in PyTorch's pooling, the first of equal
    values wins and gets the whole derivative, and NaN wins over every number."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, tile: Pair) -> tuple[Tensor, Tensor]:
        high, wide = tile
        height, width = input.shape[-2] // high * high, input.shape[-1] // wide * wide
        best = input[..., :height:high, :width:wide]
        winner = torch.zeros_like(best, dtype=torch.int16)
        for number in range(1, high * wide):
            i, j = divmod(number, wide)
            rival = input[..., i:height:high, j:width:wide]
            wins = (rival > best) | (rival != rival)
            best = torch.where(wins, rival, best)
            winner = torch.where(wins, number, winner)
        return best, winner

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        input, ctx.tile = inputs
        ctx.size = input.shape[-2:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (winner,) = ctx.saved_tensors
        (high, wide), (height, width) = ctx.tile, ctx.size
        number = torch.arange(high * wide, device=winner.device, dtype=winner.dtype)
        # [..., H/high, high, W/wide, wide], which has the order of the image.
        won = winner[..., :, None, :, None] == number.view(high, 1, wide)
        slope = torch.where(won, gradients[0][..., :, None, :, None], 0)
        slope = slope.flatten(-4, -3).flatten(-2, -1)
        border = (0, width - slope.shape[-1], 0, height - slope.shape[-2])
        return F.pad(slope, border) if any(border) else slope, None


def _tiles(pool: nn.MaxPool2d) -> bool:
    """Whether a pooling layer has windows without overlap or gaps, and no other options."""
    plain = _pair(pool.padding) == (0, 0) and _pair(pool.dilation) == (1, 1)
    alone = not pool.ceil_mode and not pool.return_indices
    return plain and alone and _pair(pool.stride) == _pair(pool.kernel_size)


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else tuple(value)
