"""The paper's tables: each function reads results and fills a sheet."""

from __future__ import annotations

import math
from statistics import mean

from pmtl.experiments.results import COUNTINGS, Point, Results
from pmtl.experiments.sheet import Sheet, spread
from pmtl.experiments.tasks import accuracy
from pmtl.personalize.methods import METHODS

#: The starts of fine-tuning in Table 1: the algorithm, and which of its models.
STARTS = {"MTL": ("pmtl", "personal"), "Global": ("fedavg", "shared")}


def table1(results: Results) -> Sheet:
    """Fine-tuning after PMTL (from personal models) and after a private global model, at the
    paper's ε; another column has the correct ε."""
    sheet = Sheet(
        "table1",
        "Table 1: fine-tuning, test accuracy.",
        ("ε, paper's", "start", "ε, ours", "before", *METHODS),
    )
    for epsilon in (*results.setting.table_epsilons, math.inf):
        for name, (family, view) in STARTS.items():
            cells = results.grid(family, private=epsilon != math.inf)
            point = results.best(cells, epsilon, "paper's", view)
            if point is None:
                continue
            row: dict[str, object] = {"ε, paper's": epsilon, "start": name}
            row["ε, ours"] = results.epsilon("ours", point.cell, point.rounds)
            row["before"] = spread(results.reported(point, view))
            for method, scores in _tuned(results, point).items():
                row[method.partition("-")[0]] = spread([test for _, test in scores])
            sheet.add(**row)
    return sheet


def table3(results: Results) -> Sheet:
    """PMTL against training alone: without fine-tuning, with the best fine-tuning, and with every
    client choosing for itself; for every ε in both countings."""
    alone = results.local()
    sheet = Sheet(
        "table3",
        "Table 3: PMTL against local training, test accuracy. The method of fine-tuning is chosen "
        "by validation; select lets every client choose among all models, its own alone included.",
        ("ε", "counted", "local", "PMTL", "PMTL + fine-tuning", "method", "PMTL + select"),
    )
    for epsilon in results.setting.table_epsilons:
        for counting in COUNTINGS:
            point = results.best(results.grid("pmtl"), epsilon, counting, "personal")
            row: dict[str, object] = {"ε": epsilon, "counted": counting, "local": alone}
            if point is not None:
                row["PMTL"] = spread(results.reported(point, "personal"))
                if tuned := _tuned(results, point):
                    # By validation accuracy; the paper chooses by test accuracy.
                    best = max(tuned, key=lambda name: mean(score[0] for score in tuned[name]))
                    row["method"] = best
                    row["PMTL + fine-tuning"] = spread([test for _, test in tuned[best]])
                chosen = [results.chosen(cell, point.rounds) for cell in results.seeds(point)]
                row["PMTL + select"] = spread([accuracy(one, "test") for one in chosen if one])
            sheet.add(**row)
    return sheet


def _tuned(results: Results, point: Point) -> dict[str, list[tuple[float, float]]]:
    """Validation and test accuracy after each method of fine-tuning, over the seeds."""
    scores: dict[str, list[tuple[float, float]]] = {}
    for cell in results.seeds(point):
        for name, result in results.tuned(cell, point.rounds).items():
            pair = accuracy(result, "validation"), accuracy(result, "test")
            scores.setdefault(name, []).append(pair)
    return scores
