"""The kinds of `share=`: which part of a model is shared.

    head.*+biases            parameters by name; the others are personal
    subspace:k=1000,seed=0   a random subspace of all trained weights
    lowrank:rank=4,seed=0    ΔW = B A for the matrices of linear and convolutional layers
    film                     a scale and a shift for each output of these layers
    basis:file=FILE          directions from a public file

A random subspace assigns every weight to one of k directions, with a random sign, so directions are
orthonormal without a product of matrices, as in feature hashing (Weinberger et al., ICML 2009);
that random subspaces of few dimensions train networks is due to Li et al. (ICLR 2018). In low-rank
adapters (Hu et al., ICLR 2022) the matrix A is random, orthonormal and fixed, and only B is shared:
with both trained, the average of products is not the product of averages, and noise on both is
multiplied (Sun et al., FFA-LoRA, ICLR 2024). FiLM: Perez et al., AAAI 2018.

A file of directions holds either one tensor, `basis` [k, P], over all trained weights in the order
of the model's parameters, or tensors `[k, *shape]` with the names of trained parameters; parameters
that are not named do not move. They are made orthonormal, so that clipping the shared numbers clips
the change of the weights.

All of this depends on the model and the settings only, and never on data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from pmtl.errors import PmtlError
from pmtl.models import FlatModel, PublicFile
from pmtl.models.layout import Parameter
from pmtl.sharing.share import Chosen, Directions, Share
from pmtl.spec import unknown
from pmtl.streams import words

#: Stands for all parameters called `bias`.
BIASES = "biases"
#: The only tensor of a basis over all trained weights.
WHOLE = "basis"
#: A direction counts as dependent on earlier ones if less than this share of it is new.
_DEPENDENT = 1e-6


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
    return Directions.of(model.layout, model.start(), *_assign(size, k, seed, "share subspace"))


def lowrank(model: FlatModel, rank: int, seed: int = 0) -> Share:
    """ΔW = B A with a shared B of `rank` columns, for every linear and convolutional layer.

    A is random with orthonormal rows and the same for all clients, so ‖ΔW‖ = ‖B‖.
    """
    if rank < 1:
        raise PmtlError(f"share=lowrank needs a rank of at least 1, but rank={rank} was given.")
    _check_seed(seed)
    direction, scale, used = _empty_share(model)
    for number, (weight, _) in enumerate(_layers(model, "lowrank")):
        rows, columns = weight.shape[0], math.prod(weight.shape[1:])
        few = min(rank, columns)
        assigned, signs = _assign(columns, few, seed, "share lowrank", number)
        of_row = few * torch.arange(rows)[:, None]
        direction[weight.place] = (used + of_row + assigned).reshape(-1)
        scale[weight.place] = signs.expand(rows, -1).reshape(-1)
        used += rows * few
    return Directions.of(model.layout, model.start(), direction, scale)


def film(model: FlatModel) -> Share:
    """A scale and a shift for each output of every linear and convolutional layer.

    The scale multiplies the start's weights. A layer whose weights start at zero has no scale, a
    layer without a bias no shift.
    """
    direction, scale, used = _empty_share(model)
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


def _empty_share(model: FlatModel) -> tuple[Tensor, Tensor, int]:
    return torch.zeros(model.size, dtype=torch.long), torch.zeros_like(model.start()), 0


def _assign(size: int, k: int, seed: int, stream: str, *counters: int) -> tuple[Tensor, Tensor]:
    """Assign `size` weights to k orthonormal directions: the direction of each weight, and its
    coefficient. The numbers of weights of two directions differ by at most 1."""
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
        transposed = isinstance(part, nn.modules.conv._ConvTransposeNd)
        if isinstance(part, kinds) and not transposed and weight is not None:
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


def basis_rows(file: PublicFile, model: FlatModel) -> Tensor:
    """The orthonormal directions `[k, P]` that a file spans."""
    tensors = {name: _checked(name, value) for name, value in file.tensors.items()}
    if not tensors:
        raise PmtlError("The basis has no tensors, so nothing would be shared.")
    k = len(next(iter(tensors.values())))
    rows = torch.zeros(k, model.size, dtype=torch.float64)
    parameters: tuple[Parameter, ...]
    if set(tensors) == {WHOLE}:
        parameters = (Parameter(WHOLE, (model.size,), 0),)
    else:
        parameters = model.layout.parameters
    places = {parameter.name: parameter for parameter in parameters}
    for name, value in tensors.items():
        if name not in places:
            raise unknown("trained parameter", name, places)
        place, shape = places[name].place, places[name].shape
        if tuple(value.shape) != (k, *shape):
            wanted = ", ".join(["k", *map(str, shape)])
            raise PmtlError(
                f"The basis does not fit the model: its {name!r} has the shape "
                f"{tuple(value.shape)}, but [{wanted}] is needed, with the same k throughout."
            )
        rows[:, place] = value.double().reshape(k, -1)
    return _orthonormal(rows).to(model.start().dtype)


def _checked(name: str, value: Tensor) -> Tensor:
    if not value.is_floating_point() or value.dim() < 1 or not len(value):
        raise PmtlError(
            f"The basis cannot be used: {name!r} is of type {value.dtype} and shape "
            f"{tuple(value.shape)}, but k rows of floating-point numbers are needed."
        )
    return value


def _orthonormal(rows: Tensor) -> Tensor:
    """An orthonormal basis of the span of `rows`, the rows themselves if they are orthonormal."""
    k, size = rows.shape
    lengths = torch.linalg.vector_norm(rows, dim=1)
    if k <= size and bool((lengths > 0).all()):
        columns, triangle = torch.linalg.qr((rows / lengths[:, None]).T)
        diagonal = triangle.diagonal()
        if bool((diagonal.abs() > _DEPENDENT).all()):
            # A weight that no direction moves must not change at all.
            basis: Tensor = (columns * diagonal.sign()).T * rows.ne(0).any(dim=0)
            return basis.contiguous()
    raise PmtlError(
        f"The basis does not have full rank: its {k} directions for {size} weights depend on each "
        "other. Leave out directions that are sums of others."
    )
