"""A public start, frozen features, a private shared head, and a personal head for every writer.

    python benchmarks/public_start/shared_head.py --start glyph.safetensors --data femnist.npz
    python benchmarks/public_start/shared_head.py --start paper.safetensors --data femnist.npz \\
        --basis basis.safetensors

A head here is a change of the public head, along all features or along those of a public basis.
Every client solves its head's problem with a penalty (`PULL`) and uploads the head. The clipped
mean passes one release with noise. What is published is shrunk class by class (James-Stein; the
noise is known) and lengthened (`REACH`), because penalised heads are too short. Around that shared
head every client solves its problem again, with the penalty `PERSONAL`. Training alone is the same
without a shared head, with the penalty `ALONE`.

The four constants were chosen on validation rows of the clients, which ε does not cover, and not
on test rows. δ = 1/m, and everybody takes part.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import GlyphNet, PaperNet
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from pmtl.data import FederatedData, Split, load
from pmtl.privacy.accounting import gaussian

PULL, REACH, PERSONAL, ALONE = 0.3, 12.0, 0.2, 0.1
#: About half of the median length of a change.
CLIP = 0.55
SPEC = "min_rows=100,clients=205,validation=0.1"
EPSILONS = (1.0, 2.0, float("inf"))


@dataclass(frozen=True)
class Rows:
    """Features (and a 1 for the bias) [m, n, k], classes [m, n], a mask of the real rows, and the
    outputs of the public head [m, n, c]."""

    x: Tensor
    y: Tensor
    real: Tensor
    public: Tensor

    def right(self, heads: Tensor) -> Tensor:
        """[m] how many rows these heads [m, k, c] or [k, c] answer correctly."""
        answers = (self.public + self.x @ heads).argmax(-1)
        return ((answers == self.y) * self.real).sum(1)


def features(
    data: FederatedData, network: GlyphNet | PaperNet, basis: dict[str, Tensor] | None, split: Split
) -> Rows:
    """The rows of all clients as features of the network, or along the directions of a basis."""
    rows = data.rows(split)
    pixels, labels = data.gather(rows.order)
    with torch.no_grad():
        parts = torch.from_numpy(pixels).reshape(-1, 1, 28, 28).split(1024)
        found = torch.cat([network.features(part) for part in parts])
        outputs = network.head(found)
    if basis is not None:
        found = (found - basis["mean"]) @ basis["directions"]
    longest = int(rows.counts.max())
    x = torch.zeros(data.m, longest, found.shape[1] + 1)
    y = torch.zeros(data.m, longest, dtype=torch.int64)
    real = torch.zeros(data.m, longest)
    public = torch.zeros(data.m, longest, outputs.shape[1])
    for client, (first, count) in enumerate(zip(rows.offsets, rows.counts, strict=False)):
        mine = slice(int(first), int(first + count))
        x[client, :count, :-1], x[client, :count, -1] = found[mine], 1
        y[client, :count] = torch.from_numpy(np.asarray(labels[mine])).long()
        real[client, :count] = 1
        public[client, :count] = outputs[mine]
    return Rows(x, y, real, public)


def solve(around: Tensor, rows: Rows, penalty: float, steps: int = 30) -> Tensor:
    """[m, k, c] the heads that minimise mean loss + penalty/2 · ‖W − around‖², for all clients, by
    Nesterov's method with each client's own step size."""
    x, real = rows.x, rows.real
    centre = around.expand(len(x), -1, -1)
    weight = (real / real.sum(1, keepdim=True))[..., None]
    targets = F.one_hot(rows.y, around.shape[-1]).float()
    moments = (x * weight).transpose(1, 2) @ x
    top = torch.linalg.eigvalsh(moments)[:, -1].view(-1, 1, 1)
    bound = top / 2 + penalty  # The loss is curved by at most half of the second moments.
    share = (penalty / bound).sqrt()
    beta = (1 - share) / (1 + share)
    heads = ahead = centre
    for _ in range(steps):
        errors = (torch.softmax(rows.public + x @ ahead, -1) - targets) * weight
        slope = x.transpose(1, 2) @ errors + penalty * (ahead - centre)
        new = ahead - slope / bound
        ahead = new + beta * (new - heads)
        heads = new
    return heads


def release(changes: Tensor, clip: float, epsilon: float, seed: int) -> Tensor:
    """The noisy mean of the clipped changes [m, k, c], shrunk class by class."""
    m = len(changes)
    lengths = changes.flatten(1).norm(dim=1)
    mean = (changes * (clip / lengths).clamp(max=1).view(-1, 1, 1)).mean(0)
    if epsilon == float("inf"):
        return mean
    noise = 2 * clip / (m * gaussian.mu_for(epsilon, 1 / m))
    random = torch.Generator().manual_seed(seed)
    noisy = mean + noise * torch.randn(mean.shape, generator=random)
    weights, biases = noisy[:-1], noisy[-1:]
    return torch.cat([shrunk(weights, noise, 0), shrunk(biases, noise, 1)])


def shrunk(noisy: Tensor, noise: float, over: int) -> Tensor:
    """James and Stein's estimate, positive part, of vectors along one dimension."""
    known = (noisy.shape[over] - 2) * noise**2
    return noisy * (1 - known / noisy.square().sum(over, keepdim=True)).clamp(min=0)


