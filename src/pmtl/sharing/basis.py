"""Public directions from a file: `share=basis:file=FILE`.

The file holds either one tensor, `basis` [k, P], over all trained weights in the order of the
model's parameters, or tensors `[k, *shape]` with the names of trained parameters; parameters that
are not named do not move. The directions are made orthonormal, so that clipping the shared numbers
clips the change of the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pmtl.errors import PmtlError
from pmtl.models import FlatModel, PublicFile
from pmtl.models.layout import Parameter
from pmtl.spec import unknown

WHOLE = "basis"
#: A direction counts as dependent on those before it if less than this share of it is new.
_DEPENDENT = 1e-6


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
    if k > size or not bool((lengths > 0).all()):
        raise _not_full_rank(k, size)
    columns, triangle = torch.linalg.qr((rows / lengths[:, None]).T)
    diagonal = triangle.diagonal()
    if not bool((diagonal.abs() > _DEPENDENT).all()):
        raise _not_full_rank(k, size)
    # A weight that no direction moves stays where it is, to the last bit.
    basis: Tensor = (columns * diagonal.sign()).T * rows.ne(0).any(dim=0)
    return basis.contiguous()


def _not_full_rank(k: int, size: int) -> PmtlError:
    return PmtlError(
        f"The basis does not have full rank: its {k} directions for {size} weights depend on each "
        "other. Leave out directions that are sums of others."
    )
