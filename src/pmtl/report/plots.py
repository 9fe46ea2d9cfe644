"""Plots of plans, of comparisons and of the paper's figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pmtl.errors import PmtlError, how_many, require_package
from pmtl.storage import disk_errors

if TYPE_CHECKING:
    from pmtl.planning.advice import Plan

Rows = list[dict[str, Any]]
#: Formats of the plot of a plan.
ENDINGS = (".svg", ".png", ".pdf")


def plot_plan(plan: Plan, path: str | Path) -> None:
    """Draw the shared numbers that pay against clients, one line for each ρ, and the plan's offers.
    Other numbers of clients are drawn at the plan's δ and rate, where d* grows with the square of
    their number. The ending of `path` decides the format."""
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise PmtlError(f"{path} has no known ending: use one of {', '.join(ENDINGS)}.")
    m = plan.privacy.clients
    axes = make_axes(7.2)
    scales = (0.1, 1.0, 10.0, 100.0)
    if plan.noise > 0:
        for agreement, most in plan.pays.items():
            heights = [most * scale**2 for scale in scales]
            axes.plot([m * scale for scale in scales], heights, label=f"ρ = {agreement:g}")
    for offer in plan.offers:
        axes.plot([m], [offer.numbers], "k.", zorder=3)
        style = {"textcoords": "offset points", "fontsize": "small", "va": "center"}
        name = f"{offer.name}, {offer.numbers:,}"
        axes.annotate(name, (m, offer.numbers), (6, 0), **style)
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="shared numbers that pay")
    axes.axvline(m, color="0.7", lw=0.8)
    axes.set_title(f"{how_many(m, 'client')}, ε = {plan.epsilon:.4g}: below a line, sharing pays")
    axes.grid(alpha=0.25)
    if plan.noise > 0:
        title = "common to all clients"
        axes.legend(frameon=False, fontsize="small", title=title, title_fontsize="small")
    _save(axes, path)


def plot_comparison(results: dict[str, Any], path: Path) -> None:
    """Test accuracy (or error) against ε, one line per method; horizontal for methods without ε."""
    metric = results["metric"]
    axes = make_axes(6.4)
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for entry in results["chosen"]:
        if "test_personal" not in entry:
            continue
        mean, std = (entry["test_personal"][metric][name] for name in ("mean", "std"))
        if not math.isfinite(mean + std):
            continue  # It diverged.
        if entry["epsilon"] is None:
            axes.axhline(mean, ls="--", color="0.4", label=f"{entry['method']} (ε = 0)")
            axes.axhspan(mean - std, mean + std, color="0.4", alpha=0.12)
        else:
            lines.setdefault(entry["method"], []).append((float(entry["epsilon"]), mean, std))
    places = _epsilon_axis(axes, [point[0] for points in lines.values() for point in points])
    for method, points in lines.items():
        epsilons, means, deviations = zip(*sorted(points), strict=True)
        x = [places[epsilon] for epsilon in epsilons]
        axes.errorbar(x, means, deviations, marker="o", capsize=3, label=method)
    axes.set_xlabel("ε (client-level, replace-one; smaller is more private)")
    value_axis(axes, f"test {metric}", metric == "accuracy")
    axes.set_title(
        f"{how_many(results['clients'], 'client')}, mean ± standard deviation over seeds"
    )
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    _save(axes, path)


def plot_sheet(name: str, caption: str, rows: Rows, path: Path) -> None:
    """Plot the rows of an experiment."""
    axes = make_axes(8.4)
    draw = {"fig2": _loss_and_epsilon, "sweep": sweep, "fig1": bars, "table1": bars}
    draw["longer"] = against_rounds
    draw.get(name, against_epsilon)(axes, rows)
    axes.set_title(textwrap.fill(caption, 80), fontsize="medium")
    _save(axes, path)


def _save(axes: Any, path: Path) -> None:
    with disk_errors(path):
        axes.figure.savefig(path, dpi=150)


def make_axes(width: float) -> Any:
    with require_package("Plots need matplotlib: pip install 'pmtl[plot]'."):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots()


def _epsilon_axis(axes: Any, epsilons: Sequence[float]) -> dict[float, float]:
    """Label the axis of ε; returns the position of each ε, with ∞ right of the largest other."""
    finite = sorted({epsilon for epsilon in epsilons if math.isfinite(epsilon)})
    places = {epsilon: epsilon for epsilon in finite}
    if any(math.isinf(epsilon) for epsilon in epsilons):
        places[math.inf] = 3 * max(finite, default=1 / 3)
    if places:
        axes.set_xscale("log")
        labels = ["∞" if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in places]
        axes.set_xticks(list(places.values()), labels)
        axes.minorticks_off()
    return places


def value_axis(axes: Any, label: str, accuracy: bool = True) -> None:
    """Limits that do not exaggerate. To be called when everything is drawn."""
    low, high = axes.get_ylim()
    low, high = axis_range(low, high, accuracy)
    axes.set(ylim=(low, high), ylabel=axis_title(label, low))


def axis_range(low: float, high: float, accuracy: bool = True) -> tuple[float, float]:
    """Limits of an axis for values between `low` and `high`: it starts at 0, or covers at least a
    fifth of the values (an accuracy: of 1), so that a difference too small to matter does not fill
    the picture."""
    low, high = max(0.0, low), min(1.0, high) if accuracy else high
    least = 0.2 if accuracy else 0.2 * high
    if high - low < least:
        middle = (low + high) / 2
        low, high = middle - least / 2, middle + least / 2
        shift = min(0.0, 1.0 - high) if accuracy else 0.0
        low, high = max(0.0, low + shift), high + shift
    return (0.0 if low <= high / 2 else low), high


def axis_title(label: str, low: float) -> str:
    """The title of an axis, which says where it starts (`low`) if that is not at 0."""
    return label if low == 0 else f"{label} (axis starts at {low:.2g}, not at 0)"


def _loss_and_epsilon(axes: Any, rows: Rows) -> None:
    """Fig. 2: the loss falls on the left axis, ε rises on the right one."""
    rounds = [row["rounds"] for row in rows]
    axes.plot(rounds, [row["training loss"] for row in rows], color="tab:orange", label="loss")
    axes.set_xlabel("communication rounds")
    value_axis(axes, "average training loss", accuracy=False)
    axes.yaxis.label.set_color("tab:orange")
    right = axes.twinx()
    for counting, style in (("ours", "-"), ("paper's", "--")):
        values = [row[f"ε, {counting}"] for row in rows]
        right.plot(rounds, values, style, color="tab:blue", label=f"ε, {counting}")
    right.set_ylim(bottom=0)
    right.set_ylabel("ε", color="tab:blue")
    right.legend(frameon=False, loc="upper center")


def against_epsilon(axes: Any, rows: Rows) -> None:
    """Fig. 3 and similar ones: accuracy against ε, a line for every method."""
    places = _epsilon_axis(axes, [row["ε"] for row in rows])
    methods = _accuracies(rows)
    # One colour for a method in both countings of ε.
    kinds = list(dict.fromkeys(method.partition(",")[0] for method in methods))
    for method in methods:
        lines: dict[str, list[tuple[float, float, float]]] = {}
        for row in rows:
            if value := row[method]:
                label = f"{method}, ε {row['counted']}" if "counted" in row else method
                lines.setdefault(label, []).append((places[row["ε"]], value["mean"], value["std"]))
        colour = f"C{kinds.index(method.partition(',')[0])}"
        for label, points in lines.items():
            style = {"color": colour, "ls": "--" if "paper's" in label else "-"}
            axes.errorbar(*zip(*points, strict=True), label=label, marker="o", capsize=3, **style)
    axes.set_xlabel("ε")
    _finish(axes, "test accuracy")


def against_rounds(axes: Any, rows: Rows) -> None:
    """Accuracy against rounds, a line for every method."""
    for method in _accuracies(rows):
        points = [(row["rounds"], row[method]["mean"]) for row in rows if row[method]]
        axes.plot(*zip(*points, strict=True), marker="o", label=method)
    axes.set(xscale="log", xlabel="communication rounds")
    _finish(axes, "test accuracy")


def sweep(axes: Any, rows: Rows) -> None:
    """Accuracy against σ, a line for every γ and λ."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(f"γ = {row['γ']:g}, λ = {row['λ']}", []).append((row["σ"], row["test"]))
    for label, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
    axes.set_xlabel("σ")
    _finish(axes, "test accuracy after the last round")