def paired(rights: Tensor, others: Tensor, rows: Rows) -> tuple[float, float]:
    """The difference of two accuracies over all rows, and its standard error over clients."""
    gain = (rights - others).double()
    total, m = rows.real.sum().double(), len(gain)
    mean = gain.sum() / total
    spread = (gain - mean * rows.real.sum(1)).square().sum() * m / (m - 1)
    return float(mean), float(spread.sqrt() / total)


def table(lines: list[dict[str, Any]]) -> str:
    """The results as a Markdown table: means over the draws of the noise; ± is the standard error
    over writers of one draw's gain."""
    rows = [
        "| ε | shared head | personal heads | above training alone |",
        "| --- | ---: | ---: | ---: |",
    ]

    def mean(method: str, epsilon: str, key: str) -> float:
        return float(
            np.mean([e[key] for e in lines if (e["method"], e.get("epsilon")) == (method, epsilon)])
        )

    for epsilon in dict.fromkeys(line["epsilon"] for line in lines if "epsilon" in line):
        gain, error = (mean("personal", epsilon, key) for key in ("gain", "error"))
        shared, personal = (mean(name, epsilon, "test") for name in ("shared", "personal"))
        shown = "∞" if epsilon == "inf" else f"{float(epsilon):g}"
        rows.append(f"| {shown} | {shared:.3f} | {personal:.3f} | {gain:+.3f} ± {error:.3f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", required=True, help="glyph.safetensors, of start.py")
    parser.add_argument("--basis", help="of basis.py, with paper.safetensors as the start")
    parser.add_argument("--data", required=True, help="femnist.npz")
    parser.add_argument("--seeds", type=int, default=8, help="draws of the noise")
    parser.add_argument("--out", default="benchmarks/results/public-start.json")
    options = parser.parse_args()
    network = (GlyphNet() if options.basis is None else PaperNet()).eval()
    network.load_state_dict(load_file(options.start))
    basis = None if options.basis is None else load_file(options.basis)
    data = load(f"{options.data}:{SPEC}")
    splits: tuple[Split, ...] = ("train", "validation", "test")
    parts = {split: features(data, network, basis, split) for split in splits}
    train, test = parts["train"], parts["test"]
    nothing = torch.zeros(train.x.shape[-1], train.public.shape[-1])

    def scores(heads: Tensor) -> dict[str, float]:
        return {
            split: float(parts[split].right(heads).sum() / parts[split].real.sum())
            for split in ("validation", "test")
        }

    alone = solve(nothing, train, ALONE)
    lines: list[dict[str, Any]] = [
        {"method": "public head", **scores(nothing)},
        {"method": "alone", **scores(alone)},
    ]
    changes = solve(nothing, train, PULL)
    for epsilon in EPSILONS:
        for seed in range(1 if epsilon == float("inf") else options.seeds):
            shared = REACH * release(changes, CLIP, epsilon, seed)
            personal = solve(shared, train, PERSONAL)
            gain, error = paired(test.right(personal), test.right(alone), test)
            line = {"epsilon": str(epsilon), "seed": seed, "gain": gain, "error": error}
            lines.append({"method": "shared", **line, **scores(shared)})
            lines.append({"method": "personal", **line, **scores(personal)})
            print(json.dumps(lines[-1]), flush=True)
    Path(options.out).write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    print(table(lines))


if __name__ == "__main__":
    main()
