"""Fig. 1: client-level privacy of all models at once gives models no better than a guess.

The naive way publishes one noisy model per client (`naive_joint`), against a private global model
and PMTL: the best of each that an ε buys.
"""

from __future__ import annotations

from pmtl.experiments.budget import COUNTINGS, Epsilons, best, grid, reported
from pmtl.experiments.result_cache import ResultCache
from pmtl.experiments.tables import Sheet, spread

METHODS = {"naive joint": "naive_joint", "private global": "fedavg", "PMTL": "pmtl"}


def run(lab: ResultCache) -> Sheet:
    """Test accuracy of the three at one ε."""
    epsilons, epsilon = Epsilons(lab), lab.setting.table_epsilons[-1]
    sheet = Sheet(
        "fig1",
        f"Fig. 1: naive client-level DP against PMTL, ε = {epsilon:g}, test accuracy; a guess is "
        f"{1 / lab.data.outputs:.3f}.",
        ("method", *COUNTINGS),
    )
    for name, family in METHODS.items():
        view = "shared" if family == "fedavg" else "personal"
        row: dict[str, object] = {"method": name}
        for counting in COUNTINGS:
            point = best(lab, epsilons, grid(lab, family), epsilon, counting, view)
            row[counting] = None if point is None else spread(reported(lab, point, view))
        sheet.add(**row)
    return sheet
