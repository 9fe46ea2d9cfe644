"""Standardised features, by each client for itself.

Gradient steps need features of a size near 1. Means and deviations over *all* clients would be a
release without noise. So each client uses the mean and deviation of its own training rows, which is
local and free under billboard privacy, and keeps these two vectors beside its model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import as_model_input
from pmtl.data.splits import Rows
from pmtl.errors import PmtlError

#: A feature with a smaller relative deviation counts as constant and is only centred.
_CONSTANT = 1e-6


@dataclass(frozen=True, eq=False)
class Scaling:
    """How each client standardises its rows.

    Args:
        means: the means that clients subtract from their rows, [m, *input_shape].
        widths: the deviations by which they then divide, [m, *input_shape].
    """

    means: NDArray[np.float32]
    widths: NDArray[np.float32]

    def apply(self, client: int, x: NDArray[Any]) -> NDArray[np.float32]:
        """The rows `x` of one client, scaled."""
        return np.asarray((x - self.means[client]) / self.widths[client], dtype=np.float32)

    def select(self, clients: NDArray[np.int64]) -> Scaling:
        return Scaling(self.means[clients], self.widths[clients])


def scale_by_client(
    x: Any, owner: NDArray[np.int64], train: Rows
) -> tuple[NDArray[np.float32], Scaling]:
    """All rows, standardised by their owner's training rows; rows without an owner stay."""
    if not isinstance(x, np.ndarray) or isinstance(x, np.memmap):
        raise PmtlError("scale=client needs dense features that fit in memory: scale them before.")
    scaled = np.array(as_model_input(x))
    m = len(train.counts)
    means = np.zeros((m, *x.shape[1:]), dtype=np.float32)
    widths = np.ones_like(means)
    scaling = Scaling(means, widths)
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], np.arange(m + 1))
    for client in range(m):
        rows = scaled[train.of(client)].astype(np.float64)
        if len(rows):  # In production a client may have none.
            means[client] = rows.mean(axis=0)
            width = rows.std(axis=0)
            widths[client] = np.where(width > _CONSTANT * (1 + np.abs(means[client])), width, 1)
        mine = order[starts[client] : starts[client + 1]]
        scaled[mine] = scaling.apply(client, scaled[mine])
    return scaled, scaling
