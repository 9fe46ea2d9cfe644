"""The interface of all algorithms.

An algorithm is a frozen dataclass of its constants with pure functions on flat vectors, written for
*one* client. A simulation maps them over a cohort, a site calls them for its own client.
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

from pmtl.algorithms import names_sharing_parts
from pmtl.algorithms.default.shared_part import Share
from pmtl.billboard import Billboard
from pmtl.errors import PmtlError
from pmtl.models import Batch, FlatModel, Layout, Task
from pmtl.models.linear.last_layer import LastLayer, last_layer
from pmtl.models.linear.solve import ClientRows
from pmtl.models.network.rows import LastPlaces, Network
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


@dataclass(frozen=True)
class Sizes:
    """Public numbers of a federation and its model, from which an algorithm may decide."""

    task: Task  #: what kind of target is predicted
    outputs: int  #: number of model outputs
    columns: int  #: features of the linear part of the model, and 1 for the intercept
    linear: bool  #: whether only one linear layer, the last one, is trained
    factor: float = 1.0  #: features are multiplied by this, to have a size near 1
    bounded: bool = False  #: whether features are scaled by public bounds to −1 … 1
    target_range: tuple[float, float] | None = None  #: public bounds of a numeric target
    weights: int = 0  #: how many numbers the model trains
    start_norm: float = 0.0  #: the length of the common start
    public_start: bool = False  #: whether the start comes from a public file
    last: LastPlaces | None = None  #: where the last linear layer is, if answers are its outputs
    public_head: bool = False  #: whether the weights of the linear layer come from a public file

    @property
    def begins_at_head(self) -> bool:
        """Whether the public head is used. Not for regression: targets have different units."""
        return self.public_head and self.task != "regression"


class ExactAlgorithm(Algorithm):
    """An algorithm whose clients use all their rows at once instead of taking steps.

    `compute_uploads` and `finish` are written for many clients at once; a client's result does not
    depend on the other clients.

    In the methods:
        - rows: all training rows of the K clients.
        - billboard: `[K, B]`, what each client reads.
    """

    exact: ClassVar[bool] = True
    shares_parts: ClassVar[bool] = False
    #: Whether training begins with the common start.
    uses_start: ClassVar[bool] = False
    #: Whether `finish_after` needs the clients' last uploads.
    uses_last_upload: ClassVar[bool] = False

    def reader(self, model: FlatModel, input_shape: tuple[int, ...]) -> LastLayer | Network:
        """Converts a client's rows to `ClientRows`; by default with the model's linear part.

        Args:
            model: the model.
            input_shape: the shape of a row.
        """
        layer = last_layer(model, input_shape)
        if layer is None:
            raise PmtlError(f"The algorithm {self.name!r} needs a linear model.")
        return layer

    @property
    def begins_at_start(self) -> bool:
        """Whether the trained weights of a public start count (after `resolve`)."""
        return self.uses_start

    @property
    def default_share(self) -> str | None:
        """The part of the model that is shared unless `share` is given; None: all."""
        return None

    def with_part(self, part: Share) -> ExactAlgorithm:
        """The algorithm on a part of the model.

        Args:
            part: the part that is shared.
        """
        raise PmtlError(
            f"The algorithm {self.name!r} cannot share a part of a model: it works on the whole "
            f"model. Leave share out, or use {names_sharing_parts()}."
        )

    @property
    @abstractmethod
    def releases(self) -> int:
        """How many releases the algorithm makes."""

    @property
    @abstractmethod
    def in_words(self) -> str:
        """A description of the releases, for the privacy statement."""

    @abstractmethod
    def resolve(self, sizes: Sizes, strength: float) -> ExactAlgorithm:
        """The algorithm with all settings decided from public numbers.

        Args:
            sizes: of the federation and its model.
            strength: mμ, the number of clients times the μ of the budget; inf without noise.
        """

    @abstractmethod
    def with_noise(self, noise: float) -> ExactAlgorithm:
        """The algorithm for a plan with this noise.

        Args:
            noise: its standard deviation on the average, for uploads of norm 1.
        """

    def repeats(self, round: int) -> bool:
        """Whether the uploads of this round are the same as in the round before."""
        return False

    @abstractmethod
    def compute_uploads(self, rows: ClientRows, billboard: Tensor, round: int) -> Tensor:
        """The uploads [K, U] of a round, before clipping to norm 1."""

    @abstractmethod
    def alone(self, own: Tensor) -> Tensor:
        """The weights [P] of the client's model without the others, from its `own` vector."""

    @abstractmethod
    def finish(self, rows: ClientRows, billboard: Tensor) -> Tensor:
        """What clients own after the last release [K, own]."""

    def finish_after(self, rows: ClientRows, billboard: Tensor, last: Tensor) -> Tensor:
        """`finish`, given the last uploads.

        Args:
            last: `[K, U]`, the clients' last uploads before clipping.
        """
        return self.finish(rows, billboard)

    def _takes_no_steps(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    begin = step = upload = keep = _takes_no_steps
