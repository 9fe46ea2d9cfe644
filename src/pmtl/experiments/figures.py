"""The figures and tables of the paper and its appendix: each function reads results and fills a
sheet."""

from __future__ import annotations

import math
from statistics import mean

from pmtl.experiments.results import COUNTINGS, Point, Results
from pmtl.experiments.sheet import Sheet, spread
from pmtl.experiments.tasks import Cell, accuracy
from pmtl.personalize.methods import METHODS

#: A method: its name, its algorithm, and which of its models is evaluated.
Method = tuple[str, str, str]
_PMTL, _GLOBAL = ("PMTL", "pmtl", "personal"), ("private global", "fedavg", "shared")
_NAIVE = ("naive joint", "naive_joint", "personal")
_FEDPROX = ("private FedProx", "fedprox", "shared")
_PPSGD = ("PP-SGD", "ppsgd", "personal")
#: The starts of fine-tuning in Table 1: the algorithm, and which of its models.
STARTS = {"MTL": ("pmtl", "personal"), "Global": ("fedavg", "shared")}


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
