"""From row indices to tensors on the training device.

Dense data that fits is copied to the device once and indexed there. If data is on disk or sparse,
only the rows of a batch are read. `sparse.py` reads sparse rows without making them dense.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.data import FederatedData
from pmtl.data.checks import is_sparse
from pmtl.engines.base import CohortBatches, Ints, Mask

#: Dense data up to this many bytes (as floats) is kept on the device.
RESIDENT_LIMIT = 2 * 2**30


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values on the device, without waiting for work that is queued there."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)


class RowTensors:
    """Reads rows of a federation as tensors."""

    def __init__(self, data: FederatedData, device: torch.device, dtype: torch.dtype) -> None:
        self.data = data
        self.device = device
        self.dtype = dtype
        self.is_sparse = is_sparse(data.x)
        whole = isinstance(data.x, np.ndarray) and not isinstance(data.x, np.memmap)
        self._resident: tuple[Tensor, Tensor] | None = None
        if whole and data.x.size * dtype.itemsize <= RESIDENT_LIMIT:
            self._resident = self._read(np.arange(len(data.y)))

    @property
    def resident(self) -> bool:
        """Whether all rows are on the device."""
        return self._resident is not None

    def rows(self, index: Ints | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the rows `index`, of any shape."""
        if self._resident is None:
            return self._read(np.asarray(index))
        where = index if isinstance(index, Tensor) else to_device(index, self.device)
        flat = where.flatten()  # A flat index copies whole rows faster.
        inputs, targets = (part.index_select(0, flat) for part in self._resident)
        shape = where.shape
        return inputs.view(*shape, *inputs.shape[1:]), targets.view(*shape, *targets.shape[1:])

    def targets(self, index: Ints) -> Tensor:
        """The targets of the rows `index`, of any shape."""
        targets = to_device(self.data.y[index], self.device)
        return targets.to(self.dtype) if targets.is_floating_point() else targets

    def _read(self, index: Ints) -> tuple[Tensor, Tensor]:
        inputs, _ = self.data.gather(index)
        return to_device(inputs, self.device).to(self.dtype), self.targets(index)


@dataclass(frozen=True)
class IndexedBatches(CohortBatches):
    """The batches of a cohort, by row number."""

    tensors: RowTensors
    clients: Ints  #: [K] client numbers
    index: Ints  #: [K, steps, batch] rows of the data
    mask: Mask

    def select(self, clients: Ints, rows: int) -> IndexedBatches:
        part = (clients, slice(None), slice(rows))
        return IndexedBatches(
            self.tensors, self.clients[clients], self.index[part], self.mask[part]
        )

    def name(self, k: int) -> str:
        return str(self.tensors.data.clients[self.clients[k]])

    def read(self, step: int, n: int) -> tuple[Tensor, Tensor]:
        return self.tensors.rows(self._device_index[:n, step])

    @cached_property
    def _device_index(self) -> Ints | Tensor:
        # Copied once for all steps: a copy in every step would wait for the step before.
        return to_device(self.index, self.tensors.device) if self.tensors.resident else self.index
