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
from pmtl.models.layout import Layout, Traits, refuse_empty
from pmtl.models.lookup import Lookups


class FlatModel:
    """`module` read as a function of a flat parameter vector."""

    def __init__(
        self, module: nn.Module, name: str = "model", traits: Traits | None = None
    ) -> None:
        """`traits` are those of the model that `module` is a copy of, if it is one."""
        refuse_running_statistics(module)
        self.module = module
        self.name = name
        self.layout = Layout.of(module, Traits.of(module) if traits is None else traits)
        refuse_empty(self.layout, name)

    @property
    def traits(self) -> Traits:
        """What an engine has to know of the model."""
        return self.layout.traits

    @property
    def size(self) -> int:
        """P, the number of trained parameters."""
        return self.layout.size

    def start(self) -> Tensor:
        """The module's present parameters, the common start of all clients."""
        present = dict(self.module.named_parameters())
        names = [parameter.name for parameter in self.layout.parameters]
        return torch.cat([present[name].detach().reshape(-1) for name in names]).clone()

    def parameters(self, vector: Tensor) -> dict[str, Tensor]:
        """The vector cut into the module's named tensors (views, no copy)."""
        return self.layout.cut(vector)

    def apply(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """The model's outputs for `inputs` under the weights `vector`."""
        with Lookups() if self.traits.looks_up else nullcontext():
            return cast(Tensor, functional_call(self.module, self.parameters(vector), (inputs,)))

    def with_weights(self, vector: Tensor) -> nn.Module:
        """An ordinary module of its own, carrying `vector`, ready to predict."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(
            {name: value.clone() for name, value in self.parameters(vector).items()}, strict=False
        )
        return module.eval()

    def to(self, device: torch.device, dtype: torch.dtype) -> FlatModel:
        """Move the module, and so the start, to a device and a floating-point type."""
        self.module.to(device=device, dtype=dtype)
        return self


def refuse_running_statistics(module: nn.Module) -> None:
    """Refuse batch normalisation, and anything else that keeps running averages.

    Such buffers are statistics of private inputs. They lie outside the clipped vector, so they
    could neither be shared without leaking nor averaged within the guarantee. Without running
    averages, batch normalisation still mixes the rows of a batch, padding among them, and what a
    client learns would depend on how many rows the others have.
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
    """Run `example` once and refuse a module whose buffers moved: the same leak, home-made."""
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
