"""Results as tables: for the terminal, and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

#: What a split may be called in a table, in this order.
VIEWS = ("personal", "shared")


def metrics_table(scores: dict[str, Any]) -> Table:
    """The metrics of one run: a row per split and view."""
    from rich.table import Table

    lines = [
        (split, view, values)
        for split, views in scores.items()
        for view, values in (views or {}).items()
    ]
    if not lines:
        return Table(title="There are no validation or test rows to measure on.", box=None)
    names = list(lines[0][2])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rows", "model", *names):
        table.add_column(name.replace("_", " "), justify="left" if name in VIEWS else "right")
    for split, view, values in lines:
        table.add_row(split, view, *(f"{values[name]:.4f}" for name in names))
    return table


def released_table(released: list[dict[str, Any]]) -> Table:
    """Average metrics that passed the gate: a row per evaluation, ± the deviation of the noise."""
    from rich.table import Table

    noise = released[0]["noise"]
    columns = [(view, name) for view in VIEWS if view in released[0] for name in noise]
    table = Table(
        title="Averages over clients, validation rows, ± the noise they were released with",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("round", justify="right")
    for view, name in columns:
        table.add_column(f"{view} {name.removesuffix('_mean')}", justify="right")
    for line in released:
        cells = (f"{line[view][name]:.3f} ± {noise[name]:.3f}" for view, name in columns)
        table.add_row(str(line["round"]), *cells)
    return table


def comparison_cells(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: one row per algorithm, one column per ε, mean ± deviation on test rows."""
    metric = results["metric"]
    epsilons = sorted({float(e["epsilon"]) for e in results["summary"] if e["epsilon"] is not None})
    header = [f"test {metric}", *(f"ε = {epsilon:g}" for epsilon in epsilons)]
    rows: dict[str, dict[float | None, str]] = {}
    for entry in results["summary"]:
        epsilon = None if entry["epsilon"] is None else float(entry["epsilon"])
        value = entry["test_personal"][metric] if "test_personal" in entry else None
        text = "no test rows" if value is None else f"{value['mean']:.3f} ± {value['std']:.3f}"
        rows.setdefault(entry["algorithm"], {})[epsilon] = text
    return header, [
        [name, *(cells.get(epsilon, cells.get(None, "")) for epsilon in epsilons)]
        if epsilons
        else [name, cells[None]]
        for name, cells in rows.items()
    ]


def comparison_table(results: dict[str, Any]) -> Table:
    """The comparison for a terminal."""
    from rich.table import Table

    header, rows = comparison_cells(results)
    table = Table(pad_edge=False, header_style="bold")
    for place, name in enumerate(header):
        table.add_column(name, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    return table


def comparison_markdown(results: dict[str, Any]) -> str:
    """The comparison as a Markdown table."""
    header, rows = comparison_cells(results)
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
