"""The kinds of `share=`: which part of a model is shared.

    head.*+biases            parameters by name; the others are personal
    subspace:k=1000,seed=0   a random subspace of all trained weights
    lowrank:rank=4,seed=0    ΔW = B A for the matrices of linear and convolutional layers
    film                     a scale and a shift for each output of these layers
    basis:file=FILE          directions from a public file (`basis.py`)

A random subspace deals the weights out to k directions, each with a random sign, so the directions
are orthonormal without a product of matrices, as in feature hashing (Weinberger et al., ICML 2009);
that random subspaces of few dimensions train networks is due to Li et al. (ICLR 2018). In low-rank
adapters (Hu et al., ICLR 2022) the matrix A is random, orthonormal and fixed, and only B is shared:
with both trained, the average of products is not the product of averages, and noise on both is
multiplied (Sun et al., FFA-LoRA, ICLR 2024). FiLM: Perez et al., AAAI 2018.

All of this depends on the model and the settings only, and never on data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from pmtl.errors import PmtlError
from pmtl.models import FlatModel
from pmtl.models.layout import Parameter
from pmtl.sharing.share import Chosen, Directions, Share
from pmtl.streams import words

#: Stands for all parameters called `bias`.
BIASES = "biases"


def by_name(model: FlatModel, patterns: str) -> Share:
    """Share the parameters whose names match `patterns`, joined by +."""
    layout = model.layout
    mask = torch.zeros(layout.size, dtype=torch.bool)
    for pattern in patterns.split("+"):
        if pattern == BIASES:
            mask |= _biases(model)
        else:
            mask |= layout.mask([pattern])
    return Chosen.of(layout, mask, model.start())


def _biases(model: FlatModel) -> Tensor:
    names = [parameter.name for parameter in model.layout.parameters]
    biases = [name for name in names if name.rpartition(".")[2] == "bias"]
    if not biases:
        raise PmtlError(
            "The model has no trained parameter called bias, so share=biases would leave nothing "
            f"to share. It has {', '.join(names)}."
        )
    return model.layout.mask(biases)


def subspace(model: FlatModel, k: int, seed: int = 0) -> Share:
    """A random subspace of `k` dimensions."""
    size = model.size
    if not 1 <= k <= size:
        raise PmtlError(
            f"share=subspace needs a k from 1 to {size}, the number of trained weights, but "
            f"k={k} was given."
        )
    _check_seed(seed)
    return Directions.of(model.layout, model.start(), *_dealt(size, k, seed, "share subspace"))


def lowrank(model: FlatModel, rank: int, seed: int = 0) -> Share:
    """ΔW = B A with a shared B of `rank` columns, for every linear and convolutional layer.

    A is random with orthonormal rows and the same for all clients, so ‖ΔW‖ = ‖B‖.
    """
    if rank < 1:
        raise PmtlError(f"share=lowrank needs a rank of at least 1, but rank={rank} was given.")
    _check_seed(seed)
    direction, scale, used = _nothing(model)
    for number, (weight, _) in enumerate(_layers(model, "lowrank")):
        rows, columns = weight.shape[0], math.prod(weight.shape[1:])
        few = min(rank, columns)
        dealt, signs = _dealt(columns, few, seed, "share lowrank", number)
        of_row = few * torch.arange(rows)[:, None]
        direction[weight.place] = (used + of_row + dealt).reshape(-1)
        scale[weight.place] = signs.expand(rows, -1).reshape(-1)
        used += rows * few
    return Directions.of(model.layout, model.start(), direction, scale)


def film(model: FlatModel) -> Share:
    """A scale and a shift for each output of every linear and convolutional layer.

    The scale multiplies the start's weights. A layer whose weights start at zero has no scale, a
    layer without a bias no shift.
    """
    direction, scale, used = _nothing(model)
    start = model.start()
    for weight, bias in _layers(model, "film"):
        outputs = torch.arange(weight.shape[0])
        first = start[weight.place].reshape(len(outputs), -1)
        live = first.ne(0).any(dim=1)
        number = used + torch.cumsum(live, 0) - 1
        direction[weight.place] = torch.where(live, number, 0)[:, None].expand_as(first).flatten()
        scale[weight.place] = first.flatten()
        used += int(live.sum())
        if bias is not None:
            direction[bias.place] = used + outputs
            scale[bias.place] = 1.0
            used += len(outputs)
    if not used:
        raise PmtlError(
            "share=film would leave nothing to share: all weights start at zero, and there are no "
            "biases."
        )
    return Directions.of(model.layout, start, direction, scale)


def _nothing(model: FlatModel) -> tuple[Tensor, Tensor, int]:
    return torch.zeros(model.size, dtype=torch.long), torch.zeros_like(model.start()), 0


def _dealt(size: int, k: int, seed: int, stream: str, *counters: int) -> tuple[Tensor, Tensor]:
    """`size` weights dealt out to k orthonormal directions: the direction of each, and its number
    there. The lengths of directions differ by at most 1."""
    drawn = words(seed, stream, *counters, np.arange(size))
    direction = np.empty(size, dtype=np.int64)
    direction[np.argsort(drawn, kind="stable")] = np.arange(size) % k
    sign = 1 - 2 * (words(seed, f"{stream} signs", *counters, np.arange(size)) >> np.uint64(63))
    length = np.bincount(direction, minlength=k)[direction]
    numbers = sign.astype(np.int64) / np.sqrt(length)
    return torch.from_numpy(direction), torch.from_numpy(numbers.astype(np.float32))


def _layers(model: FlatModel, kind: str) -> Iterator[tuple[Parameter, Parameter | None]]:
    """The trained weight and bias of each linear or convolutional layer."""
    trained = {parameter.name: parameter for parameter in model.layout.parameters}
    kinds, found = (nn.Linear, nn.modules.conv._ConvNd), False
    for name, part in model.module.named_modules():
        weight = trained.get(f"{name}.weight" if name else "weight")
        bias = trained.get(f"{name}.bias" if name else "bias")
        usual = isinstance(part, kinds) and not isinstance(part, nn.modules.conv._ConvTransposeNd)
        if usual and weight is not None:
            found = True
            yield weight, bias
    if not found:
        raise PmtlError(
            f"share={kind} would leave nothing to share: the model has no linear or convolutional "
            f"layer that is trained. Its trained parameters are {', '.join(trained)}."
        )


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise PmtlError(f"The seed of share must not be negative, but {seed} was given.")
