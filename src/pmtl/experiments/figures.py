"""The figures of the paper and its appendix: each function reads results and fills a sheet."""

from __future__ import annotations

import math

from pmtl.experiments.results import COUNTINGS, Results
from pmtl.experiments.sheet import Sheet, spread
from pmtl.experiments.tasks import Cell, accuracy

#: A method: its name, its algorithm, and which of its models is evaluated.
Method = tuple[str, str, str]
_PMTL, _GLOBAL = ("PMTL", "pmtl", "personal"), ("private global", "fedavg", "shared")
_NAIVE = ("naive joint", "naive_joint", "personal")
_FEDPROX = ("private FedProx", "fedprox", "shared")
_PPSGD = ("PP-SGD", "ppsgd", "personal")


def fig1(results: Results) -> Sheet:
    """The naive method, which publishes one noisy model per client, against a private global model
    and PMTL: the best of each at one ε. The naive models are no better than a guess."""
    epsilon = results.setting.table_epsilons[-1]
    sheet = Sheet(
        "fig1",
        f"Fig. 1: naive client-level DP against PMTL, ε = {epsilon:g}, test accuracy; a guess is "
        f"{1 / results.data.outputs:.3f}.",
        ("method", *COUNTINGS),
    )
    for name, family, view in (_NAIVE, _GLOBAL, _PMTL):
        cells = results.grid(family)
        scores = {counting: results.score(cells, epsilon, counting, view) for counting in COUNTINGS}
        sheet.add(method=name, **scores)
    return sheet


def fig2(results: Results) -> Sheet:
    """Training loss and ε after every measured round of the run that is best at the end."""
    point = results.best(results.grid("pmtl"), math.inf, "ours", "personal")
    chosen = "" if point is None else f" (σ = {point.cell.sigma:g}, γ = {point.cell.clip:g})"
    sheet = Sheet(
        "fig2",
        f"Fig. 2: average training loss and ε against rounds, PMTL{chosen}.",
        ("rounds", "training loss", *(f"ε, {counting}" for counting in COUNTINGS)),
    )
    if point is not None:
        for at in results.curve(point.cell):
            spent = _spent(results, point.cell, at["round"])
            sheet.add(rounds=at["round"], **{"training loss": at["train_loss"]}, **spent)
    return sheet


def _spent(results: Results, cell: Cell, rounds: int) -> dict[str, float]:
    return {f"ε, {counting}": results.epsilon(counting, cell, rounds) for counting in COUNTINGS}


def fig3(results: Results) -> Sheet:
    """PMTL against a private global model."""
    return _against(results, "fig3", "Fig. 3: PMTL against a private global model", _PMTL, _GLOBAL)


def fedprox(results: Results) -> Sheet:
    """The appendix's comparison with private FedProx: Fig. 3 with one more global method."""
    methods = (_PMTL, _GLOBAL, _FEDPROX)
    return _against(results, "fedprox", "PMTL against FedAvg and FedProx", *methods)


def ppsgd(results: Results) -> Sheet:
    """The appendix's comparison with PP-SGD, which predicts with w + θ_k (Bietti et al. 2022)."""
    return _against(results, "ppsgd", "PMTL against PP-SGD", _PMTL, _PPSGD)


def _against(results: Results, name: str, caption: str, *methods: Method) -> Sheet:
    """The best (γ, σ, T, λ) by validation rows, for every ε and both countings; ε = ∞ is training
    without noise and clipping."""
    sheet = Sheet(
        name,
        f"{caption}: test accuracy of the best (γ, σ, T, λ) by validation that ε buys.",
        ("ε", *(f"{method}, ε {counting}" for counting in COUNTINGS for method, _, _ in methods)),
    )
    for epsilon in (*results.setting.epsilons, math.inf):
        row: dict[str, object] = {"ε": epsilon}
        for counting in COUNTINGS:
            for method, family, view in methods:
                cells = results.grid(family, private=epsilon != math.inf)
                row[f"{method}, ε {counting}"] = results.score(cells, epsilon, counting, view)
        sheet.add(**row)
    return sheet


def longer(results: Results) -> Sheet:
    """Test accuracy without noise against rounds: PMTL's personal and shared models for every λ,
    and the global model; on the first seed."""
    cells = [*results.grid("pmtl", private=False), *results.grid("fedavg", private=False)]
    curves = {cell.algorithm: results.curve(cell) for cell in cells}
    views: dict[str, tuple[str, str]] = {}
    for name in curves:
        if name == "fedavg":
            views["global"] = (name, "shared")
        else:
            lam = _lam(name)
            views[f"PMTL, λ = {lam}"] = (name, "personal")
            views[f"its shared model, λ = {lam}"] = (name, "shared")
    rounds = sorted({point["round"] for curve in curves.values() for point in curve})
    sheet = Sheet(
        "longer",
        "Without noise: test accuracy against rounds (first seed).",
        ("rounds", *views),
    )
    for at in rounds:
        row = {
            column: spread([accuracy(p, "test", view) for p in curves[name] if p["round"] == at])
            for column, (name, view) in views.items()
        }
        sheet.add(rounds=at, **row)
    return sheet


def _lam(algorithm: str) -> str:
    return algorithm.partition("lam=")[2].partition(",")[0]


def sweep(results: Results) -> Sheet:
    """The appendix's sweeps: validation and test accuracy of PMTL, and ε, for every (σ, γ, λ) after
    the last round, on the first seed."""
    sheet = Sheet(
        "sweep",
        f"PMTL over σ × γ after {results.setting.rounds} rounds (first seed).",
        ("λ", "σ", "γ", "validation", "test", *(f"ε, {counting}" for counting in COUNTINGS)),
    )
    for cell in results.grid("pmtl"):
        if curve := results.curve(cell):
            sheet.add(
                λ=_lam(cell.algorithm),
                σ=cell.sigma,
                γ=cell.clip,
                validation=accuracy(curve[-1], "validation"),
                test=accuracy(curve[-1], "test"),
                **_spent(results, cell, curve[-1]["round"]),
            )
    return sheet
