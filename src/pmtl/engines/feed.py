"""From row indices to tensors on the training device.

Dense data that fits is copied to the device once and indexed there; data on disk or in sparse rows
stays where it is, and only the rows of a batch are read. Sparse rows can be had as they are, too
(`sparse.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.data import FederatedData
from pmtl.data.checks import is_sparse
from pmtl.engines.base import Reader
from pmtl.engines.to_device import to_device

#: Dense data up to this many bytes (as floats) is kept on the device.
RESIDENT_LIMIT = 2 * 2**30


class Feed:
    """Reads rows of a federation as tensors."""

    def __init__(self, data: FederatedData, device: torch.device, dtype: torch.dtype) -> None:
        self._data = data
        self.device = device
        self.dtype = dtype
        self.is_sparse = is_sparse(data.x)
        whole = isinstance(data.x, np.ndarray) and not isinstance(data.x, np.memmap)
        self._resident: tuple[Tensor, Tensor] | None = None
        if whole and data.x.size * dtype.itemsize <= RESIDENT_LIMIT:
            self._resident = self._to_device(*data.gather(np.arange(len(data.y))))

    def rows(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the rows `index`, whatever its shape."""
        if self._resident is None:
            return self._to_device(*self._data.gather(index))
        return _pick(self._resident, to_device(index, self.device))

    def reader(self, index: NDArray[np.int64]) -> Reader:
        """Reads the batches `index` [K, steps, batch], step by step, of the first n clients.

        The device gets the index once: to hand it over at every step would be to wait each time for
        the step before.
        """
        if self._resident is None:
            return lambda step, n: self.rows(index[:n, step])
        resident, where = self._resident, to_device(index, self.device)
        return lambda step, n: _pick(resident, where[:n, step])

    def sparse(self, index: NDArray[np.int64]) -> Any:
        """The rows `index` [n] of a sparse federation, still sparse (CSR)."""
        return self._data.x[index]

    def targets(self, index: NDArray[np.int64]) -> Tensor:
        """The targets of the rows `index`, whatever its shape."""
        return self._targets(self._data.y[index])

    def _to_device(self, x: NDArray[np.float32], y: NDArray[Any]) -> tuple[Tensor, Tensor]:
        inputs = to_device(x, self.device).to(self.dtype)
        return inputs, self._targets(y)

    def _targets(self, y: NDArray[Any]) -> Tensor:
        targets = to_device(y, self.device)
        return targets.to(self.dtype) if targets.is_floating_point() else targets


def _pick(resident: tuple[Tensor, Tensor], where: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that are on the device; as a list, because whole rows are then copied faster."""
    flat = where.flatten()
    inputs, targets = (part.index_select(0, flat) for part in resident)
    return inputs.view(*where.shape, *inputs.shape[1:]), targets.view(
        *where.shape, *targets.shape[1:]
    )
