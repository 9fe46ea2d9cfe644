"""The anatomy that all algorithms share.

An algorithm is a frozen dataclass of its own constants with pure functions on flat vectors,
written for *one* client:

    start    what a client owns before its first round, given the common start
    begin    the state with which it enters a round
    step     one local step, given a gradient function
    upload   what leaves the client (and is then clipped by the gate, never here)
    keep     what stays with the client until it is sampled again
    predict  the weights with which it answers
    rest     many steps at once where the gradient is zero (not every algorithm has it)
    objective  what the gradient is taken of: the loss, unless answers are regularised, too

and two for the server, which sees only what passed the gate:

    server_start   what it keeps beside the billboard (momentum, say)
    server_step    how the noisy average changes the billboard

The simulator maps them over a cohort, a real site calls them for itself: one definition for both.
`shared` is the part of the billboard that the client reads, already noisy. The *state* within a
round is one vector or a tuple of vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pmtl.billboard import Billboard
from pmtl.errors import PmtlError
from pmtl.models import Batch, Layout
from pmtl.spec import settle_numbers

#: The gradient of the client's objective on its present batch, at a vector of weights.
Gradient = Callable[[Tensor], Tensor]
State = Any


@dataclass(frozen=True)
class Algorithm(ABC):
    """What every algorithm must say of itself."""

    name: ClassVar[str]
    #: Whether anything leaves a client at all.
    shares: ClassVar[bool] = True
    #: Whether clients end up with models of their own (False: they answer with what is published).
    personal: ClassVar[bool] = True
    #: What is known beforehand of who is like whom, if anything is; it must be public.
    relations: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type != "float":
                continue
            if not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
                raise PmtlError(
                    f"{self.name}: {field.name} must be a finite number that is not negative, "
                    f"but {value!r} was given."
                )
        settle_numbers(self)

    def bind(self, layout: Layout) -> Algorithm:
        """The algorithm for a model of this layout; most need not know it, and return themselves.

        One that treats parts of a model differently (a shared body, personal heads) keeps what it
        needs of the layout in fields of its own: `replace(self, personal=layout.mask(["head.*"]))`.
        """
        return self

    def server_start(self, shared: Tensor) -> dict[str, Tensor]:
        """What the server keeps from round to round beside the billboard; nothing, as a rule."""
        return {}

    def server_step(
        self, shared: Tensor, update: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The next billboard, and what the server keeps.

        It works on what could be published as it is, so it costs no privacy.

        Args:
            shared: `[vectors, P]`, the billboard, in float64.
            update: the noisy average of the clipped uploads, of the same shape.
            memory: what `server_start` or the last step returned.
        """
        return shared + update, memory

    def warning(self, clients: int, cohort: int, rounds: int) -> str | None:
        """What a user should know of this algorithm in such a run before spending a budget."""
        return None

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        """The block of the billboard that each client reads and writes; usually one for all."""
        return np.zeros(len(clients), dtype=np.int64)

    def billboard(self, clients: tuple[str, ...]) -> Billboard:
        """The billboard: as a rule one vector for each block."""
        return Billboard(self.blocks(clients))

    @abstractmethod
    def start(self, shared: Tensor) -> Tensor:
        """What a client owns before its first round (an empty vector if it owns nothing)."""

    @abstractmethod
    def begin(self, own: Tensor, shared: Tensor) -> State:
        """The state with which a sampled client enters the round."""

    @abstractmethod
    def step(self, state: State, shared: Tensor, gradient: Gradient, lr: float) -> State:
        """One local step."""

    def zero_gradient_steps(
        self, state: State, shared: Tensor, lr: float, steps: Tensor
    ) -> State | None:
        """Where `steps` steps (a whole number) lead on coordinates whose gradient is zero.

        With sparse rows most coordinates are such, and they need not be walked through step by
        step. To answer is to say, too, that this algorithm treats every coordinate by itself, so
        that a client may be trained on some of them only; None says that it does not.
        """
        return None

    def objective(self, w: Tensor, shared: Tensor, batch: Batch) -> Tensor:
        """What `gradient` is the gradient of, on one batch: the mean loss of its rows.

        A penalty on weights belongs in `step`, where it has a closed form; one on the model's
        *answers* belongs here.
        """
        return batch.loss(batch.outputs(w))

    @abstractmethod
    def upload(self, state: State, own: Tensor, shared: Tensor) -> Tensor:
        """What leaves the client; `own` is what it owned when the round began."""

    @abstractmethod
    def keep(self, state: State) -> Tensor:
        """What the client owns from now on."""

    @abstractmethod
    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        """The weights with which the client predicts."""
