"""Where the time of `pmtl compare` on the embedded federation goes.

    python benchmarks/end_to_end.py [--json FILE]

The comparison is the README's (`pmtl compare`: three methods, three ε, three seeds), through the
same function as the command. Local training is what happens inside clients: drawing batches,
gathering rows, the steps. What counts as the rest is everything else: sampling, the gate, noise,
evaluation, files, tables. Accounting is timed apart. A second run under cProfile says which
functions the rest goes to.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import machine

from pmtl.experiments.compare import Grid, compare
from pmtl.privacy.accounting import accountant
from pmtl.privacy.release import Release
from pmtl.runs.folder import RunFolder
from pmtl.simulation.client_vectors.store import Store
from pmtl.simulation.sites import Sites


class Clock:
    """Seconds spent inside some functions, by a name for each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, function: str, name: str) -> None:
        """Time every call of `owner.function`."""
        inner: Callable[..., Any] = getattr(owner, function)

        def timed(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            try:
                return inner(*arguments, **options)
            finally:
                spent = time.perf_counter() - begun
                self.seconds[name] = self.seconds.get(name, 0.0) + spent

        setattr(owner, function, timed)


def run() -> float:
    """The whole comparison, once."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        compare(Grid(), Path(folder) / "out")
        return time.perf_counter() - begun


def hottest(count: int) -> list[dict[str, Any]]:
    """The functions in which most time goes by, of a run under the profiler."""
    profile = cProfile.Profile()
    profile.runcall(run)
    lines = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    ordered = sorted(lines, key=lambda item: -item[1][2])[:count]
    return [
        {"function": f"{Path(file).name}:{name}", "calls": calls, "seconds": round(own, 2)}
        for (file, _, name), (calls, _, own, _, _) in ordered
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    run()  # Warms up.
    clock = Clock()
    clock.watch(Sites, "train_clients", "local training")
    clock.watch(Release, "add", "clipping and summing")
    clock.watch(Release, "publish", "noise and publishing")
    clock.watch(Store, "gather", "gathering models")
    clock.watch(Store, "scatter", "writing models back")
    clock.watch(accountant, "epsilon", "accounting")
    clock.watch(RunFolder, "save_checkpoint", "checkpoints")
    clock.watch(RunFolder, "save_result", "results")
    total = run()
    shares = {name: round(spent / total, 4) for name, spent in clock.seconds.items()}
    result = {
        "machine": machine(torch.device("cpu")),
        "seconds": round(total, 2),
        "share_of_local_training": shares["local training"],
        "shares": dict(sorted(shares.items(), key=lambda item: -item[1])),
        "hottest": hottest(15),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
