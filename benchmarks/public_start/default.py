"""FEMNIST with a public start and the default method, which has nothing to tune.

    python benchmarks/public_start/default.py --network glyph --start glyph.safetensors \\
        --data femnist.npz
    python benchmarks/public_start/default.py --network paper --start paper.safetensors \\
        --data femnist.npz

The features are frozen and the public head is where the writers begin: pooling shares a map of its
answers, and each writer ends with a head of its own. δ = 1/m. All training rows are used; there
are no validation rows. Seconds on a graphics card; hours on a processor.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import pmtl
from pmtl.data import load

RESULTS = Path(__file__).parents[1] / "results" / "public-start-default.json"
SPEC, DELTA = "min_rows=100,clients=205,validation=0", 1 / 205
#: The model, and what of it is frozen.
NETWORKS = {"glyph": ("networks:GlyphNet", "features.*"), "paper": ("femnist_cnn", "conv*")}


def measure(network: str, start: str, data: str, epsilon: float, seed: int) -> dict[str, Any]:
    """Test accuracies over all rows, and gains over training alone, paired over writers."""
    model, frozen = NETWORKS[network]
    run = pmtl.train(
        load(f"{data}:{SPEC}"),
        model=model,
        init=start,
        frozen=frozen,
        privacy={"epsilon": epsilon, "delta": DELTA},
        seed=seed,
    )
    table = run.per_client("accuracy")
    models, right = np.asarray(table["model"]), np.asarray(table["accuracy"])
    scores = {view: right[models == view] for view in ("shared", "personal", "alone")}
    losses, rows = run.client_losses("test"), run.data.rows("test").counts.astype(np.float64)
    line: dict[str, Any] = {"network": network, "epsilon": epsilon, "seed": seed}
    line |= {view: float((part * rows).sum() / rows.sum()) for view, part in scores.items()}
    line["gain"], line["error"] = paired(scores["personal"] - scores["alone"], rows)
    line["loss"], line["loss_error"] = paired(losses["personal"] - losses["alone"], rows)
    return line


def paired(difference: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """The mean difference over all rows, and its standard error over writers."""
    part = rows / rows.sum()
    mean = float((difference * part).sum())
    spread = np.square((difference - mean) * part).sum() * len(rows) / (len(rows) - 1)
    return mean, float(np.sqrt(spread))


def table(lines: list[dict[str, Any]]) -> str:
    """The results as a Markdown table; means over the draws of the noise."""
    titles = ["network", "ε", "draws", "shared head", "alone", "personal heads", "above alone"]
    titles.append("log loss, below alone")
    rows = [f"| {' | '.join(titles)} |", "| --- |" + " ---: |" * (len(titles) - 1)]
    for network, epsilon in dict.fromkeys((line["network"], line["epsilon"]) for line in lines):
        draws = [line for line in lines if (line["network"], line["epsilon"]) == (network, epsilon)]
        mean = {
            name: float(np.mean([line[name] for line in draws]))
            for name in ("shared", "alone", "personal", "gain", "error", "loss", "loss_error")
        }
        cells = [network, f"{epsilon:g}", str(len(draws))]
        cells += [f"{mean[view]:.3f}" for view in ("shared", "alone", "personal")]
        cells.append(f"{mean['gain']:+.3f} ± {mean['error']:.3f}")
        cells.append(f"{-mean['loss']:+.3f} ± {mean['loss_error']:.3f}".replace("-", "−"))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", required=True, choices=sorted(NETWORKS))
    parser.add_argument("--start", required=True, help="a file that start.py made")
    parser.add_argument("--data", required=True, help="femnist.npz")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=1, help="draws of the noise")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    lines = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else []
    lines = [line for line in lines if line["network"] != given.network]
    for epsilon in given.epsilon:
        for seed in range(given.seeds):
            lines.append(measure(given.network, given.start, given.data, epsilon, seed))
            print(json.dumps(lines[-1]), flush=True)
    given.out.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    print(table(lines))


if __name__ == "__main__":
    main()
