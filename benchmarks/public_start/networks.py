"""The networks of the public start.

`paper` has the parameter names of the package's `femnist_cnn`. `GlyphNet` ends in few features with
unit covariance on public data, and a linear head: `features` can be frozen and `head` shared.

    pmtl train --model networks:GlyphNet --init glyph.safetensors --frozen 'features.*' …

Networks are trained with batch normalisation, which `folded` turns into weights of convolutions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GlyphNet(nn.Module):
    """Three stages of `depth` 3×3 convolutions, a hidden layer, `width` features and a head."""

    def __init__(
        self,
        input_shape: tuple[int, ...] = (28, 28),
        outputs: int = 62,
        channels: int = 32,
        depth: int = 1,
        hidden: int = 256,
        width: int = 128,
        norm: bool = False,
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        before = 1
        for stage in range(3):
            for _ in range(depth):
                after = channels * 2**stage
                parts.append(nn.Conv2d(before, after, 3, padding=1))
                parts += [nn.BatchNorm2d(after)] if norm else []
                parts.append(nn.ReLU())
                before = after
            parts.append(nn.MaxPool2d(2))
        parts += [nn.Flatten(), nn.Linear(before * 9, hidden), nn.ReLU(), nn.Linear(hidden, width)]
        self.features = nn.Sequential(*parts)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x.reshape(-1, 1, 28, 28)))  # type: ignore[no-any-return]


class PaperNet(nn.Module):
    """The package's `femnist_cnn`, with batch normalisation while it is trained."""

    def __init__(self, outputs: int = 62, norm: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.norm1 = nn.BatchNorm2d(32) if norm else nn.Identity()
        self.norm2 = nn.BatchNorm2d(64) if norm else nn.Identity()
        self.head = nn.Linear(1024, outputs)

    def features(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 1, 28, 28)
        x = torch.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        return torch.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def fold(conv: nn.Conv2d, norm: nn.Module) -> dict[str, Tensor]:
    """Weight and bias of a convolution that does what the two do in evaluation."""
    assert isinstance(norm, nn.BatchNorm2d)
    assert conv.bias is not None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    bias = (conv.bias - norm.running_mean) * factor + norm.bias
    return {"weight": conv.weight * factor[:, None, None, None], "bias": bias}


@torch.no_grad()
def folded_paper(trained: PaperNet) -> dict[str, Tensor]:
    """The parameters of the trained network under the names of `femnist_cnn`."""
    state: dict[str, Tensor] = {}
    for name, norm in (("conv1", trained.norm1), ("conv2", trained.norm2)):
        state |= {f"{name}.{k}": v for k, v in fold(getattr(trained, name), norm).items()}
    return state | {f"head.{k}": v for k, v in trained.head.state_dict().items()}


@torch.no_grad()
def folded_glyph(trained: GlyphNet, sample: Tensor) -> dict[str, Tensor]:
    """The parameters of the trained network under the names of one without normalisation, with
    features that have mean 0 and covariance 1 on a sample, and a head that undoes that."""
    state: dict[str, Tensor] = {}
    place = 0
    parts = list(trained.features)
    for part, after in zip(parts, [*parts[1:], nn.Identity()], strict=True):
        if isinstance(part, nn.BatchNorm2d):
            continue
        if isinstance(part, nn.Conv2d):
            state |= {f"features.{place}.{k}": v for k, v in fold(part, after).items()}
        elif isinstance(part, nn.Linear):
            state |= {f"features.{place}.{k}": v for k, v in part.state_dict().items()}
        place += 1
    values = torch.cat([trained.features(rows) for rows in sample.split(4096)]).double()
    mean, covariance = values.mean(0), torch.cov(values.T)
    lengths, directions = torch.linalg.eigh(covariance)
    lengths = lengths.clamp_min(1e-4 * lengths.max())
    # In the order of their variance, so that the first features are the most important ones.
    to_white = (directions / lengths.sqrt()).T.flip(0)
    back = (directions * lengths.sqrt()).flip(1)
    last = f"features.{place - 1}"
    weight, bias = state[f"{last}.weight"].double(), state[f"{last}.bias"].double()
    state[f"{last}.weight"] = (to_white @ weight).float()
    state[f"{last}.bias"] = (to_white @ (bias - mean)).float()
    head, shift = trained.head.weight.double(), trained.head.bias.double()
    state["head.weight"] = (head @ back).float()
    state["head.bias"] = (shift + head @ mean).float()
    return state
