"""Fine-tuning methods (the paper's section 5.3 and Table 1), each as what a client minimises.

    vanilla  loss_k(w)
    mean     loss_k(w) + λ/2 · ‖w − w̃‖²                                     (equation 3)
    kl       loss_k(w) + λ · ½[KL(p_w‖p_w̃) + KL(p_w̃‖p_w)], averaged over the batch's rows
    ewc      loss_k(w) + λ/2 · Σ_i F_i (w_i − w̃_i)²

w̃ is the published model that the client reads; the definitions are those of the literature: the
symmetrised divergence of answers after Yu, Bagdasaryan & Shmatikov (2020), elastic weight
consolidation after Kirkpatrick et al. (2017). They are algorithms like those that train, from which
nothing is uploaded, so the same engines run them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pmtl.algorithms import Algorithm, Local
from pmtl.algorithms.base import Gradient
from pmtl.errors import PmtlError
from pmtl.models import Batch, row_divergences
from pmtl.spec import unknown


@dataclass(frozen=True)
class Vanilla(Local):
    """SGD on the client's own loss."""

    name: ClassVar[str] = "vanilla"


@dataclass(frozen=True)
class Mean(Vanilla):
    """Every weight is pulled towards the published one, as in PMTL's own training."""

    name: ClassVar[str] = "mean"

    lam: float = 0.1

    def step(self, w: Tensor, shared: Tensor, gradient: Gradient, lr: float) -> Tensor:
        return w - lr * (gradient(w) + self.lam * (w - shared))

    def zero_gradient_steps(self, w: Tensor, shared: Tensor, lr: float, steps: Tensor) -> Tensor:
        return torch.lerp(shared, w, torch.pow(1 - lr * self.lam, steps))


@dataclass(frozen=True)
class KL(Vanilla):
    """The answers are pulled towards those of the published model, on the client's own rows.

    The divergence is between the distributions that the outputs of both models stand for
    (`models/likelihood.py`): the softmax of the logits; for several labels the sum over labels of
    the coins' divergences; for regression half the squared difference, which is that of Gaussians
    of variance one. A model with dropout answers with masks of its own on either side.
    """

    name: ClassVar[str] = "kl"

    lam: float = 1.0

    def objective(self, w: Tensor, shared: Tensor, batch: Batch) -> Tensor:
        outputs, published = batch.outputs(w), batch.outputs(shared)
        apart = row_divergences(batch.task, outputs, published)
        return batch.loss(outputs) + self.lam * batch.mean(apart)

    # `rest` is that of plain SGD: on columns that do not occur in a batch neither model's answers
    # depend, so the divergence has no gradient there.


class Weighed(NamedTuple):
    """What a client works on: its weights, and how much each of them matters."""

    w: Tensor
    fisher: Tensor


@dataclass(frozen=True)
class EWC(Algorithm):
    """Every weight is pulled towards the published one as strongly as the Fisher information there
    says that it matters (`personalize/fisher.py`).

    A client owns two vectors in one: w and the diagonal F. With a step size above 2/(λ·max F) the
    pull overshoots, as that of any quadratic does.
    """

    name: ClassVar[str] = "ewc"
    shares: ClassVar[bool] = False

    lam: float = 1.0

    def start(self, shared: Tensor) -> Tensor:
        return torch.cat([shared, torch.zeros_like(shared)])

    def begin(self, own: Tensor, shared: Tensor) -> Weighed:
        return Weighed(own[: len(shared)], own[len(shared) :])

    def step(self, state: Weighed, shared: Tensor, gradient: Gradient, lr: float) -> Weighed:
        w, fisher = state
        return Weighed(w - lr * (gradient(w) + self.lam * fisher * (w - shared)), fisher)

    def zero_gradient_steps(
        self, state: Weighed, shared: Tensor, lr: float, steps: Tensor
    ) -> Weighed:
        w, fisher = state
        return Weighed(torch.lerp(shared, w, torch.pow(1 - lr * self.lam * fisher, steps)), fisher)

    def upload(self, state: Weighed, own: Tensor, shared: Tensor) -> Tensor:
        return own[:0]  # nothing leaves

    def keep(self, state: Weighed) -> Tensor:
        return torch.cat([state.w, state.fisher])

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return own[: len(shared)]


METHODS: dict[str, type[Algorithm]] = {kind.name: kind for kind in (Vanilla, Mean, KL, EWC)}

#: What else a command may be asked for: the best of all, for every client.
SELECT = "select"


def build_method(name: str, lam: float | None = None) -> Algorithm:
    """The method of this name, with λ where one is given."""
    if name not in METHODS:
        raise unknown("method of fine-tuning", name, [*METHODS, SELECT])
    kind = METHODS[name]
    if lam is None:
        return kind()
    if not fields(kind):
        raise PmtlError(f"The method {name!r} regularises nothing, but λ = {lam} was given.")
    return kind(lam=lam)  # type: ignore[call-arg]


def needs_published(method: Algorithm) -> bool:
    """Whether the method looks at the published model at all."""
    return bool(fields(method))
