"""A module and its parameters as one flat vector.

Everything that clips, averages, stores or adds noise works on a vector, so a model is a function
`apply(vector, inputs)`. Written for one client, it maps over a cohort with `torch.func.vmap`:
a `[K, P]` array of vectors then trains as one computation.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pmtl.errors import PmtlError
from pmtl.models.layout import Layout, Traits
from pmtl.models.lookup import Lookups


class FlatModel:
    """`module`, whose parameters are the start, read as a function of a flat parameter vector;
    `traits` are given if it is a copy of another model's module."""

    def __init__(
        self, module: nn.Module, name: str = "model", traits: Traits | None = None
    ) -> None:
        refuse_running_statistics(module)
        self.module = module
        self.name = name
        #: A sentence if this is not the model that a run was trained with.
        self.changed: str | None = None
        #: The names of parameters whose values come from a public file.
        self.public: frozenset[str] = frozenset()
        self.layout = Layout.of(module, Traits.of(module) if traits is None else traits)
        if not self.layout.parameters:
            raise PmtlError(
                f"The model {name!r} has no free parameters: there is nothing to train."
            )

    @property
    def traits(self) -> Traits:
        """What engines need to know about the model."""
        return self.layout.traits

    @property
    def size(self) -> int:
        """P, the number of trained parameters."""
        return self.layout.size

    def start(self) -> Tensor:
        """[P] the module's parameters, the common start of all clients."""
        present = dict(self.module.named_parameters())
        names = [parameter.name for parameter in self.layout.parameters]
        return torch.cat([present[name].detach().reshape(-1) for name in names]).clone()

    def apply(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """The model's outputs for `inputs` under the weights `vector`."""
        with Lookups() if self.traits.looks_up else nullcontext():
            return cast(Tensor, functional_call(self.module, self.layout.cut(vector), (inputs,)))

    def with_weights(self, vector: Tensor) -> nn.Module:
        """A copy of the module with the weights `vector`, in evaluation mode."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(
            {name: value.clone() for name, value in self.layout.cut(vector).items()}, strict=False
        )
        return module.eval()

    def to(self, device: torch.device, dtype: torch.dtype) -> FlatModel:
        """Move the module to a device and a floating-point type."""
        self.module.to(device=device, dtype=dtype)
        return self


def refuse_running_statistics(module: nn.Module) -> None:
    """Refuse batch normalisation, and anything else that keeps running averages.

    Such buffers are statistics of private inputs outside the clipped vector, so no guarantee covers
    them. Without running averages, batch normalisation still mixes the rows of a batch, including
    padding, so a client's training would depend on how many rows other clients have.
    """
    norms = nn.modules.batchnorm
    for name, part in module.named_modules():
        running = isinstance(part, norms._NormBase) and part.track_running_stats
        if running or isinstance(part, norms._BatchNorm):
            raise PmtlError(
                f"The layer {name or type(part).__name__!r} ({type(part).__name__}) keeps running "
                "statistics of its inputs or mixes the rows of a batch, which no clipping covers: "
                "use nn.GroupNorm or nn.LayerNorm instead."
            )


def refuse_changing_buffers(module: nn.Module, example: Tensor) -> None:
    """Run `example` once and refuse a module whose buffers changed: they keep statistics, too."""
    before = {name: value.clone() for name, value in module.named_buffers()}
    if not before:
        return
    with torch.no_grad():
        module.train()(example)
    for name, value in module.named_buffers():
        if not torch.equal(before[name], value):
            raise PmtlError(
                f"The buffer {name!r} of the model changes during a forward pass, so it keeps "
                "statistics of its inputs, which no clipping covers. Use a layer without running "
                "statistics, such as nn.GroupNorm or nn.LayerNorm."
            )
