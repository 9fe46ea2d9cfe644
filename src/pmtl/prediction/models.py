"""The models of a finished run, and the one that answers for a client that is not in the run.

A new client has rows and no model of its own: the shared model answers. Where clients scale their
features by themselves, a new client does it like them, by the rows that are to be predicted. It
uses at most `MOST_ROWS` of them, drawn at random, so that a file may be larger than memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pmtl.data import Bounds, Rows, Scaling
from pmtl.data.checks import as_model_input, is_sparse, row_chunks
from pmtl.data.scaling import scale_by_client
from pmtl.errors import PmtlError, PmtlWarning
from pmtl.models import FlatModel, Task
from pmtl.models.library import Standardise
from pmtl.simulation import Weights

#: A new client scales its features by at most this many of its rows, and is warned about fewer
#: than this many.
MOST_ROWS, FEW_ROWS = 2048, 10


@dataclass(frozen=True)
class Models:
    """The models of a run."""

    model: FlatModel
    personal: Weights  #: the weights of clients' own models
    published: Weights  #: what clients read from the billboard
    shared: Tensor  #: [vectors, P] the shared models
    scaling: Scaling | None  #: how each client scales its rows
    bounds: Bounds | None
    clients: tuple[str, ...]
    task: Task
    input_shape: tuple[int, ...]
    pixels: bool  #: whether bytes are pixels, which become numbers between 0 and 1
    none_for_new: str | None  #: why no model can answer for a new client; None if one can

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {client: place for place, client in enumerate(self.clients)}

    def find(self, client: str) -> int | None:
        """The position of a client, or None if it is not in the run."""
        return self._positions.get(str(client))

    def position(self, client: str) -> int:
        """The position of a client; one that is not in the run is refused."""
        place = self.find(client)
        if place is None:
            raise PmtlError(
                f"There is no client {str(client)!r} in this run; it has {len(self.clients)}, from "
                f"{self.clients[0]!r} to {self.clients[-1]!r}."
            )
        return place

    def module(self, weights: Tensor, client: int, scaling: Scaling | None = None) -> nn.Module:
        """A module with these weights and the scaling of the client at this position; `scaling`
        replaces the run's."""
        module = self.model.with_weights(weights)
        scaling = scaling or self.scaling
        if scaling is None:
            return module
        means, widths = scaling.means[client], scaling.widths[client]
        scale = Standardise(means, widths, scaling.limits).to(weights)
        return nn.Sequential(scale, module).eval()

    def own_module(self, client: str) -> nn.Module:
        """The personal model of a client."""
        place = self.position(client)
        return self.module(self.personal(np.array([place]))[0], place)

    def shared_module(self, client: str) -> nn.Module:
        """The shared model for a client of the run."""
        place = self.position(client)
        return self.module(self.published(np.array([place]))[0], place)

    def refuse_new(self) -> None:
        """Refuse a client that is not in the run if no model can answer for it."""
        if self.none_for_new is not None:
            raise PmtlError(self.none_for_new)

    def new_scaling(self, x: NDArray[Any]) -> Scaling | None:
        """How a client that is not in the run scales its rows `x`: like the others, by bounds or by
        its own rows. None if the run does not scale."""
        if self.scaling is None:
            return None
        some = np.array(x[rows_for_scaling(len(x))])
        everybody = Rows(np.arange(len(some)), np.array([0, len(some)]))
        return scale_by_client(some, np.zeros(len(some), np.int64), everybody, self.bounds)[1]

    def answers(
        self, client: str | None, x: Any, answer: Callable[[Tensor], Tensor]
    ) -> NDArray[Any]:
        """What a client's model says about rows; None is a client that is not in the run."""
        x = self._rows(x)
        if client is None:
            self.refuse_new()
            module = self.module(self.shared[0], 0, self.new_scaling(x))
            warn_of_few_rows(self, len(x) if not is_sparse(x) else x.shape[0])
        else:
            module = self.own_module(client)
        module = module.cpu().float()
        whose = "The shared model" if client is None else f"The model of client {client!r}"
        refuse_diverged(whose, all(bool(part.isfinite().all()) for part in module.parameters()))
        with torch.no_grad():
            if not is_sparse(x):
                return np.asarray(answer(module(torch.from_numpy(np.array(x, np.float32)))).numpy())
            # Sparse rows are made dense a few at a time.
            parts = (x[rows].toarray() for rows in row_chunks(x.shape[0], 4 * x.shape[1]))
            answers = [answer(module(torch.from_numpy(part.astype(np.float32)))) for part in parts]
        return np.asarray(torch.cat(answers).numpy())

    def _rows(self, x: Any) -> Any:
        x = x if is_sparse(x) else np.asarray(x)
        if self.pixels and x.dtype == np.uint8:
            x = as_model_input(x)
        if x.shape[1:] != self.input_shape:
            raise PmtlError(
                f"The model needs rows of shape {self.input_shape}, but these are rows of shape "
                f"{x.shape[1:]}."
            )
        return x


def rows_for_scaling(rows: int) -> NDArray[np.int64]:
    """The rows of so many, in order, by which a new client scales: all, or `MOST_ROWS` of them that
    depend only on their number."""
    if rows <= MOST_ROWS:
        return np.arange(rows)
    return np.sort(np.random.default_rng(rows).choice(rows, MOST_ROWS, replace=False))


def warn_of_few_rows(models: Models, rows: int) -> None:
    """Warn that a new client with few rows cannot scale them well."""
    if rows < FEW_ROWS and models.scaling is not None and not models.scaling.same_for_all:
        warnings.warn(
            PmtlWarning(
                f"A new client scales its features by the rows to be predicted, and {rows} are too "
                f"few for that: give {FEW_ROWS} or more of its rows together, or train with public "
                "bounds (--bounds)."
            ),
            stacklevel=4,
        )


def refuse_diverged(whose: str, finite: bool) -> None:
    """Refuse a model whose weights are not finite."""
    if not finite:
        raise PmtlError(
            f"{whose} diverged: some weights are infinite or NaN. Train again with a smaller step "
            "(--lr) or a smaller λ."
        )
