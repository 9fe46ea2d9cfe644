"""What makes a client's step quicker on a CPU: recording it, and fewer products.

    python benchmarks/steps.py [--json FILE]

First single convolutions, forward and backward on one core: the library's against the one with
fewer products (`models/cooktoom.py`), and whether the latter would be chosen. Then steps of the
FEMNIST CNN, one client per thread: with either convolution, run from Python or recorded
(`simulation/recording.py`), and what recording takes.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from measure import Turn, machine, take_turns

from pmtl.algorithms import PMTL
from pmtl.engines.base import client_step
from pmtl.engines.recording import Programs
from pmtl.engines.threads import _slope
from pmtl.models import build_model, cooktoom, lowered

CPU = torch.device("cpu")
BATCH, CLASSES = 10, 62
#: Channels, height and width (padding included), filters, and the filters' height and width.
SHAPES = {
    "FEMNIST's second layer": (32, 12, 12, 64, 5, 5),
    "CelebA's second layer": (32, 44, 44, 32, 3, 3),
    "3×3, 64 channels": (64, 16, 16, 64, 3, 3),
    "3×3, 128 channels": (128, 10, 10, 128, 3, 3),
    "3×3, 256 channels": (256, 6, 6, 256, 3, 3),
    "5×5, 8 to 16 channels": (8, 28, 28, 16, 5, 5),
}


def convolutions(shape: tuple[int, ...]) -> dict[str, Turn]:
    """The two ways, each with all its derivatives."""
    channels, height, width, filters, high, wide = shape
    x = torch.randn(BATCH, channels, height, width).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(filters, channels, high, wide) / (channels * high * wide) ** 0.5
    given = [part.requires_grad_() for part in (x, weight, torch.randn(filters))]
    slope = torch.randn(BATCH, height - high + 1, width - wide + 1, filters).permute(0, 3, 1, 2)

    def fewer(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return cooktoom.convolve(x.permute(0, 2, 3, 1), *others).permute(0, 3, 1, 2)

    def turn(way: Any) -> Turn:
        return lambda rounds: [
            torch.autograd.grad(way(*given), given, slope) for _ in range(rounds)
        ]

    return {"library": turn(F.conv2d), "fewer": turn(fewer)}


def steps(workers: int) -> tuple[dict[str, Turn], dict[str, float]]:
    """The ways to take a step, in as many threads, and the seconds that recording took."""
    generator = torch.Generator().manual_seed(0)
    flat = build_model("femnist_cnn", (784,), CLASSES, "classification", 0)
    x = torch.rand(BATCH, 784, generator=generator)
    y = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    start = flat.start()
    given = (start, start + 0.01, x, y, torch.ones(BATCH, dtype=torch.bool), 0.1)
    turns, recording = {}, {}
    for convolution, chosen in (("library", lambda *_: False), ("fewer", cooktoom.pays)):
        models = [lowered(flat, "channels_last") for _ in range(workers)]
        plain = [client_step(PMTL(), m, "classification", _slope, guarded=False) for m in models]
        programs, begun = Programs(), time.perf_counter()
        with mock.patch.object(cooktoom, "pays", chosen), torch.no_grad():
            programs.make(plain[0], *given)
        recording[convolution] = time.perf_counter() - begun
        programs_of_all = [programs[BATCH]] * workers
        turns[f"{convolution}, from Python"] = in_threads(plain, given, chosen)
        turns[f"{convolution}, recorded"] = in_threads(programs_of_all, given, chosen)
    return turns, recording


def in_threads(ways: list[Any], given: tuple[Any, ...], chosen: Any) -> Turn:
    """A thread for each way, all of which take as many steps."""

    def work(way: Any, rounds: int) -> None:
        torch.set_num_threads(1)
        with torch.no_grad():
            for _ in range(rounds):
                way(*given)

    def turn(rounds: int) -> None:
        with mock.patch.object(cooktoom, "pays", chosen), ThreadPoolExecutor(len(ways)) as pool:
            list(pool.map(work, ways, [rounds] * len(ways)))

    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    workers = torch.get_num_threads()
    report: dict[str, Any] = {"machine": machine(CPU), "convolutions": [], "steps": {}}
    torch.set_num_threads(1)
    for title, shape in SHAPES.items():
        found = take_turns(convolutions(shape), CPU, given.repeats, 60)
        channels, height, width, *weight = shape
        chosen = cooktoom.pays((BATCH, channels, height, width), (weight[0], channels, *weight[1:]))
        line = {name: taken["median"] for name, taken in found.items()}
        report["convolutions"].append({"title": title, "shape": shape, "chosen": chosen, **line})
        print(f"{title:24} × {line['library'] / line['fewer']:.2f}, chosen: {chosen}", flush=True)
    turns, report["recording"] = steps(workers)
    for name, taken in take_turns(turns, CPU, given.repeats, 60).items():
        report["steps"][name] = taken["median"]
        print(f"{name:24} {1e3 * taken['median']:.2f} ms a step of {workers} clients", flush=True)
    print(f"recording takes {max(report['recording'].values()):.1f} s")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
