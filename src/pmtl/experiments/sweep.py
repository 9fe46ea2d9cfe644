"""The appendix' sweeps: what σ and γ do to accuracy and to ε, for PMTL."""

from __future__ import annotations

from pmtl.experiments.budget import COUNTINGS, Epsilons, grid
from pmtl.experiments.result_cache import ResultCache
from pmtl.experiments.tables import Sheet
from pmtl.experiments.tasks import accuracy


def run(lab: ResultCache) -> Sheet:
    """Validation and test accuracy of every (σ, γ, λ) after its last round, on the first seed."""
    epsilons = Epsilons(lab)
    sheet = Sheet(
        "sweep",
        f"PMTL over σ × γ after {lab.setting.rounds} rounds (first seed).",
        ("λ", "σ", "γ", "validation", "test", *(f"ε, {counting}" for counting in COUNTINGS)),
    )
    for cell in grid(lab, "pmtl"):
        points = lab.curve(cell)
        if not points:
            continue
        last = points[-1]
        spent = {
            f"ε, {counting}": epsilons(counting, cell.sigma, cell.clip, last["round"])
            for counting in COUNTINGS
        }
        sheet.add(
            λ=cell.algorithm.partition("lam=")[2].partition(",")[0],
            σ=cell.sigma,
            γ=cell.clip,
            validation=accuracy(last, "validation"),
            test=accuracy(last, "test"),
            **spent,
        )
    return sheet
