"""The linear part of a model: the one linear layer that is trained, and the features it reads.

In a linear model this is the whole model. `hog`, and a network in which all layers but the last are
frozen, have one linear layer on fixed features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pmtl.models.flat import FlatModel
from pmtl.models.hog import HogLinear
from pmtl.models.library import Linear
from pmtl.models.linear.solve import ClientRows, padded_targets
from pmtl.models.losses import Task

#: How many penalties an algorithm may try at a time.
_PENALTIES = 18


@dataclass(frozen=True)
class LastLayer:
    """A model that is a linear layer on fixed features."""

    module: nn.Module
    layer: nn.Linear
    public: bool = False  #: whether the layer's own weights come from a public file

    @property
    def fixed(self) -> bool:
        """Whether a fixed network computes the features from the columns."""
        return type(self.module) is not Linear

    @property
    def start(self) -> Tensor | None:
        """[1 + columns, outputs] the layer's public weights, with which training begins. Clients
        scale raw columns, so public weights of raw columns would not fit them and are not used. A
        head of zeros does not count."""
        slopes, intercepts = self.layer.weight.detach(), self.layer.bias.detach()
        if not (self.public and self.fixed and bool(slopes.any())):
            return None
        return torch.cat([intercepts.unsqueeze(0), slopes.T / self.factor]).double()

    @property
    def columns(self) -> int:
        """How many features the layer reads."""
        return self.layer.in_features

    @property
    def factor(self) -> float:
        """A public number that brings fixed features to a size near 1: all features of `hog`
        together have norm 1."""
        return math.sqrt(self.columns) if isinstance(self.module, HogLinear) else 1.0

    def features(self, x: Tensor) -> Tensor:
        """[rows, columns] what the layer reads for the rows `x`; no columns if it is not called."""
        if not self.fixed:
            return x.flatten(1)
        seen: list[Tensor] = []
        hook = self.layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            with torch.no_grad():
                self.module.eval()(x)
        finally:
            hook.remove()
        return seen[0].flatten(1) if seen else x.new_zeros(len(x), 0)

    def floats(self, rows: int, outputs: int) -> int:
        """About how many floats a client with `rows` rows takes."""
        d = self.columns + 1
        table = 2 * min(rows, d) ** 2 + outputs * (6 * d + 4 * rows) + rows
        return 3 * rows * d + _PENALTIES * table

    def rows(
        self,
        task: Task,
        outputs: int,
        inputs: Tensor,
        targets: Tensor,
        real: Tensor,
        words: bool = False,
    ) -> ClientRows:
        """All rows of K clients as an exact algorithm reads them.

        Args:
            task: what the model is trained for.
            outputs: number of model outputs.
            inputs: [K, n, …] rows as the model reads them.
            targets: [K, n] or [K, n, outputs].
            real: [K, n] false for padding, which becomes zeros.
            words: whether the federation's rows are sparse.
        """
        features = self.features(inputs.flatten(0, 1)).view(*real.shape, -1) * self.factor
        x = torch.cat([torch.ones_like(features[..., :1]), features], -1)
        x = torch.where(real.unsqueeze(-1), x.double(), 0.0)
        y = padded_targets(task, outputs, targets, real)
        words = words and not self.fixed
        return ClientRows(task, x, y, real.double(), start=self.start, words=words)


def last_layer(model: FlatModel, input_shape: tuple[int, ...]) -> LastLayer | None:
    """The linear part of a model, or None if more than one linear layer is trained.

    This is tested on random rows: the model's outputs must be those of the layer.
    """
    module = model.module
    trained = [name for name, value in module.named_parameters() if value.requires_grad]
    for name, layer in module.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(layer, nn.Linear) and trained == [f"{prefix}weight", f"{prefix}bias"]:
            found = LastLayer(module, layer, model.public.issuperset(trained))
            like = layer.weight
            with torch.random.fork_rng(devices=()), torch.no_grad():
                x = torch.rand((3, *input_shape), dtype=like.dtype).to(like.device)
                weights = torch.randn(model.size, dtype=like.dtype).to(like.device)
                slopes, bias = weights[: like.numel()].view_as(like), weights[like.numel() :]
                read = found.features(x)
                if read.shape != (len(x), found.columns):
                    return None  # It reads several places of a row, or is not called.
                expected = read @ slopes.T + bias
                answers = model.apply(weights, x)
                if answers.shape != expected.shape:
                    return None  # Other layers follow.
                same = torch.allclose(answers, expected, rtol=1e-3, atol=1e-3)
            return found if same else None
    return None