def bars(axes: Any, rows: Rows) -> None:
    """A group of bars for every row, a bar for every column that holds accuracies."""
    names = _accuracies(rows)
    width = 0.8 / max(1, len(names))
    for number, name in enumerate(names):
        places = [place + width * (number - (len(names) - 1) / 2) for place in range(len(rows))]
        values = [row[name] or {"mean": 0.0, "std": 0.0} for row in rows]
        heights, spreads = [v["mean"] for v in values], [v["std"] for v in values]
        axes.bar(places, heights, width, yerr=spreads, label=name)
    axes.set_xticks(range(len(rows)), [_label(row) for row in rows], fontsize="small")
    axes.set_ylim(0, 1)  # The length of a bar is its value.
    _finish(axes, "test accuracy", grid=False)


def _accuracies(rows: Rows) -> list[str]:
    """The columns that hold accuracies."""
    return [name for name in (rows or [{}])[0] if any(isinstance(row[name], dict) for row in rows)]


def _finish(axes: Any, ylabel: str, grid: bool = True) -> None:
    value_axis(axes, ylabel)
    if grid:
        axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:  # There are none if all runs failed.
        style = {"frameon": False, "fontsize": "small", "handlelength": 3}
        axes.figure.legend(loc="outside right upper", **style)  # Inside it would cover points.


def _label(row: dict[str, Any]) -> str:
    words = []
    for value in row.values():
        if isinstance(value, float):
            words.append("ε = ∞" if math.isinf(value) else f"ε = {value:.3g}")
        elif isinstance(value, str):
            words.append(value)
    return "\n".join(words[:2])
