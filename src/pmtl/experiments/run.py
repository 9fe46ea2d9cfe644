"""Which experiments there are, and running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from pmtl.experiments.result_cache import ResultCache
from pmtl.experiments.tables import Sheet
from pmtl.report.paper import plot_sheet
from pmtl.spec import unknown

#: In the order in which `all` runs them; each is a module of this package with a function `run`.
EXPERIMENTS = ("fig1", "fig2", "fig3", "table1", "table3", "sweep", "fedprox", "ppsgd", "clusters")


def run_experiments(
    names: Sequence[str], lab: ResultCache, show: Callable[[Sheet], None] = lambda sheet: None
) -> list[Sheet]:
    """Run these experiments; each writes a table, its numbers and a plot when it is done.

    All of them say what they need, that is computed, and so on until none needs any more.
    """
    for name in names:
        if name not in EXPERIMENTS:
            raise unknown("experiment", name, (*EXPERIMENTS, "all"))
    lab.data  # noqa: B018  Data that cannot be read is no run's failure.
    sheets: dict[str, Sheet] = {}
    while len(sheets) < len(set(names)):
        for name in names:
            if name in sheets or (sheet := _complete(name, lab)) is None:
                continue
            sheets[name] = sheet
            sheet.save(lab)
            plot_sheet(sheet.name, sheet.caption, sheet.rows, lab.out / f"{sheet.name}.png")
            show(sheet)
        if lab.missing:
            lab.fill()
    return [sheets[name] for name in dict.fromkeys(names)]


def _complete(name: str, lab: ResultCache) -> Sheet | None:
    """The experiment's sheet, unless something is missing for it."""
    others, lab.missing = lab.missing, {}
    sheet: Sheet = import_module(f"pmtl.experiments.{name}").run(lab)
    complete = not lab.missing
    lab.missing = others | lab.missing
    return sheet if complete else None


def default_experiments(setting: str) -> tuple[str, ...]:
    """What `all` means on a data set: the clusters are those of one federation only."""
    if setting == "clusters":
        return ("clusters",)
    return tuple(name for name in EXPERIMENTS if name != "clusters")


def default_out(quick: bool) -> Path:
    """Where results go unless told."""
    return Path("runs") / ("paper-quick" if quick else "paper")
