"""The models of a finished run, and the one that answers for a client that is not in the run.

A new client has rows and no model of its own: the shared model answers. Where each client scales
its own features, a new client does so by the rows that are to be predicted. It uses at most
`MOST_ROWS` of them, drawn at random, so that a file may be larger than memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pmtl.data import Bounds, Scaling
from pmtl.data.checks import as_model_input, is_sparse, row_chunks
from pmtl.data.scaling import scaling_of_new_client
from pmtl.data.schema.inputs import Inputs
from pmtl.errors import PmtlError, PmtlWarning, did_you_mean
from pmtl.models import FlatModel, Task
from pmtl.models.library import Linear, Standardise
from pmtl.simulation import Weights

#: A new client scales its features by at most MOST_ROWS of its rows; with fewer than FEW_ROWS there
#: is a warning.
MOST_ROWS, FEW_ROWS = 2048, 10
DIVERGED = (
    "diverged: some weights are infinite or NaN. Train again with a smaller step (--lr) or a "
    "smaller λ."
)


@dataclass(frozen=True)
class Models:
    model: FlatModel
    personal: Weights  #: the weights of clients' own models
    published: Weights  #: what clients read from the billboard
    shared: Tensor  #: [vectors, P] the shared models
    scaling: Scaling | None  #: how each client scales its rows
    bounds: Bounds | None
    clients: tuple[str, ...]
    task: Task
    outputs: int
    labels: tuple[str, ...] | None  #: the names of classes or labels
    inputs: Inputs  #: what the models read
    client_column: str | None  #: the name that the client column had in training
    unshared: str | None  #: the algorithm, if it shares nothing
    shows_model: bool  #: whether what was published predicts by itself
    one_for_all: bool  #: whether all clients have the same shared model
    spans: tuple[float, ...] | None  #: bounds (low, high, …) of the mean of a new client's targets

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
                f"{did_you_mean(str(client), self.clients)}"
            )
        return place

    def module(
        self, weights: Tensor, client: int | None, scaling: Scaling | None = None
    ) -> nn.Module:
        """A module with these weights and the scaling of the client at this position (None: if it
        is the same for all clients); `scaling` replaces the run's."""
        module = self.model.with_weights(weights)
        scaling = scaling or self.scaling
        if scaling is None:
            return module
        scale = Standardise(*scaling.of(client)).to(weights)
        return nn.Sequential(scale, module).eval()

    def own_module(self, client: str) -> nn.Module:
        place = self.position(client)
        return self.module(self.personal(np.array([place]))[0], place)

    def shared_module(self, client: str) -> nn.Module:
        """The shared model for a client of the run."""
        self.refuse_shared()
        place = self.position(client)
        return self.module(self.published(np.array([place]))[0], place)

    def refuse_shared(self) -> None:
        """Refuse to use a shared model if there is none."""
        if not self.shows_model:
            raise PmtlError(
                "What this run published is in each client's own units of the target, and predicts "
                "nothing by itself: use the clients' own models."
            )
        if self.unshared is not None:
            raise PmtlError(
                f"Nothing was shared in this run of {self.unshared}: use the clients' own models."
            )

    def refuse_new(self) -> None:
        """Refuse a client that is not in the run if no model can answer for it."""
        self.refuse_shared()
        if not self.one_for_all:
            raise PmtlError(
                f"This run published {len(self.shared)} models for different clients, and which "
                "one suits a new client is not known: name a client of the run."
            )
        if self.spans is not None:
            pairs = zip(self.spans[::2], self.spans[1::2], strict=True)
            listed = "; ".join(f"{low:,g} and {high:,g}" for low, high in pairs)
            warnings.warn(
                PmtlWarning(
                    "The shared model is right for a new client if the mean of its targets is "
                    f"between {listed}, because their level was published up to a multiple of that "
                    "distance. Train with public bounds of the target (--bounds) if it may not be."
                ),
                stacklevel=4,
            )

    def scaling_of(self, rows: NDArray[Any]) -> Scaling:
        """The scaling of a client with these training rows."""
        assert self.scaling is not None
        return scaling_of_new_client(np.array(rows), self.scaling, self.bounds)

    def answers(
        self, client: str | None, x: Any, answer: Callable[[Tensor], Tensor], exact: bool = False
    ) -> NDArray[Any]:
        """The answers of a client's model for rows; None is a client that is not in the run.

        `exact`: the library's linear model adds up in float64. In float32, the last bits of a row's
        answer depend on the rows beside it and on the processor."""
        x = self._rows(x)
        if client is None:
            self.refuse_new()
            # It scales its rows as the other clients do: by bounds, or by these rows.
            new = None if self.scaling is None else self.scaling_of(x[rows_for_scaling(len(x))])
            module = self.module(self.shared[0], 0, new)
            if x.shape[0] < FEW_ROWS and self.scaling and not self.scaling.same_for_all:
                warnings.warn(
                    PmtlWarning(
                        "A new client scales its features by the rows to be predicted, and "
                        f"{x.shape[0]} are too few for that: give {FEW_ROWS} or more of its rows "
                        "together, or train with public bounds (--bounds)."
                    ),
                    stacklevel=3,
                )
        else:
            module = self.own_module(client)
        exact = exact and isinstance(self.model.module, Linear)
        kind = torch.float64 if exact else torch.float32
        module = module.cpu().to(kind)

        def predict(rows: NDArray[Any]) -> Tensor:
            return answer(module(torch.from_numpy(np.array(rows, np.float32)).to(kind)).float())

        whose = "The shared model" if client is None else f"The model of client {client!r}"
        refuse_diverged(whose, all(bool(part.isfinite().all()) for part in module.parameters()))
        parts: Iterable[Any] = [x]
        if is_sparse(x):  # It is made dense a few rows at a time.
            parts = (x[rows].toarray() for rows in row_chunks(x.shape[0], 4 * x.shape[1]))
        with torch.no_grad():
            return np.asarray(torch.cat([predict(part) for part in parts]).numpy())

    def _rows(self, x: Any) -> Any:
        if self.inputs.schema is not None and hasattr(x, "columns"):
            x = self.inputs.schema.encode(x)
        x = x if is_sparse(x) else np.asarray(x)
        if self.inputs.pixels and x.dtype == np.uint8:
            x = as_model_input(x)
        shape = self.inputs.shape
        if x.shape[1:] != shape:
            raise PmtlError(
                f"The model needs rows of shape {shape}, but these are rows of shape {x.shape[1:]}."
            )
        return x


def rows_for_scaling(rows: int) -> NDArray[np.int64]:
    """Indices of the rows that scale a new client: all, or `MOST_ROWS` chosen by the row count
    alone."""
    if rows <= MOST_ROWS:
        return np.arange(rows)
    return np.sort(np.random.default_rng(rows).choice(rows, MOST_ROWS, replace=False))


def refuse_diverged(whose: str, finite: bool) -> None:
    """Refuse a model whose weights are not finite."""
    if not finite:
        raise PmtlError(f"{whose} {DIVERGED}")
