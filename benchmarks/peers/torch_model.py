"""The models in PyTorch as one writes them, for the peers that train PyTorch modules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workload import LOGISTIC, Floats, Workload, cut


class Logistic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(60, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class FemnistCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.head = nn.Linear(1024, 62)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 1, 28, 28)
        # ReLU after the maximum is the same function at a quarter of the cost; ours does it, too.
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.head(x.flatten(1))


def module(workload: Workload) -> nn.Module:
    return Logistic() if workload.layers == LOGISTIC else FemnistCNN()


def few_threads(workload: Workload) -> None:
    """One thread where the work is small: a second one costs more than it saves. Ours does it, too
    (`pmtl.engines.process`), and on a busy machine it makes seconds of difference."""
    if workload.layers == LOGISTIC:
        torch.set_num_threads(1)


def tensors(workload: Workload, vector: Floats) -> dict[str, Tensor]:
    """Flat weights as a state dictionary."""
    return {name: torch.from_numpy(value.copy()) for name, value in cut(workload, vector).items()}
