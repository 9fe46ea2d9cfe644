"""What is trained, for everybody alike: shapes, data, the start, and the model on paper.

Needs NumPy only, so that every contestant's environment can read it. The data and the common start
are drawn here once, from a seed, and written to a file that all contestants read; `logits` is the
model in NumPy, against which the tests hold the library's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

#: z = σq/γ, and PMTL's λ: the same in all workloads.
NOISE_MULTIPLIER, LAM = 1.0, 0.1
SEED = 20230

Floats = NDArray[np.float32]
Layers = tuple[tuple[str, tuple[int, ...]], ...]

LOGISTIC: Layers = (("linear.weight", (10, 60)), ("linear.bias", (10,)))
CNN: Layers = (
    ("conv1.weight", (32, 1, 5, 5)),
    ("conv1.bias", (32,)),
    ("conv2.weight", (64, 32, 5, 5)),
    ("conv2.bias", (64,)),
    ("head.weight", (62, 1024)),
    ("head.bias", (62,)),
)


@dataclass(frozen=True)
class Workload:
    """A federation and what a round of it is. A client does one epoch, in file order."""

    title: str
    layers: Layers
    features: int
    clients: int
    rows: int  #: of every client
    cohort: int
    timed: int  #: rounds that count, after the first
    batch: int = 10
    lr: float = 0.1
    clip: float = 1.0  #: γ

    @property
    def steps(self) -> int:
        """Local steps of a client in a round."""
        return self.rows // self.batch

    @property
    def outputs(self) -> int:
        return self.layers[-1][1][0]

    @property
    def parameters(self) -> int:
        return sum(prod(shape) for _, shape in self.layers)

    @property
    def noise_std(self) -> float:
        """σ, on the average over the cohort."""
        return NOISE_MULTIPLIER * self.clip / self.cohort


WORKLOADS = {
    "small": Workload("logistic regression 60→10", LOGISTIC, 60, 1000, 20, 100, 20),
    "wide": Workload("logistic regression 60→10, everybody", LOGISTIC, 60, 1000, 20, 1000, 5),
    "cnn": Workload("FEMNIST CNN, 115,646 parameters", CNN, 784, 100, 50, 20, 24),
    "cohort": Workload("the same network, a cohort of 100", CNN, 784, 200, 50, 100, 12),
}
#: The same in steps of a tenth, for checks. The CNN has kinks, over which rounding may carry a
#: unit; in large steps a client that was carried over one soon goes another way.
GENTLE = {
    f"{name}-gently": replace(one, lr=one.lr / 10, clip=one.clip / 10)
    for name, one in WORKLOADS.items()
}
EVERY = WORKLOADS | GENTLE


@dataclass(frozen=True)
class Federation:
    """The rows of all clients and the weights that everybody starts from."""

    x: Floats  #: [clients, rows, features]
    y: NDArray[np.int64]  #: [clients, rows]
    start: Floats  #: [parameters], layer after layer


def draw(workload: Workload, seed: int = SEED) -> Federation:
    """Each client's rows lean towards one class of its own, so that uploads differ and some of
    them are long enough to be clipped."""
    random = np.random.default_rng(seed)
    shape = (workload.clients, workload.rows)
    own = random.integers(0, workload.outputs, workload.clients)[:, None]
    y = np.where(random.random(shape) < 0.5, own, random.integers(0, workload.outputs, shape))
    if workload.layers == CNN:  # Pixels in [0, 1], most of them dark.
        x = random.random((*shape, workload.features), dtype=np.float32) ** 4
    else:
        x = random.standard_normal((*shape, workload.features), dtype=np.float32)
        x *= random.uniform(0.5, 4.0, (workload.clients, 1, 1)).astype(np.float32)
    parts = []
    for _, of in workload.layers:
        # Biases start at zero, weights with the deviation 1/√(inputs).
        scale = 1 / np.sqrt(prod(of[1:])) if len(of) > 1 else 0.0
        parts.append(scale * random.standard_normal(prod(of)))
    return Federation(x, y.astype(np.int64), np.concatenate(parts).astype(np.float32))


def write(workload: Workload, folder: Path) -> None:
    made = draw(workload)
    np.savez(folder / "federation.npz", x=made.x, y=made.y, start=made.start)


def read(folder: Path) -> Federation:
    with np.load(folder / "federation.npz") as file:
        return Federation(file["x"], file["y"], file["start"])


def cut(workload: Workload, vector: Floats) -> dict[str, Floats]:
    """The flat weights as named layers."""
    ends = np.cumsum([prod(shape) for _, shape in workload.layers])
    pieces = np.split(vector, ends[:-1])
    return {
        name: piece.reshape(shape)
        for (name, shape), piece in zip(workload.layers, pieces, strict=True)
    }


def logits(workload: Workload, vector: Floats, x: Floats) -> Floats:
    """The model's answers to the rows `x` [n, features]."""
    w = cut(workload, vector)
    if workload.layers == LOGISTIC:
        return x @ w["linear.weight"].T + w["linear.bias"]
    maps = x.reshape(-1, 1, 28, 28)
    for name in ("conv1", "conv2"):
        maps = _convolve(maps, w[f"{name}.weight"]) + w[f"{name}.bias"][:, None, None]
        maps = _pool(np.maximum(maps, 0))
    return maps.reshape(len(x), -1) @ w["head.weight"].T + w["head.bias"]


def _convolve(maps: Floats, kernel: Floats) -> Floats:
    windows = np.lib.stride_tricks.sliding_window_view(maps, kernel.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, kernel, optimize=True)


def _pool(maps: Floats) -> Floats:
    n, c, h, w = maps.shape
    return maps.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))
