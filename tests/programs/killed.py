"""Train to the end once; then again, killed at random instants and resumed, until it is done.

Run by `test_training_resume.py` as a program of its own: it imports torch once and forks for every
attempt, so that a dozen kills take seconds. Instants are counted in rounds and parts of them.
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


class Pace(pmtl.Callback):
    """Tells the parent of each round, and waits for the kill after `most` of them."""

    def __init__(self, reports: int, most: int) -> None:
        self.reports, self.most = reports, most

    def on_round(self, event) -> None:
        os.write(self.reports, b"." if event.round < event.rounds else b"!")
        self.most -= 1
        while self.most == 0:
            signal.pause()


def start_or_resume(path: Path, mode: str, callbacks=()) -> None:
    if path.exists():
        pmtl.resume(path, callbacks=callbacks)
    else:
        files = {"out": path, "ledger": path.with_suffix(".db")}
        pmtl.train(SPEC, **files, mode=mode, callbacks=callbacks, **OPTIONS)


def attempt(path: Path, mode: str, most: int) -> tuple[int, int]:
    """Run in a child of its own, for up to `most` rounds; returns its process id and a pipe from
    which a byte can be read for each of its rounds."""
    reports, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reports)
            start_or_resume(path, mode, [Pace(end, most)])
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    os.close(end)
    return child, reports


def kill_after(child: int, reports: int, rounds: int, delay: float) -> bool:
    """Kill it `delay` seconds after so many rounds, or after the last one; returns whether it was
    still there."""
    for _ in range(rounds):
        if os.read(reports, 1) != b".":
            break
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.close(reports)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def main() -> None:
    torch.set_num_threads(1)
    # Everything is imported and tried once before the first fork, so that children start at once.
    pmtl.train(SPEC, privacy={"epsilon": 3.0, "rounds": 1})

    folder, kills, seed, mode = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    for name in ("whole", "killed"):
        Ledger.create(folder / f"{name}.db", pmtl.load(SPEC).clients).close()
    begin = time.monotonic()
    start_or_resume(folder / "whole", mode)
    a_round = (time.monotonic() - begin) / ROUNDS
    chance = random.Random(seed)
    # However slow a machine is, a child cannot be done before its signal comes: all kills together
    # let fewer rounds pass than the run has, also if each costs a round that is replayed.
    most = ROUNDS // kills - 2
    path = folder / "killed"
    mid_run = 0
    for _ in range(kills):
        first = chance.randrange(most)  # 0: perhaps while it starts
        assert kill_after(*attempt(path, mode, most), first, chance.uniform(0, 3 * a_round))
        mid_run += path.exists() and RunFolder(path).facts().state == "running"
    # Once more around the end, where it may be done before.
    at_end = kill_after(*attempt(path, mode, -1), ROUNDS, chance.uniform(0, a_round))
    if not path.exists() or RunFolder(path).facts().state == "running":
        start_or_resume(path, mode)
    with Ledger.open(folder / "killed.db", write=False) as ledger:
        ledger.verify()
        runs = ledger.runs()
        # A run that was killed before its folder was there has charged nothing.
        (run,) = (name for name in runs if ledger.charged(name))
        charged, metrics = ledger.charged(run), ledger.charged(run, "validation")
    done = pmtl.load_run(folder / "killed")
    report = {
        "killed": kills + at_end,
        "killed_mid_run": int(mid_run),
        "killed_at_end": int(at_end),
        "charged": charged,
        "metrics_charged": metrics,
        "rounds": done.metrics[-1]["round"],
        "evaluations": [line["round"] for line in done.released()],
        "epsilon": done.privacy.epsilon,
        "population_epsilon": done.privacy.population_epsilon,
    }
    print(json.dumps(report))


main()
