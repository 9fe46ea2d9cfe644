"""Fig. 3: test accuracy at a given ε, PMTL against a private global model."""

from __future__ import annotations

from pmtl.experiments.budget import COUNTINGS, Counting, Epsilons, best, grid, reported
from pmtl.experiments.result_cache import ResultCache
from pmtl.experiments.tables import Sheet, spread

#: What is compared: name, algorithm, and which of its models answers.
METHODS = (("PMTL", "pmtl", "personal"), ("private global", "fedavg", "shared"))


def run(lab: ResultCache) -> Sheet:
    """The best (γ, σ, T, λ) by validation rows, for every ε and both countings."""
    return against(lab, "fig3", "Fig. 3: PMTL against a private global model", METHODS)


def against(
    lab: ResultCache, name: str, caption: str, methods: tuple[tuple[str, str, str], ...]
) -> Sheet:
    """The same for any methods."""
    epsilons = Epsilons(lab)
    sheet = Sheet(
        name,
        f"{caption}: test accuracy of the best (γ, σ, T, λ) by validation that ε buys.",
        ("ε", *(f"{method}, ε {counting}" for counting in COUNTINGS for method, _, _ in methods)),
    )
    for epsilon in (*lab.setting.epsilons, float("inf")):
        row: dict[str, object] = {"ε": epsilon}
        for counting in COUNTINGS:
            for method, family, view in methods:
                row[f"{method}, ε {counting}"] = score(
                    lab, epsilons, family, view, epsilon, counting
                )
        sheet.add(**row)
    return sheet


def score(
    lab: ResultCache, epsilons: Epsilons, family: str, view: str, epsilon: float, counting: Counting
) -> dict[str, object] | None:
    """What this ε buys; ∞ is training without noise and clip."""
    cells = grid(lab, family, private=epsilon != float("inf"))
    point = best(lab, epsilons, cells, epsilon, counting, view)
    return None if point is None else spread(reported(lab, point, view))
