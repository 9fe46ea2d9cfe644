"""Table 3: PMTL against training alone, as it is, with the best fine-tuning, and with every client
choosing for itself."""

from __future__ import annotations

from dataclasses import replace

from pmtl.experiments.budget import COUNTINGS, Epsilons, Point, best, grid, reported
from pmtl.experiments.result_cache import ResultCache
from pmtl.experiments.table1 import best_method
from pmtl.experiments.tables import Sheet, spread
from pmtl.experiments.tasks import Cell, accuracy


def run(lab: ResultCache) -> Sheet:
    """Test accuracy for every ε, counted either way."""
    epsilons = Epsilons(lab)
    alone = local(lab)
    sheet = Sheet(
        "table3",
        "Table 3: PMTL against local training, test accuracy. The method of fine-tuning is chosen "
        "by validation; select lets every client choose among all models, its own alone included.",
        ("ε", "counted", "local", "PMTL", "PMTL + fine-tuning", "method", "PMTL + select"),
    )
    for epsilon in lab.setting.table_epsilons:
        for counting in COUNTINGS:
            point = best(lab, epsilons, grid(lab, "pmtl"), epsilon, counting, "personal")
            row: dict[str, object] = {"ε": epsilon, "counted": counting, "local": alone}
            if point is not None:
                row["PMTL"] = spread(reported(lab, point, "personal"))
                if found := best_method(lab, point):
                    row["method"], row["PMTL + fine-tuning"] = found[0], spread(found[1])
                row["PMTL + select"] = selected(lab, point)
            sheet.add(**row)
    return sheet


def local(lab: ResultCache) -> dict[str, object] | None:
    """Training alone, for as many rounds as validation says."""
    cells = [Cell("local", 0.0, float("inf"), lab.setting.seeds[0])]
    point = best(lab, Epsilons(lab), cells, float("inf"), "ours", "personal")
    return None if point is None else spread(reported(lab, point, "personal"))


def selected(lab: ResultCache, point: Point) -> dict[str, object] | None:
    """Every client chooses for itself."""
    found = []
    for seed in lab.setting.seeds:
        cell = replace(point.cell, seed=seed)
        if result := lab.chosen(cell, point.rounds):
            found.append(accuracy(result, "test"))
    return spread(found)
