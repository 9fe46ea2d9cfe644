"""The list of experiments, and running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pmtl.experiments import figures
from pmtl.experiments.clusters import clusters
from pmtl.experiments.results import Results
from pmtl.experiments.sheet import Sheet
from pmtl.report.plots import plot_sheet
from pmtl.spec import unknown

#: In the order in which `all` runs them.
EXPERIMENTS: dict[str, Callable[[Results], Sheet]] = {
    experiment.__name__: experiment
    for experiment in (
        *(figures.fig1, figures.fig2, figures.fig3, figures.table1, figures.table3, figures.sweep),
        *(figures.fedprox, figures.ppsgd, figures.longer, clusters),
    )
}


def run_experiments(
    names: Sequence[str], results: Results, show: Callable[[Sheet], None] = lambda sheet: None
) -> list[Sheet]:
    """Run these experiments; each writes a table, its numbers and a plot when it is done.

    All experiments are tried, what they miss is computed, and so on until nothing is missing.
    """
    for name in names:
        if name not in EXPERIMENTS:
            raise unknown("experiment", name, (*EXPERIMENTS, "all"))
    results.data  # noqa: B018  Data that cannot be read is refused before the first run.
    sheets: dict[str, Sheet] = {}
    while len(sheets) < len(set(names)):
        for name in names:
            if name in sheets or (sheet := _complete(name, results)) is None:
                continue
            sheets[name] = sheet
            sheet.save(results.out, results.data.m)
            plot_sheet(sheet.name, sheet.caption, sheet.rows, results.out / f"{sheet.name}.png")
            show(sheet)
        results.fill()
    return [sheets[name] for name in dict.fromkeys(names)]


def _complete(name: str, results: Results) -> Sheet | None:
    """The experiment's sheet, or None if a result is missing."""
    others, results.missing = results.missing, {}
    sheet = EXPERIMENTS[name](results)
    complete = not results.missing
    results.missing = others | results.missing
    return sheet if complete else None


def default_experiments(setting: str) -> tuple[str, ...]:
    """What `all` means on a data set: only the setting `clusters` has clusters."""
    if setting == "clusters":
        return ("clusters",)
    return tuple(name for name in EXPERIMENTS if name != "clusters")
