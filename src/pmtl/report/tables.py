"""Tables for the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pmtl.report.verdict import NO_ROWS
from pmtl.views.run_view import epsilon_number

if TYPE_CHECKING:
    from rich.table import Table


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, **style: Any
) -> Table:
    """A table whose first `left` columns are words and whose others are numbers."""
    from rich.table import Table

    table = Table(**{"box": None, "pad_edge": False, "header_style": "bold", **style})
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def score_cells(scores: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the metrics of one run, a row per split and view."""
    lines = [
        (split, view, values)
        for split, views in scores.items()
        for view, values in (views or {}).items()
    ]
    names = list(lines[0][2]) if lines else []
    return ["rows", "model", *(name.replace("_", " ") for name in names)], [
        [split, view, *(f"{values[name]:.4f}" for name in names)] for split, view, values in lines
    ]


def metrics_table(scores: dict[str, Any]) -> Table:
    """The metrics of one run: a row per split and view."""
    header, rows = score_cells(scores)
    if not rows:
        return _table([], [], title=NO_ROWS)
    return _table(header, rows, left=0)


def counts_table(what: str, counts: dict[str, int]) -> Table:
    """The number of clients of each name, the largest first."""
    ordered = sorted(counts.items(), key=lambda entry: -entry[1])
    return _table([what, "clients"], [(name, str(count)) for name, count in ordered])


def released_table(released: list[dict[str, Any]]) -> Table:
    """Released average metrics: a row per evaluation, ± the standard deviation of the noise."""
    noise = released[0]["noise"]
    views = [view for view in ("personal", "shared") if view in released[0]]
    columns = [(view, name) for view in views for name in noise]
    cells = [
        [str(line["round"])]
        + [f"{line[view][name]:.3f} ± {noise[name]:.3f}" for view, name in columns]
        for line in released
    ]
    return _table(
        ["round", *(f"{view} {name.removesuffix('_mean')}" for view, name in columns)],
        cells,
        left=0,
        title="Averages over clients, validation rows, ± the noise they were released with",
        title_justify="left",
    )


