"""How long the personal models of ten thousand clients take: linear and logistic regression.

    python benchmarks/linear_models.py                       # prints one line for each task
    python benchmarks/linear_models.py --json FILE.json      # and writes them

Every client's penalised problem (`models/linear/solve.py`) is solved to the end, for all clients,
in pieces as the engine makes them. Rows are drawn in memory; reading a table is not counted.
Processor seconds are those of all threads together: on a busy machine they say more than seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from pmtl.models.linear.solve import ClientRows, solve
from pmtl.models.losses import Task

CLIENTS, COLUMNS, ROWS = 10_000, 30, 100
#: Clients that are solved at once.
PIECE = 250
#: The penalties on intercept and slopes.
PENALTIES = (0.3, 3.0)


def rows_of(task: Task, clients: int, seed: int) -> ClientRows:
    """The rows of some clients whose slopes are near common ones."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    x = torch.cat(
        [torch.ones(clients, ROWS, 1, dtype=torch.float64), draw(clients, ROWS, COLUMNS)], 2
    )
    slopes = torch.linspace(-0.5, 0.5, COLUMNS + 1, dtype=torch.float64)[None, :, None]
    answers = x @ (slopes + 0.2 * draw(clients, COLUMNS + 1, 1)) + draw(clients, ROWS, 1)
    y = answers if task == "regression" else torch.cat([answers <= 0, answers > 0], 2).double()
    return ClientRows(task, x, y, torch.ones(clients, ROWS, dtype=torch.float64))


def seconds(task: Task) -> tuple[float, float]:
    """How long all clients take: seconds, and processor seconds of all threads."""
    outputs = 1 if task == "regression" else 2
    centre = torch.zeros(1, 1, COLUMNS + 1, outputs, dtype=torch.float64)
    penalty = torch.full((1, 1, COLUMNS + 1), PENALTIES[1], dtype=torch.float64)
    penalty[..., 0] = PENALTIES[0]
    pieces = [rows_of(task, PIECE, seed) for seed in range(CLIENTS // PIECE)]
    solve(pieces[0], centre, penalty)
    began, used = time.perf_counter(), time.process_time()
    for piece in pieces:
        found = solve(piece, centre, penalty)
        assert found.isfinite().all()
    return time.perf_counter() - began, time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, dest="out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found: dict[str, Any] = {"clients": CLIENTS, "columns": COLUMNS, "rows": ROWS}
    found |= {"threads": given.threads, "cores": os.cpu_count(), "seconds": {}}
    found["processor_seconds"] = {}
    tasks: tuple[Task, ...] = ("regression", "classification")
    for task in tasks:
        times = [seconds(task) for _ in range(given.repeats)]
        best, least = (round(min(part), 2) for part in zip(*times, strict=True))
        found["seconds"][task], found["processor_seconds"][task] = best, least
        print(f"{task}: {best} s, {least} processor seconds")
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
