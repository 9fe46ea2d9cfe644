"""The round of private, personalised training as one would write it by hand in PyTorch.

One module per client, which keeps the client's weights from round to round; no optimiser object;
all of a client's tensors updated in one call; clipping in single precision. This is what the
library's rounds are measured against. The networks are written as usual, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIP, SIGMA, LAM, LR = 0.5, 1e-3, 0.1, 0.1


class FemnistCNN(nn.Module):
    """Two 5×5 convolutions, each with ReLU and pooling, and a linear layer."""

    def __init__(self, outputs: int = 62) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.head = nn.Linear(1024, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 1, 28, 28)
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(x.flatten(1))


class PlainRounds:
    """A federation of q modules, trained one after the other, or in threads of one client each."""

    def __init__(
        self, make: Callable[[], nn.Module], x: Tensor, y: Tensor, batch: int, steps: int
    ) -> None:
        """`x` [q, rows, …] and `y` [q, rows] are the clients' data, on the device."""
        self.x, self.y, self.batch, self.steps = x, y, batch, steps
        self.modules = [make().to(x.device) for _ in range(len(x))]
        self.weights = [list(module.parameters()) for module in self.modules]
        self.shared = [weight.detach().clone() for weight in self.weights[0]]
        with torch.no_grad():
            for weights in self.weights:
                torch._foreach_copy_(weights, self.shared)

    def round(self, threads: int = 0) -> None:
        """One round; with `threads`, so many clients at a time on one core each."""
        sums = [torch.zeros_like(weight) for weight in self.shared]
        if threads:
            self._in_threads(threads, sums)
        else:
            self._clients(range(len(self.modules)), sums)
        noise = [torch.randn_like(weight) for weight in self.shared]
        torch._foreach_mul_(sums, 1 / len(self.modules))
        torch._foreach_add_(sums, noise, alpha=SIGMA)
        torch._foreach_add_(self.shared, sums)

    def _in_threads(self, threads: int, sums: list[Tensor]) -> None:
        parts = [[torch.zeros_like(weight) for weight in sums] for _ in range(threads)]
        before = torch.get_num_threads()

        def work(number: int) -> None:
            torch.set_num_threads(1)
            self._clients(range(number, len(self.modules), threads), parts[number])

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        torch.set_num_threads(before)
        for part in parts:
            torch._foreach_add_(sums, part)

    def _clients(self, clients: range, sums: list[Tensor]) -> None:
        per_epoch = self.x.shape[1] // self.batch
        for k in clients:
            module, weights, x, y = self.modules[k], self.weights[k], self.x[k], self.y[k]
            start = [weight.detach().clone() for weight in weights]
            order = torch.randperm(per_epoch * self.batch, device=x.device).view(per_epoch, -1)
            for step in range(self.steps):
                rows = order[step % per_epoch]
                loss = F.cross_entropy(module(x[rows]), y[rows])
                slopes = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    # w ← w − η(∇ + λ(w − w̃)) = (1 − ηλ)w + ηλw̃ − η∇
                    torch._foreach_mul_(weights, 1 - LR * LAM)
                    torch._foreach_add_(weights, self.shared, alpha=LR * LAM)
                    torch._foreach_add_(weights, slopes, alpha=-LR)
            with torch.no_grad():
                moved = torch._foreach_sub(weights, start)
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(moved)))
                torch._foreach_mul_(moved, torch.clamp(CLIP / norm, max=1.0))
                torch._foreach_add_(sums, moved)
