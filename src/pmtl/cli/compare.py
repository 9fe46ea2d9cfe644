"""`pmtl compare`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pmtl.cli import options as opt
from pmtl.cli.shell.completion import completer
from pmtl.errors import PmtlError


@opt.with_settings(
    *("algorithm", "epsilon", "noise", "hardened", "metrics", "loss_bound", "mode", "seed"),
    *("evaluate_every", "patience", "checkpoint_seconds"),
)
def compare(
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            help="An algorithm; repeatable (default: pmtl, fedavg, local).",
            autocompletion=completer("algorithm"),
        ),
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="An ε; repeatable (default: 0.5, 2, 8).")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, counted from --seed.")] = 3,
    seed: Annotated[int | None, typer.Option(help="The first seed (default 0).")] = None,
    config: opt.Config = None,
    out: Annotated[
        str | None, typer.Option(help="A new folder; runs/compare-N unless given.")
    ] = None,
    as_json: opt.AsJson = False,
    **settings: Any,
) -> None:
    """Run several algorithms at several ε with several seeds; writes a table, JSON and a plot.

    If an algorithm is given with several settings (pmtl:lam=0.1, pmtl:lam=0.3), validation rows
    choose among them and test rows report. It also says what such a choice would cost.

        pmtl compare --data visits.csv --algorithm pmtl --algorithm fedavg --epsilon 1 --epsilon 4
    """
    base = opt.make_config(config, settings)
    from pmtl.cli.train import free_folder
    from pmtl.experiments.compare import Grid
    from pmtl.experiments.compare import compare as run_comparison

    first = (base.seed or 0) if seed is None else seed
    grid = Grid(base=base, seeds=tuple(range(first, first + seeds)))
    if algorithm or config:  # A configuration names its algorithm.
        grid = replace(grid, algorithms=tuple(algorithm or [base.algorithm]))
    if epsilon:
        grid = replace(grid, epsilons=tuple(epsilon))
    folder = Path(out or free_folder("compare"))
    finish(run_comparison(grid, folder, progress=True), folder, as_json)


def finish(results: dict[str, Any], folder: Path, as_json: bool) -> None:
    """Write the table and the plot, and show them."""
    from pmtl import storage as files
    from pmtl.report.plots import plot_comparison
    from pmtl.report.tables import comparison_markdown

    files.write_text(folder / "table.md", comparison_markdown(results))
    plot = folder / "comparison.png"
    about_plot = f"Plot: {plot}"
    try:
        with files.disk_errors(plot):
            plot_comparison(results, plot)
    except PmtlError as error:
        about_plot = f"No plot: {error}"
    if as_json:
        opt.print_json({"folder": str(folder), **results})
    else:
        _show(results, folder, about_plot)
    if wrong := [row["run"] for row in results["runs"] if row.get("not_finite")]:
        raise PmtlError(
            f"Training diverged in {len(wrong)} of {len(results['runs'])} runs ("
            f"{', '.join(wrong[:3])}{', …' * (len(wrong) > 3)}): their models are not finite, and "
            "their scores mean nothing. Scale the features to about 1 (--scale client), or use a "
            "smaller step (--lr) or a smaller λ."
        )


def _show(results: dict[str, Any], folder: Path, about_plot: str) -> None:
    from pmtl.report.tables import comparison_tables, selection_note

    console = opt.console()
    for table in comparison_tables(results):
        console.print(table)
    console.print(
        f"{results['clients']} clients; mean ± standard deviation over seeds; ε holds for each "
        "single run. Choosing between runs on these clients' data would cost more.",
        soft_wrap=True,
    )
    if note := selection_note(results):
        console.print(note, soft_wrap=True)
    # Paths are not wrapped, and their brackets are not markup.
    verdict = results["verdict"]["sentence"]
    lines = (about_plot, f"Table, numbers and all runs: {folder}", verdict)
    console.print(*lines, sep="\n", soft_wrap=True, markup=False)
