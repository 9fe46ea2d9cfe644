"""Standardised features, by each client for itself.

Features need a common size near 1. Means and deviations over *all* clients would be a release
without noise. So each client uses its own training rows, which is local and free under billboard
privacy, and keeps the two vectors beside its model.

A feature that is only 0 and 1 in a client's rows becomes −1 and 1, so that it means the same for
all clients. Any other feature is centred at its mean and divided by its deviation; if it is
constant, it is left out (0), because a client cannot know what another value would mean. Scaled
values are limited to ±4, so that no new row can make a prediction explode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import as_model_input
from pmtl.data.splits import Rows
from pmtl.errors import PmtlError

#: A feature with a smaller relative deviation counts as constant.
_CONSTANT = 1e-6
#: A deviation of n rows is enlarged by 1 + _FEW/n: with few rows it is too small for new ones.
_FEW = 3
#: The largest scaled value.
LIMIT = 4.0


@dataclass(frozen=True, eq=False)
class Scaling:
    """How each client standardises its rows.

    Args:
        means: what clients subtract from their rows, [m, *input_shape].
        widths: what they then divide by, [m, *input_shape]; inf for a constant feature.
    """

    means: NDArray[np.float32]
    widths: NDArray[np.float32]

    def apply(self, client: int, x: NDArray[Any]) -> NDArray[np.float32]:
        """The rows `x` of one client, scaled."""
        scaled = (x - self.means[client]) / self.widths[client]
        return np.asarray(np.clip(scaled, -LIMIT, LIMIT), dtype=np.float32)

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
            centre, width = rows.mean(axis=0), rows.std(axis=0) * (1 + _FEW / len(rows))
            width = np.where(width > _CONSTANT * np.abs(rows).max(axis=0), width, np.inf)
            binary = ((rows == 0) | (rows == 1)).all(axis=0)
            means[client] = np.where(binary, 0.5, centre)
            widths[client] = np.where(binary, 0.5, width)
        mine = order[starts[client] : starts[client + 1]]
        scaled[mine] = scaling.apply(client, scaled[mine])
    return scaled, scaling
