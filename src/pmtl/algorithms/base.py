"""The interface of all algorithms.

An algorithm is a frozen dataclass of its constants with pure functions on flat vectors, written for
*one* client. Engines map them over a cohort, `client/site.py` calls them as they are.
`server_start` and `server_step` belong to the server, which sees only what passed the gate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.billboard import Billboard
from pmtl.errors import PmtlError
from pmtl.models import Batch, Layout
from pmtl.spec import convert_numbers

#: From a vector of weights to the gradient of the client's objective on the current batch.
Gradient = Callable[[Tensor], Tensor]
State = Any


@dataclass(frozen=True)
class Algorithm(ABC):
    """The base class of all algorithms.

    In the methods:
        - own: the client's own vector.
        - shared: `[P]`, the noisy vector that the client reads from the billboard.
        - state: what `begin` or the last `step` returned, a vector or a tuple of vectors.
        - gradient: from weights to the gradient of the objective on the current batch.
        - lr: the step size η.
        - round: the number of the round, from 0.
        - clients: the clients' names.
        - layout: names, shapes and places of the model's parameters.
        - common: `[P]`, the common start of all clients.
        - device, dtype: of the tensors.
    """

    name: ClassVar[str]
    #: Whether anything leaves a client.
    shares: ClassVar[bool] = True
    #: Whether clients get personal models (False: they predict with the shared model).
    personal: ClassVar[bool] = True
    #: The public input that says which clients are related, if any, for the statement.
    relations: ClassVar[str | None] = None
    #: Whether clients solve their problems exactly instead of by steps (`ExactAlgorithm`).
    exact: ClassVar[bool] = False
    #: Whether it can share a part of a model (`share`).
    shares_parts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, Real) and not isinstance(value, bool)
            valid = number and 0 <= float(value) < float("inf")
            if field.type in ("float", float) and not valid:
                raise PmtlError(
                    f"{self.name}: {field.name} must be a finite number that is not negative, "
                    f"but {value!r} was given."
                )
        convert_numbers(self)

    @classmethod
    def overrides(cls, *methods: str) -> bool:
        """Whether the class has its own version of a method.

        Args:
            *methods: names of methods, of which one is enough.
        """
        return any(getattr(cls, method) is not getattr(Algorithm, method) for method in methods)

    def bind(self, layout: Layout) -> Algorithm:
        """The algorithm for a model with this layout; by default the same algorithm.

        An algorithm that treats parts of a model differently (a shared body, personal heads) stores
        what it needs in its fields: `replace(self, personal=layout.mask(["head.*"]))`.
        """
        return self

    def to(self, device: torch.device, dtype: torch.dtype) -> Algorithm:
        """The algorithm with its own tensors, if it has any, on another device."""
        return self

    def billboard_size(self, layout: Layout) -> int:
        """The length of a vector of the billboard; by default `layout.size`, the model's length."""
        return layout.size

    def billboard_start(self, common: Tensor) -> Tensor:
        """The first vector of the billboard."""
        return common

    @property
    def shows_model(self) -> bool:
        """Whether the published weights are a model that can predict without a client's data."""
        return True

    def published(self, shared: Tensor) -> Tensor:
        """The weights `[vectors, P]` of the shared models, given the billboard `shared`."""
        return shared

    def target_spans(self, shared: Tensor) -> list[float] | None:
        """[low, high] of each numeric target if the published level is known only modulo
        (high − low): the shared model is right if a client's mean lies between them. Infinite if
        the target's size is unknown."""
        return None

    def upload_size(self, round: int) -> int | None:
        """The length of an upload in a round; None: the length of a vector of the billboard."""
        return None

    def server_start(self, shared: Tensor) -> dict[str, Tensor]:
        """The server's state between rounds besides the billboard, such as momentum."""
        return {}

    def server_step(
        self, shared: Tensor, update: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The next billboard and the next state. It uses public values only, so it costs no
        privacy.

        Args:
            shared: `[vectors, P]`, the billboard, in float64.
            update: `[vectors, P]`, the noisy average of the clipped uploads.
            memory: what `server_start` or the last step returned.
        """
        return shared + update, memory

    def warning(self, clients: int, cohort: int, rounds: int) -> str | None:
        """A warning about using this algorithm in such a run, or None.

        Args:
            clients: m, the number of clients.
            cohort: q, the expected number of clients in a round.
            rounds: the number of rounds.
        """
        return None

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        """The block of the billboard that each client reads and writes; by default one for all."""
        return np.zeros(len(clients), dtype=np.int64)

    def billboard(self, clients: tuple[str, ...]) -> Billboard:
        """The billboard; by default one vector for each block."""
        return Billboard(self.blocks(clients))

    @abstractmethod
    def start(self, shared: Tensor) -> Tensor:
        """A client's own vector before its first round, given the common start `shared`; may be
        empty."""

    @abstractmethod
    def begin(self, own: Tensor, shared: Tensor) -> State:
        """The state with which a sampled client enters the round."""

    @abstractmethod
    def step(self, state: State, shared: Tensor, gradient: Gradient, lr: float) -> State:
        """One local step."""

    def zero_gradient_steps(
        self, state: State, shared: Tensor, lr: float, steps: Tensor
    ) -> State | None:
        """The result of many steps on coordinates whose gradient is zero, or None.

        With sparse rows most coordinates have no gradient, and one formula replaces many steps. An
        algorithm that implements this promises that it treats every coordinate separately, so that
        a client may be trained on some coordinates only.

        Args:
            steps: how many steps, for each coordinate.
        """
        return None

    def objective(self, w: Tensor, shared: Tensor, batch: Batch) -> Tensor:
        """The function that `gradient` differentiates: the mean loss of a batch.

        A penalty on weights belongs in `step`, a penalty on the model's *outputs* belongs here.

        Args:
            w: `[P]`, the weights.
            batch: the rows, and the model's outputs for them.
        """
        return batch.loss(batch.outputs(w))

    @abstractmethod
    def upload(self, state: State, own: Tensor, shared: Tensor) -> Tensor:
        """What leaves the client, before clipping; `own` is from the start of the round."""

    @abstractmethod
    def keep(self, state: State) -> Tensor:
        """The client's own vector after the round."""

    @abstractmethod
    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        """The weights with which the client predicts."""
