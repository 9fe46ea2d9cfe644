"""Results as pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError


def plot_comparison(results: dict[str, Any], path: Path) -> None:
    """Test accuracy (or error) against ε, one line per method; methods without ε are level."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PmtlError("Plots need matplotlib: pip install 'pmtl[plot]'.") from error

    metric = results["metric"]
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for entry in results["chosen"]:
        if "test_personal" not in entry:
            continue
        value = entry["test_personal"][metric]
        if entry["epsilon"] is None:
            axes.axhline(value["mean"], ls="--", color="0.4", label=f"{entry['method']} (ε = 0)")
            axes.axhspan(
                value["mean"] - value["std"], value["mean"] + value["std"], color="0.4", alpha=0.12
            )
            continue
        point = (float(entry["epsilon"]), value["mean"], value["std"])
        lines.setdefault(entry["method"], []).append(point)
    places = _places([epsilon for points in lines.values() for epsilon, _, _ in points])
    for method, points in lines.items():
        points.sort()
        axes.errorbar(
            [places[epsilon] for epsilon, _, _ in points],
            [mean for _, mean, _ in points],
            [std for _, _, std in points],
            marker="o",
            capsize=3,
            label=method,
        )
    if places:
        axes.set_xscale("log")
        axes.set_xticks(list(places.values()), [_name(epsilon) for epsilon in places])
        axes.minorticks_off()
    axes.set_xlabel("ε (client-level, replace-one; smaller is more private)")
    axes.set_ylabel(f"test {metric}")
    axes.set_title(f"{results['clients']} clients, mean ± standard deviation over seeds")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _places(epsilons: list[float]) -> dict[float, float]:
    """Where each ε stands on the axis; ∞ is drawn a little right of the largest finite one."""
    finite = sorted({epsilon for epsilon in epsilons if math.isfinite(epsilon)})
    places = {epsilon: epsilon for epsilon in finite}
    if any(math.isinf(epsilon) for epsilon in epsilons):
        places[math.inf] = 3 * finite[-1] if finite else 1.0
    return places


def _name(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:g}"
