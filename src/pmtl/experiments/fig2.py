"""Fig. 2: loss and privacy against communication rounds, for PMTL."""

from __future__ import annotations

from pmtl.experiments.budget import COUNTINGS, Epsilons, best, grid
from pmtl.experiments.result_cache import ResultCache
from pmtl.experiments.tables import Sheet


def run(lab: ResultCache) -> Sheet:
    """Training loss and ε after every measured round of the run that is best at the end."""
    epsilons, cells = Epsilons(lab), grid(lab, "pmtl")
    chosen = best(lab, epsilons, cells, float("inf"), "ours", "personal")
    sheet = Sheet(
        "fig2",
        "Fig. 2: average training loss and ε against rounds, PMTL"
        + ("." if chosen is None else f" (σ = {chosen.cell.sigma:g}, γ = {chosen.cell.clip:g})."),
        ("rounds", "training loss", *(f"ε, {counting}" for counting in COUNTINGS)),
    )
    for point in lab.curve(chosen.cell) if chosen else []:
        spent = {
            f"ε, {counting}": epsilons(
                counting, chosen.cell.sigma, chosen.cell.clip, point["round"]
            )
            for counting in COUNTINGS
            if chosen
        }
        sheet.add(rounds=point["round"], **{"training loss": point["train_loss"]}, **spent)
    return sheet
