"""Train to the end once; then again, killed at random instants and resumed, until it is done.

Run by `test_training_resume.py` as a program of its own: it imports torch once and forks for every
attempt, so that a dozen kills take seconds.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import pmtl
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.folder import RunFolder

SPEC = "synthetic:clients=30,samples=10"
ROUNDS = int(sys.argv[5]) if len(sys.argv) > 5 else 150
OPTIONS = {
    "privacy": {"epsilon": 3.0, "rounds": ROUNDS, "metrics": 0.1},
    "local": {"steps": 2},
    "evaluate_every": 20,
    "checkpoint_seconds": 0.0,
}


def attempt(work) -> int:
    """Run `work` in a child of its own; returns its process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return child


def start_or_resume(path: Path, mode: str) -> None:
    if path.exists():
        pmtl.resume(path)
    else:
        pmtl.train(SPEC, out=path, ledger=path.with_suffix(".db"), mode=mode, **OPTIONS)


def main() -> None:
    torch.set_num_threads(1)
    # Everything is imported and tried once before the first fork, so that children start at once.
    pmtl.train(SPEC, privacy={"epsilon": 3.0, "rounds": 1})

    folder, kills, seed, mode = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    begin = time.monotonic()
    for name in ("whole", "killed"):
        Ledger.create(folder / f"{name}.db", pmtl.load(SPEC).clients).close()
    _, status = os.waitpid(attempt(lambda: start_or_resume(folder / "whole", mode)), 0)
    assert status == 0
    length = time.monotonic() - begin
    chance = random.Random(seed)
    killed = mid_run = 0
    while killed < kills:
        child = attempt(lambda: start_or_resume(folder / "killed", mode))
        # Short lives, so that a run sees all its kills before it is done.
        time.sleep(chance.uniform(0, 1.2 * length / kills))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break  # It was done before the signal came.
        killed += 1
        path = folder / "killed"
        mid_run += path.exists() and RunFolder(path).facts().state == "running"
    if not (folder / "killed").exists() or RunFolder(folder / "killed").facts().state == "running":
        _, status = os.waitpid(attempt(lambda: start_or_resume(folder / "killed", mode)), 0)
        assert status == 0
    with Ledger.open(folder / "killed.db", write=False) as ledger:
        ledger.verify()
        runs = ledger.runs()
        # A run that was killed before its folder was there has charged nothing.
        (run,) = (name for name in runs if ledger.charged(name))
        charged, metrics = ledger.charged(run), ledger.charged(run, "validation")
    done = pmtl.load_run(folder / "killed")
    report = {
        "killed": killed,
        "killed_mid_run": int(mid_run),
        "charged": charged,
        "metrics_charged": metrics,
        "rounds": done.metrics[-1]["round"],
        "evaluations": [line["round"] for line in done.released()],
        "epsilon": done.privacy.epsilon,
        "population_epsilon": done.privacy.population_epsilon,
    }
    print(json.dumps(report))


main()
