"""What the noise of one release costs, ordinary and hardened.

    python benchmarks/noise.py [--parameters 5000000] [--json FILE]

Each line is the median and the mean of several draws, all in one run and taking turns: the
operating system's noise in floating point, the same drawn exactly on a grid, and a whole release
(clip, sum, noise) of one upload with either. The ratio is what a hardened gate costs.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from pmtl.privacy.grid import Grid
from pmtl.privacy.noise import real, rounded, system_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release, noise_of


def measure(parameters: int, repeats: int = 7) -> dict[str, list[float]]:
    """Seconds of each way, draw by draw."""
    plan = PrivacyPlan(100, 100, "full", 1.0, 0.1, 10**6, 1e-3)
    scale = Grid.of(plan).noise
    shape = (1, parameters)
    upload, shared = torch.randn(shape), torch.zeros(shape)
    gates = {
        name: Release(
            plan, np.zeros(100, dtype=np.int64), noise_of(plan, system_source, name == "hardened")
        )
        for name in ("ordinary", "hardened")
    }

    def release(gate: Release, round: int) -> None:
        tally = gate.open(round, shared)
        gate.add(tally, np.array([3]), upload)
        gate.publish(tally, shared)

    ways: dict[str, Callable[[int], object]] = {
        "noise_ordinary": lambda _: real(system_source(0), shape),
        "noise_hardened": lambda _: rounded(system_source(0), shape, scale),
        "release_ordinary": lambda round: release(gates["ordinary"], round),
        "release_hardened": lambda round: release(gates["hardened"], round),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round in range(repeats + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            way(round)
            if round:  # The first of each warms up.
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=5_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    taken = measure(options.parameters)
    seconds = {name: statistics.median(values) for name, values in taken.items()}
    result = {
        "parameters": options.parameters,
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "mean_seconds": {name: round(statistics.mean(v), 4) for name, v in taken.items()},
        "ratio_noise": round(seconds["noise_hardened"] / seconds["noise_ordinary"], 2),
        "ratio_release": round(seconds["release_hardened"] / seconds["release_ordinary"], 2),
    }
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
