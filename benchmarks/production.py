"""What production costs: the same rounds as an experiment and as production, taking turns.

    python benchmarks/production.py [--device cpu] [--json FILE]

In production clients are computed at places of their own, models that are not known to be safe on
the client axis one client at a time, uploads are clipped so that none depends on another, and noise
is drawn exactly. Nothing is charged here: what a ledger costs, a write to disk a round, is the same
for any number of clients.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from measure import machine, take_turns

from pmtl.algorithms import build_algorithm
from pmtl.data import FederatedData
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, Simulation, simulate

#: name: (model, clients, cohort, columns, classes, rows of a client at least and at most, batch)
WORKLOADS: dict[str, tuple[str, int, int, int, int, int, int, int]] = {
    "logistic regression, 500 clients, everybody": ("logistic", 500, 500, 30, 2, 20, 40, 10),
    "logistic regression, 10,000 clients, everybody": (
        "logistic",
        10_000,
        10_000,
        30,
        2,
        20,
        40,
        10,
    ),
    "logistic regression, 100 of 10,000 clients": ("logistic", 10_000, 100, 30, 2, 20, 40, 10),
    "logistic regression, all rows of 20 to 600 at once": ("logistic", 500, 500, 30, 2, 20, 600, 0),
    "mlp of 64 units, 500 clients, everybody": ("mlp", 500, 500, 30, 2, 20, 40, 10),
    "a model of the user's own, 500 clients, everybody": ("own", 500, 500, 30, 2, 20, 40, 10),
    "FEMNIST's network, 20 clients, everybody": ("femnist_cnn", 20, 20, 784, 62, 60, 120, 20),
}


def own_model(input_shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    """As a user would write one."""
    hidden = torch.nn.Linear(input_shape[0], 64)
    return torch.nn.Sequential(hidden, torch.nn.Tanh(), torch.nn.Linear(64, outputs))


def federation(name: str, production: bool, device: str) -> Simulation:
    model, m, q, columns, classes, least, most, batch = WORKLOADS[name]
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(m), random.integers(least, most + 1, m))
    x = random.normal(size=(len(owner), columns)).astype(np.float32)
    data = FederatedData.from_arrays(
        x, random.integers(0, classes, len(owner)), owner, outputs=classes
    )
    sampling = "full" if q == m else "poisson"
    return simulate(
        data,
        build_model(
            own_model if model == "own" else model, data.input_shape, classes, data.task, 0
        ),
        build_algorithm("pmtl"),
        PrivacyPlan(m, q, sampling, 0.5, 0.05, 10**6, 1 / (10 * m)),
        LocalTraining(steps=10, batch=batch, lr=0.05),
        None if production else 0,
        device,
        charge=lambda round: None,
        hardened=production,
    )


def measure(name: str, device: str, repeats: int) -> dict[str, Any]:
    turns, engines = {}, {}
    for mode, production in (("experiment", False), ("production", True)):
        made = federation(name, production, device)
        progress = made.start()
        engines[mode] = made.sites.engine

        def turn(rounds: int, made: Simulation = made, progress: Any = progress) -> None:
            with made.sites.threads():
                for _ in range(rounds):
                    made.advance(progress)

        turns[mode] = turn
    taken = take_turns(turns, torch.device(device), repeats, patience=30.0)
    ratio, of_means = (
        round(taken["production"][key] / taken["experiment"][key], 2) for key in ("median", "mean")
    )
    found = {"workload": name, "engines": engines, "seconds": taken}
    return {**found, "ratio": ratio, "ratio_of_means": of_means}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for name in WORKLOADS:
        results.append(measure(name, options.device, options.repeats))
        taken = {mode: value["median"] for mode, value in results[-1]["seconds"].items()}
        print(
            f"{name}: {taken['experiment']:.4f} s, {taken['production']:.4f} s, "
            f"{results[-1]['ratio']:.2f} times, {results[-1]['ratio_of_means']:.2f} in the mean",
            flush=True,
        )
    whole = {"machine": machine(torch.device(options.device)), "results": results}
    if options.json:
        options.json.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
