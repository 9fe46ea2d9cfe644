"""More processes and more clients: what a second process brings, and a model of what a round costs.

    python benchmarks/scaling.py [--json benchmarks/results/scaling.json]
    python benchmarks/scaling.py --tables        # as they stand in docs/scale.md

*Processes*: the same rounds with one and with two processes of one thread each (torchrun, gloo).
The efficiency is t₁ / (2 t₂), by the clock, so the machine should have nothing else to do.

*Model*: a round is taken to cost  a + b·q + c·m  seconds, for q clients trained out of m. The three
constants come from three measurements, the model is then checked at three other sizes, and only
then used for sizes that do not fit here. Seconds are the process's own, of one thread.
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

RESULTS = Path(__file__).parent / "results" / "scaling.json"

#: Clients and cohort: what the constants are taken from, and what they are checked at.
FITTED = ((10**4, 50), (10**4, 800), (10**6, 50))
CHECKED = ((10**5, 200), (10**5, 800), (10**6, 800))
#: What is worked out: clients, cohort.
BEYOND = ((10**6, 1_000), (10**7, 1_000), (10**7, 10_000), (10**8, 10_000))
PARAMETERS, FEATURES, ROWS = 1_000, 99, 2


def federation(m: int, q: int, team: Any = None) -> Any:
    """m clients of two rows, a linear model of 1,000 parameters, q of them a round."""
    import torch

    from pmtl.algorithms import PMTL
    from pmtl.data import FederatedData
    from pmtl.models import build_model
    from pmtl.privacy.plan import PrivacyPlan
    from pmtl.simulation import ALONE, LocalTraining, simulate

    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS * m, FEATURES), dtype=np.float32)
    y = random.integers(0, 10, ROWS * m)
    owner = np.repeat(np.arange(m), ROWS)
    split = np.full(ROWS * m, "train")
    data = FederatedData.from_arrays(x, y, owner, split, outputs=10)
    model = build_model("logistic", data.input_shape, 10, data.task, 0)
    plan = PrivacyPlan(m, q, "poisson" if q < m else "full", 0.5, 0.1, 10**6, 1e-9)
    local = LocalTraining(steps=10, batch=2)
    return simulate(data, model, PMTL(), plan, local, 0, team=team or ALONE)


def one(m: int, q: int, rounds: int = 15) -> dict[str, Any]:
    """Seconds of a round at one size, in this process."""
    made = federation(m, q)
    progress = made.start()
    taken = []
    for _ in range(rounds + 3):
        begun = time.process_time()
        made.advance(progress)
        taken.append(time.process_time() - begun)
    timed = taken[3:]
    seconds = {"seconds": statistics.median(timed), "mean_seconds": statistics.mean(timed)}
    return {"clients": m, "cohort": q, **seconds}


def worker(q: int, rounds: int) -> None:
    """One process of a team: rounds of a whole cohort, timed by the leader's clock."""
    from pmtl.simulation import join_team

    with join_team() as team:
        made = federation(q, q, team)
        progress = made.start()
        for _ in range(3):
            made.advance(progress)
        begun = time.perf_counter()
        for _ in range(rounds):
            made.advance(progress)
        if team.leader:
            print(json.dumps((time.perf_counter() - begun) / rounds))


def with_processes(count: int, q: int, rounds: int = 10) -> float:
    """Seconds of a round by the clock."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={count}", __file__, "--worker", str(q), str(rounds)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=600, env=settings
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def measure() -> dict[str, Any]:
    """Everything, in turns."""
    processes = []
    for q in (1_000, 8_000):
        turns = [(with_processes(1, q), with_processes(2, q)) for _ in range(3)]
        alone, two = (statistics.median(column) for column in zip(*turns, strict=True))
        row = {"cohort": q, "one": alone, "two": two, "efficiency": alone / (2 * two)}
        alone, two = (statistics.mean(column) for column in zip(*turns, strict=True))
        processes.append({**row, "mean_one": alone, "mean_two": two})
    sizes = [_apart(m, q) for m, q in (*FITTED, *CHECKED)]
    return {"cores": os.cpu_count(), "processes": processes, **model(sizes)}


def _apart(m: int, q: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(m), str(q)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def model(sizes: list[dict[str, Any]]) -> dict[str, Any]:
    """The constants from the first three sizes, what they say of the others, and of larger ones."""
    fitted, checked = sizes[: len(FITTED)], sizes[len(FITTED) :]
    rows = np.array([[1, size["cohort"], size["clients"]] for size in fitted], dtype=float)
    constants = np.linalg.solve(rows, np.array([size["seconds"] for size in fitted]))
    for size in checked:
        size["told"] = float(constants @ [1, size["cohort"], size["clients"]])
    beyond = [
        {
            "clients": m,
            "cohort": q,
            "seconds": float(constants @ [1, q, m]),
            "for_the_coins": float(constants[2] * m),
            "vector_bytes_of_1000_rounds": float(
                4 * PARAMETERS * m * -np.expm1(1000 * np.log1p(-q / m))
            ),
            "table_bytes": 8 * m,
        }
        for m, q in BEYOND
    ]
    return {
        "constants": dict(zip("abc", constants.tolist(), strict=True)),
        "fitted": fitted,
        "checked": checked,
        "beyond": beyond,
    }


def _milliseconds(row: dict[str, Any], name: str) -> str:
    """The median of the turns and, where it was measured, their mean."""
    mean = f" ({row[f'mean_{name}'] * 1e3:.0f})" if f"mean_{name}" in row else ""
    return f"{row[name] * 1e3:.0f}{mean} ms"


def tables(told: dict[str, Any]) -> str:
    """As Markdown: processes, check, beyond."""
    parts = [
        "| cohort | one process (mean) | two (mean) | efficiency |\n| ---: | ---: | ---: | ---: |"
    ]
    for row in told["processes"]:
        parts[-1] += f"\n| {row['cohort']:,} | {_milliseconds(row, 'one')} | "
        parts[-1] += f"{_milliseconds(row, 'two')} | {row['efficiency']:.0%} |"
    parts.append("| clients | cohort | measured | the model says |\n| ---: | ---: | ---: | ---: |")
    for row in told["fitted"]:
        parts[-1] += f"\n| {row['clients']:,} | {row['cohort']:,} | {row['seconds'] * 1e3:.1f} ms |"
        parts[-1] += " (taken from it) |"
    for row in told["checked"]:
        parts[-1] += f"\n| {row['clients']:,} | {row['cohort']:,} | {row['seconds'] * 1e3:.1f} ms |"
        parts[-1] += f" {row['told'] * 1e3:.1f} ms |"
    parts.append(
        "| clients | cohort | a round, one thread | of it coins | models, 1,000 rounds | table |"
        "\n| ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for row in told["beyond"]:
        parts[-1] += f"\n| {row['clients']:,} | {row['cohort']:,} | {row['seconds']:.2f} s | "
        parts[-1] += f"{row['for_the_coins']:.2f} s | "
        parts[-1] += f"{row['vector_bytes_of_1000_rounds'] / 1e9:.1f} GB | "
        parts[-1] += f"{row['table_bytes'] / 1e9:.2f} GB |"
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tables:
        print(tables(json.loads(RESULTS.read_text(encoding="utf-8"))))
    elif options.one:
        print(json.dumps(one(*options.one)))
    elif options.worker:
        worker(*options.worker)
    else:
        told = measure()
        print(tables(told))
        if options.json:
            options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
