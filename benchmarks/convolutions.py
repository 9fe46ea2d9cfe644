"""Convolutions on a CPU: one process with a thread per core, or one process per core?

    python benchmarks/convolutions.py [--json benchmarks/results/convolutions-cpu.json]

Runs of the FEMNIST network (20 clients a round, 5 steps of 10 rows each), in turns. The results are
the mean of a round and the time of a whole run of 40 rounds with its start, by the clock, so the
machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS, BATCH, STEPS, ROUNDS, TURNS = 20, 10, 5, 40, 5
CORES = os.cpu_count() or 1
#: Processes, and threads in each.
WAYS = {"threads": (1, CORES), "processes": (CORES, 1)}


def worker(threads: int, rounds: int) -> None:
    """One process: rounds of the whole cohort, timed by the leader's clock."""
    import torch

    from pmtl.algorithms import PMTL
    from pmtl.data import FederatedData
    from pmtl.models import build_model
    from pmtl.privacy.plan import PrivacyPlan
    from pmtl.simulation import LocalTraining, join_team, simulate

    torch.set_num_threads(threads)
    random = np.random.default_rng(0)
    count = CLIENTS * BATCH * STEPS
    x, y = random.random((count, 784), dtype=np.float32), random.integers(0, 62, count)
    owner = np.repeat(np.arange(CLIENTS), BATCH * STEPS)
    data = FederatedData.from_arrays(x, y, owner, np.full(count, "train"), outputs=62)
    model = build_model("femnist_cnn", data.input_shape, 62, data.task, 0)
    plan = PrivacyPlan(CLIENTS, CLIENTS, "full", 0.5, 0.1, 10**6, 1e-3)
    local = LocalTraining(steps=STEPS, batch=BATCH)
    with join_team() as team:
        made = simulate(data, model, PMTL(), plan, local, 0, team=team)
        progress = made.start()
        begun = time.perf_counter()
        for _ in range(rounds):
            made.advance(progress)
        if team.leader:
            print(json.dumps((time.perf_counter() - begun) / rounds))


def turn(processes: int, threads: int) -> tuple[float, float]:
    """The mean seconds of a round, and the seconds of the whole run."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [__file__, "--worker", str(threads), str(ROUNDS)]
    settings = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    begun = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=600, env=settings
    )
    return float(json.loads(done.stdout.splitlines()[-1])), time.perf_counter() - begun


def measure() -> dict[str, Any]:
    """The means of all turns, which the two ways take one after the other."""
    turns = [{name: turn(*way) for name, way in WAYS.items()} for _ in range(TURNS)]
    told: dict[str, Any] = {"cores": CORES, "rounds": ROUNDS}
    for name in WAYS:
        rounds, runs = zip(*(one[name] for one in turns), strict=True)
        told[name] = {"round": statistics.mean(rounds), "run": statistics.mean(runs)}
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return
    told = measure()
    print(json.dumps(told, indent=1))
    if options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
