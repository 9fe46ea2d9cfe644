"""Fine-tuning methods (the paper's section 5.3 and Table 1), each as what a client minimises.

    vanilla  loss_k(w)
    mean     loss_k(w) + λ/2 · ‖w − w̃‖²                                     (equation 3)
    kl       loss_k(w) + λ · ½[KL(p_w‖p_w̃) + KL(p_w̃‖p_w)], averaged over the batch's rows
    ewc      loss_k(w) + λ/2 · Σ_i F_i (w_i − w̃_i)²

w̃ is the published model that the client reads. The symmetrised divergence of answers is from Yu,
Bagdasaryan & Shmatikov (2020), elastic weight consolidation from Kirkpatrick et al. (2017). The
methods are algorithms that upload nothing, so the engines of training run them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pmtl.algorithms import PMTL, Algorithm, Local
from pmtl.algorithms.base import Gradient
from pmtl.errors import PmtlError
from pmtl.models import Batch, row_divergences
from pmtl.personalize.settings import DEFAULT_LAMS
from pmtl.spec import unknown


@dataclass(frozen=True)
class Vanilla(Local):
    """SGD on the client's own loss."""

    name: ClassVar[str] = "vanilla"


@dataclass(frozen=True)
class Mean(PMTL):
    """Every weight is pulled towards the published one, as in PMTL's own training."""

    name: ClassVar[str] = "mean"
    shares: ClassVar[bool] = False

    lam: float = DEFAULT_LAMS["mean"]

    def upload(self, w: Tensor, own: Tensor, shared: Tensor) -> Tensor:
        return own[:0]  # nothing leaves


@dataclass(frozen=True)
class KL(Vanilla):
    """The answers are pulled towards the published model's answers, on the client's own rows.

    The divergence is between the distributions of both models' outputs (`models/losses.py`):
    the softmax of the logits; for several labels the sum over labels; for regression half the
    squared difference (Gaussians of variance one). With dropout, the two models have different
    masks.
    """

    name: ClassVar[str] = "kl"

    lam: float = DEFAULT_LAMS["kl"]

    def objective(self, w: Tensor, shared: Tensor, batch: Batch) -> Tensor:
        outputs, published = batch.outputs(w), batch.outputs(shared)
        apart = row_divergences(batch.task, outputs, published)
        return batch.loss(outputs) + self.lam * batch.mean(apart)

    # `zero_gradient_steps` is inherited from plain SGD: neither model's answers depend on columns
    # that do not occur in a batch, so the divergence has no gradient there.


class EWCState(NamedTuple):
    """A client's weights, and their Fisher information."""

    w: Tensor
    fisher: Tensor


@dataclass(frozen=True)
class EWC(Algorithm):
    """Every weight is pulled towards the published one, in proportion to its Fisher information
    (`personalize/fisher.py`).

    A client owns two vectors in one: w and the diagonal F. A step size above 2/(λ·max F) diverges.
    """

    name: ClassVar[str] = "ewc"
    shares: ClassVar[bool] = False

    lam: float = DEFAULT_LAMS["ewc"]

    def start(self, shared: Tensor) -> Tensor:
        return torch.cat([shared, torch.zeros_like(shared)])

    def begin(self, own: Tensor, shared: Tensor) -> EWCState:
        return EWCState(own[: len(shared)], own[len(shared) :])

    def step(self, state: EWCState, shared: Tensor, gradient: Gradient, lr: float) -> EWCState:
        w, fisher = state
        return EWCState(w - lr * (gradient(w) + self.lam * fisher * (w - shared)), fisher)

    def zero_gradient_steps(
        self, state: EWCState, shared: Tensor, lr: float, steps: Tensor
    ) -> EWCState:
        w, fisher = state
        return EWCState(torch.lerp(shared, w, torch.pow(1 - lr * self.lam * fisher, steps)), fisher)

    def upload(self, state: EWCState, own: Tensor, shared: Tensor) -> Tensor:
        return own[:0]  # nothing leaves

    def keep(self, state: EWCState) -> Tensor:
        return torch.cat([state.w, state.fisher])

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return own[: len(shared)]


METHODS: dict[str, type[Algorithm]] = {kind.name: kind for kind in (Vanilla, Mean, KL, EWC)}

#: Each client chooses the best of all methods (`choosing.py`).
SELECT = "select"


def build_method(name: str, lam: float | None = None) -> Algorithm:
    """The method of this name, with this λ or its default."""
    if name not in METHODS:
        raise unknown("method of fine-tuning", name, [*METHODS, SELECT])
    kind = METHODS[name]
    if lam is None:
        return kind()
    if not fields(kind):
        raise PmtlError(f"The method {name!r} has no λ, but λ = {lam} was given.")
    return kind(lam=lam)  # type: ignore[call-arg]


def needs_published(method: Algorithm) -> bool:
    """Whether the method uses the published model: those with λ do."""
    return bool(fields(method))
