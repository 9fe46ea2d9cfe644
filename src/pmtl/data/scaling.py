"""Scaled features: by public bounds, or by each client for itself.

Features need a common size near 1. Means and deviations over *all* clients would be a release
without noise. So each client uses its own training rows, which is local and free under billboard
privacy, and keeps the two vectors beside its model.

A feature that is only 0 and 1 in a client's rows becomes −1 and 1, and one that has a size near 1
stays as it is, so that they mean the same for all clients. Any other feature is centred at its mean
and divided by its deviation; if it is constant, it is left out (0), because a client cannot know
what another value would mean. Scaled values are limited to ±4, so that no new row can make a
prediction explode.

Empty cells of a table with a schema are filled before that, with the median of the client's own
training rows. A client keeps these values with its scaling, for new rows.

A feature with public bounds is scaled by them, the same for all clients: from low to high becomes
from −1 to 1, and values beyond are clipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import as_model_input, row_chunks
from pmtl.data.disk import temporary_file, temporary_folder_errors
from pmtl.data.readers.bounds import Bounds
from pmtl.data.splits import Rows
from pmtl.errors import PublicError

Floats = NDArray[np.float32]

#: A feature with a smaller relative deviation counts as constant.
_CONSTANT = 1e-6
#: A feature whose root mean square lies between these is kept as it is.
_NEAR_ONE = (0.1, 3.0)
#: The same for rows with at least 100 features (images, outputs of networks): features a little
#: smaller than 1 would have less effect than those that are scaled. The number of features is the
#: same for all clients.
_NEAR_ONE_OF_MANY, _MANY = (1 / 3, 3.0), 100
#: A deviation of n rows is enlarged by 1 + _FEW/n: with few rows it is too small for new ones.
_FEW = 3
#: The largest scaled value of a feature without bounds.
LIMIT = 4.0


@dataclass(frozen=True, eq=False)
class Scaling:
    """How each client scales its rows."""

    means: Floats  #: what clients subtract from their rows, [m, *input_shape]
    widths: Floats  #: what they then divide by, [m, *input_shape]; inf for a constant feature
    #: The largest scaled values, [*input_shape]; 1 with bounds, infinite if nothing is scaled.
    limits: Floats
    #: What clients put into empty cells before, [m, *input_shape]; None: there can be none.
    fills: Floats | None = None

    @property
    def scales(self) -> bool:
        """Whether features are scaled, and not only filled."""
        return bool(np.isfinite(self.limits).any())

    @property
    def same_for_all(self) -> bool:
        """Whether all features have bounds, so that all clients scale alike."""
        return bool(((self.limits != LIMIT) & np.isfinite(self.limits)).all())

    def of(self, client: int | None) -> tuple[Floats, Floats, Floats, Floats | None]:
        """Means, widths, limits and fills of a client.

        Args:
            client: the client's position; None for those that all clients share, if all features
                have bounds. Empty cells then become the middle of the bounds.
        """
        place = 0 if client is None else client
        fills = self.means if client is None else self.fills
        kept = None if self.fills is None or fills is None else fills[place]
        return self.means[place], self.widths[place], self.limits, kept

    def apply(self, client: int | NDArray[np.int64], x: NDArray[Any]) -> NDArray[np.float32]:
        """Some rows, scaled.

        Args:
            client: the position of their client, or an array with one for each row.
            x: `[n, *input_shape]`, the rows.
        """
        if self.fills is not None:
            x = np.where(np.isnan(x), self.fills[client], x)
        with np.errstate(over="ignore", invalid="ignore"):  # A warning would be about one client.
            scaled = (x - self.means[client]) / self.widths[client]
        scaled = np.where(np.isnan(scaled), 0, scaled)  # Infinitely far, of a constant feature.
        return np.asarray(np.clip(scaled, -self.limits, self.limits), dtype=np.float32)

    def select(self, clients: NDArray[np.int64]) -> Scaling:
        """The scaling of some clients only.

        Args:
            clients: their positions.
        """
        fills = None if self.fills is None else self.fills[clients]
        return Scaling(self.means[clients], self.widths[clients], self.limits, fills)


def check_scale(scale: object) -> None:
    """Refuse another value of the option `scale` than those there are."""
    if scale not in (None, "client"):
        raise PublicError(f"There is no scale {scale!r}: use scale=client, or leave it out.")


def scale_by_client(
    x: Any, owner: NDArray[np.int64], train: Rows, bounds: Bounds | None = None
) -> tuple[NDArray[np.float32], Scaling]:
    """All rows, scaled by bounds or by their owner's training rows; rows without an owner stay."""
    if not isinstance(x, np.ndarray):
        raise PublicError(
            "scale=client and bounds of features need dense features: scale them before."
        )
    middle, half, bounded = _from_bounds(bounds, x.shape[1:])
    scaled = _copy(x)
    m = len(train.counts)
    means, widths = (np.repeat(values[None], m, axis=0) for values in (middle, half))
    scaling = Scaling(means, widths, np.where(bounded, 1, LIMIT).astype(np.float32))
    low, high = _NEAR_ONE_OF_MANY if middle.size >= _MANY else _NEAR_ONE
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], np.arange(m + 1))
    for client in range(m):
        rows = scaled[train.of(client)].astype(np.float64)
        if len(rows):  # In production a client may have none.
            centre, width = rows.mean(axis=0), rows.std(axis=0) * (1 + _FEW / len(rows))
            width = np.where(width > _CONSTANT * np.abs(rows).max(axis=0), width, np.inf)
            size = np.sqrt(np.square(rows).mean(axis=0))
            kept = (size > low) & (size < high) & np.isfinite(width)
            centre, width = np.where(kept, 0.0, centre), np.where(kept, 1.0, width)
            binary = ((rows == 0) | (rows == 1)).all(axis=0)
            with np.errstate(over="ignore"):  # Too wide for float32: as if it were constant.
                means[client] = np.where(bounded, middle, np.where(binary, 0.5, centre))
                widths[client] = np.where(bounded, half, np.where(binary, 0.5, width))
        mine = order[starts[client] : starts[client + 1]]
        scaled[mine] = scaling.apply(client, scaled[mine])
    return scaled, scaling


