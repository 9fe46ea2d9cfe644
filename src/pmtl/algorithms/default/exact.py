"""The interface of algorithms without steps, and the public numbers from which they decide."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from pmtl.algorithms import names_sharing_parts
from pmtl.algorithms.base import Algorithm
from pmtl.errors import PmtlError

if TYPE_CHECKING:  # Solvers are for exact algorithms; all others are trained without them.
    from pmtl.algorithms.default.shared_part import Share
    from pmtl.models import FlatModel, Task
    from pmtl.models.linear.last_layer import LastLayer
    from pmtl.models.linear.solve import ClientRows
    from pmtl.models.network.rows import LastPlaces, Network


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
        from pmtl.models.linear.last_layer import last_layer  # Only exact algorithms need it.

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
