"""Does the default method ever end worse than training alone? On federations drawn at random.

    python benchmarks/utility/check.py 1000 1080        # federations 1000 to 1079, every ε
    python benchmarks/utility/check.py --table          # the table of docs/pooling.md

Each federation (random_federations.py) is trained at every ε as a user would, and scored on test
rows, paired over clients: against the client's own model trained alone, and against the published
shared model. The rules were chosen on federations below 1000; these are others.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import random_federations
import torch
from numpy.typing import NDArray

import pmtl

RESULTS = Path(__file__).resolve().parents[1] / "results" / "utility_check.json"
EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)


def measure(seed: int, epsilon: float) -> dict[str, Any]:
    """Scores of one federation at one ε, and differences in standard errors."""
    federation = random_federations.draw(seed)
    data = federation.to_pmtl(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = pmtl.train(data, privacy=epsilon, seed=seed)
    losses = run.client_losses("test")
    weight = data.rows("test").counts.astype(np.float64)
    personal, alone = losses["personal"], losses["alone"]
    found = {"federation": seed, "epsilon": epsilon, "clients": federation.m}
    found |= {"task": federation.task, "finite": bool(np.isfinite(personal[weight > 0]).all())}
    found |= {"alone": mean(alone, weight), "personal": mean(personal, weight)}
    found["beside_alone"] = apart(personal, alone, weight)
    if "shared" in losses:
        found |= {"shared": mean(losses["shared"], weight)}
        found["beside_shared"] = apart(personal, losses["shared"], weight)
    return found


def mean(losses: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    """The mean loss of all test rows."""
    there = weight > 0
    return float((losses[there] * weight[there]).sum() / weight.sum())


def apart(
    mine: NDArray[np.float64], other: NDArray[np.float64], weight: NDArray[np.float64]
) -> float:
    """By how many standard errors over clients `mine` is larger; 0 where both are the same."""
    there = weight > 0
    lost = (mine[there] - other[there]) * weight[there] / weight.sum()
    spread = lost - weight[there] / weight.sum() * lost.sum()
    error = float(np.sqrt(np.square(spread).sum() * there.sum() / max(1, there.sum() - 1)))
    return float(lost.sum() / error) if error > 0 else 0.0


def table(found: list[dict[str, Any]]) -> str:
    """What came of it, by ε."""
    titles = ["ε", "federations", "not finite", "mean change", "better", "worse", "worst"]
    titles += ["worse than shared"]
    lines = [f"| {' | '.join(titles)} |", f"|{' ---: |' * len(titles)}"]
    for epsilon in sorted({one["epsilon"] for one in found}):
        these = [one for one in found if one["epsilon"] == epsilon]
        beside = np.array([one["beside_alone"] for one in these])
        change = np.array([one["personal"] / max(one["alone"], 1e-12) - 1 for one in these])
        worst = float(change[beside > 2].max()) if (beside > 2).any() else 0.0
        cells = [f"{epsilon:g}", len(these), sum(not one["finite"] for one in these)]
        cells += [f"{np.mean(change):.1%}", int((beside < -2).sum()), int((beside > 2).sum())]
        cells += [f"{worst:.1%}", sum(one.get("beside_shared", 0) > 2 for one in these)]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |".replace("-", "−", 1))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seeds", nargs="*", type=int, help="the first federation, and the end")
    parser.add_argument("--table", action="store_true", help="print the table of the results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = given.out.read_text(encoding="utf-8") if given.out.exists() else "[]"
    found: list[dict[str, Any]] = json.loads(text)
    if given.seeds and not given.table:
        for seed in range(*given.seeds):
            found = [one for one in found if one["federation"] != seed]
            for epsilon in EPSILONS:
                began = time.perf_counter()
                found.append(measure(seed, epsilon))
                print(f"{found[-1]} {time.perf_counter() - began:.0f} s", flush=True)
            ordered = sorted(found, key=lambda one: (one["federation"], one["epsilon"]))
            lines = ",\n".join(json.dumps(tidy(one)) for one in ordered)
            given.out.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(table(found))


def tidy(one: dict[str, Any]) -> dict[str, Any]:
    """Numbers with six digits."""
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in one.items()}


if __name__ == "__main__":
    main()
