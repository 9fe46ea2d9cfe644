"""One turn of one contestant: what it is asked, and what it answers.

A turn is a process of its own in the contestant's environment. It is given a folder with the data
and leaves `answer.json` (and, where asked, `shared.npy`) in another. Needs NumPy only.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from workload import EVERY, Federation, Workload, read

ALGORITHMS = ("pmtl", "fedavg")


@dataclass
class Turn:
    """The question, and a clock that is told when a round is over."""

    name: str
    algorithm: str
    ways: str  #: how the contestant uses the cores, in its own words
    folder: Path  #: with the data
    out: Path
    rounds: int
    noise: bool
    begun: float  #: when the process was started, in seconds since 1970
    device: str = "cpu"  #: or cuda
    startup: float = 0.0
    marks: list[float] = field(default_factory=list)

    @classmethod
    def asked(cls) -> Turn:
        """From the command line that `run.py` writes."""
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--workload", choices=EVERY, required=True)
        parser.add_argument("--algorithm", choices=ALGORITHMS, required=True)
        parser.add_argument("--ways", required=True)
        parser.add_argument("--folder", type=Path, required=True)
        parser.add_argument("--out", type=Path, required=True)
        parser.add_argument("--rounds", type=int, required=True)
        parser.add_argument("--no-noise", action="store_true")
        parser.add_argument("--begun", type=float, default=time.time())
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        given = parser.parse_args()
        return cls(
            *(given.workload, given.algorithm, given.ways, given.folder, given.out),
            *(given.rounds, not given.no_noise, given.begun, given.device),
        )

    @property
    def workload(self) -> Workload:
        return EVERY[self.name]

    @property
    def personal(self) -> bool:
        return self.algorithm == "pmtl"

    def federation(self) -> Federation:
        return read(self.folder)

    def tick(self) -> None:
        """Called when everything is ready, and again after every round."""
        if not self.marks:
            self.startup = time.time() - self.begun
        self.marks.append(time.perf_counter())

    def answer(
        self,
        versions: dict[str, str],
        cohorts: list[list[int]],
        steps: int,
        shared: Any,
        clipped: float | None = None,
    ) -> None:
        """Leave what was measured: the first round apart from the others, who was trained, the
        local steps that were counted, the shared model at the end and, if known, the share of
        uploads that was clipped."""
        taken = np.diff(self.marks).tolist()
        values = {
            "versions": versions,
            "startup": self.startup,
            "first": taken[0],
            "rounds": taken[1:],
            "local_steps": int(steps),
            "cohorts": [sorted(int(client) for client in cohort) for cohort in cohorts],
            "clipped": clipped,
        }
        np.save(self.out / "shared.npy", np.asarray(shared, dtype=np.float32))
        (self.out / "answer.json").write_text(json.dumps(values), encoding="utf-8")