def comparison_cells(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: one row per algorithm, one column per ε, mean ± deviation on test rows."""
    metric = results["metric"]
    epsilons = sorted({float(e["epsilon"]) for e in results["summary"] if e["epsilon"] is not None})
    header = _header(metric, epsilons)
    rows: dict[str, dict[float | None, str]] = {}
    for entry in results["summary"]:
        epsilon = None if entry["epsilon"] is None else float(entry["epsilon"])
        rows.setdefault(entry["name"], {})[epsilon] = _result(entry, metric)
    return header, [
        [name, *(cells.get(epsilon, cells.get(None, "")) for epsilon in epsilons)]
        if epsilons
        else [name, cells[None]]
        for name, cells in rows.items()
    ]


def _result(entry: dict[str, Any], metric: str) -> str:
    """The cell of one candidate at one ε."""
    if not entry["seeds"]:
        return "failed"
    if entry["diverged"]:
        return "diverged"
    if "test_personal" not in entry:
        return "no test rows"
    value = entry["test_personal"][metric]
    text = f"{value['mean']:.3f}" + (f" ± {value['std']:.3f}" if entry["seeds"] > 1 else "")
    return f"{text} ({entry['failed']} failed)" if entry["failed"] else text


def run_notes(results: dict[str, Any]) -> list[str]:
    """What methods do not use, and a sentence for each reason why runs failed or diverged."""
    notes = [*results.get("notes", [])]
    for failure in results["failures"]:
        names = failure["names"]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        notes.append(f"{'; '.join(names[:3])}{more}: {failure['sentence']}")
    return notes


def chosen_cells(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: every method with the setting that was chosen for it at each ε, the same way
    for all of them, and the ε that covers a private choice, too. There are no rows if no method had
    several settings."""
    metric, tried = results["metric"], _settings_tried(results)
    if not any(len(names) > 1 for names in tried.values()):
        return [], []
    epsilons = sorted({float(e["epsilon"]) for e in results["chosen"] if e["epsilon"] is not None})
    priced = {(p["method"], float(p["epsilon"])): p["publish_best"] for p in results["selection"]}
    rows = []
    for method, at in _chosen(results).items():
        count = len(tried[method])
        name = f"{method}, best of {count}" if count > 1 else method
        alone = at.get(None)
        cells = [at.get(epsilon, alone) for epsilon in epsilons] or [alone]
        prices = [epsilon_number(float(priced.get((method, e), e))) for e in epsilons]
        paid = ["–" if None in at else ", ".join(prices)] if epsilons else []
        rows.append([name, *(_result(line, metric) if line else "" for line in cells), *paid])
    return _header(metric, epsilons) + ["ε with the choice"] * bool(epsilons), rows


def chosen_notes(results: dict[str, Any]) -> list[str]:
    """How settings were chosen, and a sentence for each method that had several."""
    if not chosen_cells(results)[1]:
        return []
    validated = any("validation_personal" in line for line in results["summary"])
    rows = "validation" if validated else "test"
    notes = [
        f"The setting of every method is the one with the best {results['metric']} on {rows} rows, "
        "averaged over seeds, at each ε."
    ]
    tried = _settings_tried(results)
    for method, at in _chosen(results).items():
        if len(tried[method]) < 2:
            continue
        places: dict[str, list[str]] = {}
        for epsilon, line in at.items():
            setting = line["name"].removeprefix(method).lstrip(":, ")
            places.setdefault(setting or "its defaults", []).append(
                "" if epsilon is None else epsilon_number(epsilon)
            )
        settings = (
            f"{setting} at ε = {', '.join(where)}" if any(where) else setting
            for setting, where in places.items()
        )
        notes.append(f"Chosen for {method}: {'; '.join(settings)}.")
    return notes


def _header(metric: str, epsilons: Sequence[float]) -> list[str]:
    if not epsilons:  # Nothing is shared.
        return ["method", f"test {metric}"]
    return [f"test {metric}", *(f"ε = {epsilon_number(epsilon)}" for epsilon in epsilons)]


def _chosen(results: dict[str, Any]) -> dict[str, dict[float | None, dict[str, Any]]]:
    """For each method the lines that were chosen, by ε."""
    methods: dict[str, dict[float | None, dict[str, Any]]] = {}
    for line in results["chosen"]:
        epsilon = None if line["epsilon"] is None else float(line["epsilon"])
        methods.setdefault(line["method"], {})[epsilon] = line
    return methods


def _settings_tried(results: dict[str, Any]) -> dict[str, set[str]]:
    """For each method the names of its settings."""
    tried: dict[str, set[str]] = {}
    for line in results["summary"]:
        tried.setdefault(line["method"], set()).add(line["name"])
    return tried


def selection_cells(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: for every method with several settings, what choosing would cost; the
    columns are the ε of one run. There are no rows if there was no choice."""
    epsilons = sorted({float(entry["epsilon"]) for entry in results["selection"]})
    rows: dict[str, dict[float, str]] = {}
    for entry in results["selection"]:
        one_of = f"{entry['method']}, {entry['candidates']} settings"
        for key, what in (("publish_best", "the best published"), ("publish_all", "all published")):
            place = rows.setdefault(f"{one_of}: {what}", {})
            place[float(entry["epsilon"])] = epsilon_number(float(entry[key]))
    header = ["ε with the choice", *(f"one run: {epsilon_number(epsilon)}" for epsilon in epsilons)]
    return header, [[name, *(cells[e] for e in epsilons)] for name, cells in rows.items()]


def selection_note(results: dict[str, Any]) -> str:
    """What the prices mean; empty if there was no choice."""
    if not results["selection"]:
        return ""
    validated = any("validation_personal" in line for line in results["summary"])
    return (
        "This comparison is an experiment: it chose between settings by exact "
        f"{'validation' if validated else 'test'} scores, which no ε covers. The last table says "
        "what a private choice would cost. The best published: the number of runs is random and "
        "secret, on average the number of settings; each run has a random setting and a validation "
        "score with noise from the gate; only the run with the best noisy score is shown, also to "
        "clients. All published: every setting is run once, and every model and noisy score may be "
        "shown, as to clients that receive the models while they train. "
        "`pmtl compare --select` makes the first of these choices. Seeds are repetitions, not "
        "candidates. Details are in results.json, under selection."
    )


def comparison_tables(results: dict[str, Any]) -> list[Table]:
    """The comparison for a terminal, and the price of its choices, if any."""
    from rich import box

    return [_table(header, rows, box=box.HEAVY_HEAD) for header, rows in filled_cells(results)]


def comparison_markdown(results: dict[str, Any]) -> str:
    """The same in Markdown, with the note on the choices below."""
    tables = (markdown_table(header, rows) for header, rows in filled_cells(results))
    return "\n\n".join([*tables, *all_notes(results)]) + "\n"


def all_notes(results: dict[str, Any]) -> list[str]:
    """The notes below the tables."""
    notes = (*chosen_notes(results), *run_notes(results), selection_note(results))
    return [note for note in notes if note]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first hold numbers."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def filled_cells(results: dict[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """The tables that have rows."""
    tables = (comparison_cells(results), chosen_cells(results), selection_cells(results))
    return [cells for cells in tables if cells[1]]
