"""The paper's figures as pictures that its readers know, and bars for its tables."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError

Rows = list[dict[str, Any]]


def plot_sheet(name: str, caption: str, rows: Rows, path: Path) -> None:
    """Draw an experiment's rows in the way that suits it."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PmtlError("Plots need matplotlib: pip install 'pmtl[plot]'.") from error
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    draw = {"fig2": _loss_and_epsilon, "sweep": _sweep, "fig1": _bars, "table1": _bars}
    draw.get(name, _against_epsilon)(axes, rows)
    axes.set_title(textwrap.fill(caption, 80), fontsize="medium")
    figure.savefig(path, dpi=150)


def _loss_and_epsilon(axes: Any, rows: Rows) -> None:
    """Fig. 2: the loss falls on the left axis, ε rises on the right one."""
    rounds = [row["rounds"] for row in rows]
    axes.plot(rounds, [row["training loss"] for row in rows], color="tab:orange", label="loss")
    axes.set_xlabel("communication rounds")
    axes.set_ylabel("average training loss", color="tab:orange")
    right = axes.twinx()
    for counting, style in (("ours", "-"), ("paper's", "--")):
        values = [row[f"ε, {counting}"] for row in rows]
        right.plot(rounds, values, style, color="tab:blue", label=f"ε, {counting}")
    right.set_ylabel("ε", color="tab:blue")
    right.legend(frameon=False, loc="upper center")


def _against_epsilon(axes: Any, rows: Rows) -> None:
    """Fig. 3 and its kin: accuracy against ε, a line for every method, ∞ at the right end."""
    finite = [row["ε"] for row in rows if math.isfinite(row["ε"])]
    places = {e: e for e in finite} | {math.inf: 3 * max(finite, default=1.0)}
    methods = [name for name in rows[0] if any(isinstance(row[name], dict) for row in rows)]
    # One colour for a method, however its ε is counted.
    kinds = list(dict.fromkeys(method.partition(",")[0] for method in methods))
    for method in methods:
        colour = f"C{kinds.index(method.partition(',')[0])}"
        lines: dict[str, list[tuple[float, float, float]]] = {}
        for row in rows:
            if isinstance(row[method], dict):
                label = f"{method}, ε {row['counted']}" if "counted" in row else method
                value = row[method]
                lines.setdefault(label, []).append((places[row["ε"]], value["mean"], value["std"]))
        for label, points in lines.items():
            x, mean, std = zip(*points, strict=True)
            style = "--" if "paper's" in label else "-"
            look = {"marker": "o", "ls": style, "color": colour, "capsize": 3}
            axes.errorbar(x, mean, std, label=label, **look)
    axes.set_xscale("log")
    ticks = sorted({row["ε"] for row in rows})
    axes.set_xticks([places[e] for e in ticks], ["∞" if math.isinf(e) else f"{e:g}" for e in ticks])
    axes.minorticks_off()
    axes.set_xlabel("ε")
    axes.set_ylabel("test accuracy")
    axes.grid(alpha=0.25)
    _legend(axes)


def _sweep(axes: Any, rows: Rows) -> None:
    """Accuracy against σ, a line for every γ and λ."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(f"γ = {row['γ']:g}, λ = {row['λ']}", []).append((row["σ"], row["test"]))
    for label, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
    axes.set_xlabel("σ")
    axes.set_ylabel("test accuracy after the last round")
    axes.grid(alpha=0.25)
    _legend(axes)


def _bars(axes: Any, rows: Rows) -> None:
    """A group of bars for every row, a bar for every column that holds accuracies."""
    names = [name for name in (rows or [{}])[0] if any(isinstance(row[name], dict) for row in rows)]
    width = 0.8 / max(1, len(names))
    for number, name in enumerate(names):
        places = [place + width * (number - (len(names) - 1) / 2) for place in range(len(rows))]
        values = [row[name] or {"mean": 0.0, "std": 0.0} for row in rows]
        heights, spreads = [v["mean"] for v in values], [v["std"] for v in values]
        axes.bar(places, heights, width, yerr=spreads, label=name)
    axes.set_xticks(range(len(rows)), [_label(row) for row in rows], fontsize="small")
    axes.set_ylabel("test accuracy")
    _legend(axes)


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:  # There is nothing to name where all runs failed.
        # Beside the picture: inside there is always something that it would cover.
        axes.figure.legend(
            frameon=False, fontsize="small", handlelength=3, loc="outside right upper"
        )


def _label(row: dict[str, Any]) -> str:
    words = []
    for value in row.values():
        if isinstance(value, float):
            words.append("ε = ∞" if math.isinf(value) else f"ε = {value:.3g}")
        elif isinstance(value, str):
            words.append(value)
    return "\n".join(words[:2])