def fill_by_client(
    x: Any, owner: NDArray[np.int64], train: Rows, bounds: Bounds | None = None
) -> tuple[Any, Scaling]:
    """All rows, with empty cells (NaN) filled by the median of their owner's training rows.

    A column that a client has no value of gets the middle of its bounds, or 0. The median is the
    lower one, so that a boolean stays one.
    """
    middle = _from_bounds(bounds, x.shape[1:])[0]
    m = len(train.counts)
    fills = np.repeat(middle[None], m, axis=0)
    limits = np.full_like(middle, np.inf)
    scaling = Scaling(np.zeros_like(fills), np.ones_like(fills), limits, fills)
    x = _copy(x)
    for client in range(m):
        rows = np.sort(x[train.of(client)], axis=0)  # NaN comes last.
        if len(rows):
            present = len(rows) - np.isnan(rows).sum(axis=0)
            place = np.maximum(present - 1, 0) // 2
            found = np.take_along_axis(rows, place[None], axis=0)[0]
            fills[client] = np.where(present > 0, found, middle)
    for chunk in row_chunks(len(x), x.nbytes // len(x)):
        part, mine = x[chunk], owner[chunk]
        rows, columns = np.nonzero(np.isnan(part))
        part[rows, columns] = np.where(mine[rows] < 0, 0, fills[mine[rows], columns])
    return x, scaling


def _copy(x: NDArray[Any]) -> NDArray[np.float32]:
    """The rows as models read them, to be written into: on disk if `x` is there. What is done to
    them must not depend on where they are, which depends on how many rows the clients have."""
    if not isinstance(x, np.memmap):
        return np.array(as_model_input(x))
    file = temporary_file()
    with temporary_folder_errors():  # Written, not mapped: a full disk is then an error.
        for chunk in row_chunks(len(x), x.nbytes // len(x)):
            file.write(as_model_input(x[chunk]).tobytes())
        file.flush()
    return np.memmap(file, dtype=np.float32, mode="r+", shape=x.shape)


def scaling_of_new_client(
    x: NDArray[np.float32], like: Scaling, bounds: Bounds | None = None
) -> Scaling:
    """The scaling of a client that was not in training: from its rows `x` alone (NaN is an empty
    cell), by the same rules as `like`, the scaling of the clients in training."""
    rows, owner = Rows(np.arange(len(x)), np.array([0, len(x)])), np.zeros(len(x), dtype=np.int64)
    fills = None
    if like.fills is not None:
        x, filled = fill_by_client(x, owner, rows, bounds)
        if not like.scales:
            return filled
        fills = filled.fills
    return replace(scale_by_client(x, owner, rows, bounds)[1], fills=fills)


def _from_bounds(
    bounds: Bounds | None, shape: tuple[int, ...]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    """The middle and half the width of every feature, and which features have bounds."""
    if bounds is None or not bounds.features:
        return np.zeros(shape, np.float32), np.ones(shape, np.float32), np.zeros(shape, dtype=bool)
    known = [pair is not None for pair in bounds.features]
    pairs = np.array([pair or (-1.0, 1.0) for pair in bounds.features])
    middle, half = pairs.mean(axis=1), (pairs[:, 1] - pairs[:, 0]) / 2
    return middle.astype(np.float32), half.astype(np.float32), np.array(known)
