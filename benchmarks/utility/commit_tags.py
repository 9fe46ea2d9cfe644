"""The commit tags: the default method at ε = 2, beside training alone, well solved.

    python benchmarks/utility/commit_tags.py                 # benchmarks/results/commit-tags.json

Four minutes on a graphics card, and hours on a processor. *Alone* here is each user's own
softmax regression, solved to the end with penalties that suit words: with each user's own choice of
a penalty by a quarter of its training rows, and with the one that is best for all of them, which
would have to be paid for. Test rows are only scored.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from federation import Federation, draw_rows
from numpy.typing import NDArray
from shared import commit_tags
from torch.nn import functional as F

import pmtl
from pmtl.models.linear.solve import ClientRows, row_losses, solve

RESULTS = Path(__file__).parents[1] / "results" / "commit-tags.json"
EPSILON, DRAWS = 2.0, 3
#: Penalties on the weights of words; those on intercepts are a tenth.
PENALTIES = (0.03, 0.1, 0.3, 1.0)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def ours(federation: Federation, device: str) -> dict[str, Floats]:
    """[draws, users] the part of right answers to test rows, of the personal models and of the
    method's own training alone, with several draws of the noise."""
    found: dict[str, list[Floats]] = {"personal": [], "alone": []}
    for seed in range(DRAWS):
        run = pmtl.train(federation.to_pmtl(0), privacy=EPSILON, seed=seed, device=device)
        table = run.per_client("accuracy")
        models, right = np.asarray(table["model"]), np.asarray(table["accuracy"])
        for view, rights in found.items():
            rights.append(right[models == view])
        print(f"draw {seed}: {found['personal'][-1].mean():.4f}", flush=True)
    return {view: np.stack(rights) for view, rights in found.items()}


def well_solved(federation: Federation, device: str) -> tuple[Floats, Floats]:
    """[penalties, users] the losses on held-out training rows, and the part of right answers."""
    test = federation.test_rows(0)
    train, asked = np.flatnonzero(~test), np.flatnonzero(test)
    out = draw_rows(federation.client[train], federation.m, 2000, 0.25, 2)
    shape = len(PENALTIES), federation.m
    losses, rights = np.zeros(shape), np.zeros(shape)
    for user in range(federation.m):
        fit, held, all_of, new = (
            rows[federation.client[rows] == user]
            for rows in (train[~out], train[out], train, asked)
        )
        outputs, y = _answers(federation, fit, held, device)
        losses[:, user] = row_losses("classification", outputs, y).mean(1).cpu().numpy()
        outputs, y = _answers(federation, all_of, new, device)
        rights[:, user] = (outputs.argmax(2) == y.argmax(1)).double().mean(1).cpu().numpy()
    return losses, rights


def _answers(
    federation: Federation, fit: Ints, asked: Ints, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """[penalties, asked, tags] the answers to rows after training on others, and their tags."""
    x, y = _rows(federation, fit, device)
    rows = ClientRows("classification", x[None], y[None], torch.ones_like(x[None, :, 0]))
    penalty = torch.tensor(PENALTIES, dtype=torch.float64, device=device)
    penalties = penalty[None, :, None].repeat(1, 1, x.shape[1])
    penalties[..., 0] /= 10
    centre = torch.zeros(1, len(PENALTIES), x.shape[1], y.shape[1], dtype=x.dtype, device=device)
    weights = solve(rows, centre, penalties, until=(300, 1e-3))[0]
    x, y = _rows(federation, asked, device)
    return x @ weights, y


def _rows(federation: Federation, rows: Ints, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.tensor(federation.x[rows].toarray(), dtype=torch.float64, device=device)
    y = torch.tensor(federation.y[rows], device=device)
    return torch.cat([torch.ones_like(x[:, :1]), x], 1), F.one_hot(y, federation.outputs).double()


def summary(
    federation: Federation, found: dict[str, Floats], losses: Floats, rights: Floats
) -> dict[str, Any]:
    """What the page shows: means over users, and gains paired over users."""
    users = np.arange(federation.m)
    alone = {
        "own choice": rights[losses.argmin(0), users],
        "best for all": rights[int(losses.mean(1).argmin())],
        "the method's own": found["alone"].mean(0),
    }
    report: dict[str, Any] = {"users": federation.m, "words": federation.x.shape[1]}
    report |= {"tags": federation.outputs, "epsilon": EPSILON, "alone": {}}
    report["ours"] = float(found["personal"].mean())
    report["draws"] = found["personal"].mean(1).tolist()
    report["penalty for all"] = PENALTIES[int(losses.mean(1).argmin())]
    for name, right in alone.items():
        gain = found["personal"].mean(0) - right
        error = float(gain.std(ddof=1) / math.sqrt(len(gain)))
        report["alone"][name] = {"score": float(right.mean()), "gain": float(gain.mean())}
        report["alone"][name]["error"] = error
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    federation = commit_tags()
    report = summary(
        federation, ours(federation, given.device), *well_solved(federation, given.device)
    )
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
