"""Table 1: local fine-tuning after PMTL (from personal models) and after a private global model.

ε is counted the paper's way, for comparison with its numbers; beside it stands the ε that holds.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

from pmtl.experiments.budget import Epsilons, Point, best, grid
from pmtl.experiments.result_cache import ResultCache
from pmtl.experiments.tables import Sheet, spread
from pmtl.experiments.tasks import accuracy
from pmtl.personalize.methods import METHODS

STARTS = {"MTL": ("pmtl", "personal"), "Global": ("fedavg", "shared")}


def run(lab: ResultCache) -> Sheet:
    """Test accuracy after each method, for each ε."""
    epsilons = Epsilons(lab)
    sheet = Sheet(
        "table1",
        "Table 1: fine-tuning, test accuracy.",
        ("ε, paper's", "start", "ε, ours", "before", *METHODS),
    )
    for epsilon in (*lab.setting.table_epsilons, float("inf")):
        for name, (family, view) in STARTS.items():
            cells = grid(lab, family, private=epsilon != float("inf"))
            point = best(lab, epsilons, cells, epsilon, "paper's", view)
            if point is None:
                continue
            cell = point.cell
            row: dict[str, object] = {"ε, paper's": epsilon, "start": name}
            row["ε, ours"] = epsilons("ours", cell.sigma, cell.clip, point.rounds)
            row |= tuned(lab, point, view)
            sheet.add(**row)
    return sheet


def tuned(lab: ResultCache, point: Point, view: str) -> dict[str, object]:
    """Test accuracies before and after each method, over the seeds."""
    before, after = [], {method: [] for method in METHODS}  # type: ignore[var-annotated]
    for seed in lab.setting.seeds:
        cell = replace(point.cell, seed=seed)
        before += [accuracy(p, "test", view) for p in lab.curve(cell) if p["round"] == point.rounds]
        for name, result in lab.tuned(cell, point.rounds).items():
            after[name.partition("-")[0]].append(accuracy(result, "test"))
    return {"before": spread(before)} | {name: spread(found) for name, found in after.items()}


def best_method(lab: ResultCache, point: Point) -> tuple[str, list[float]] | None:
    """The method with the best mean validation accuracy, and its test accuracies. (The paper picks
    by test accuracy.)"""
    scores: dict[str, list[tuple[float, float]]] = {}
    for seed in lab.setting.seeds:
        cell = replace(point.cell, seed=seed)
        for name, result in lab.tuned(cell, point.rounds).items():
            pair = accuracy(result, "validation"), accuracy(result, "test")
            scores.setdefault(name, []).append(pair)
    if not scores:
        return None
    name = max(scores, key=lambda method: mean(v for v, _ in scores[method]))
    return name, [test for _, test in scores[name]]
