"""`pmtl compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pmtl.algorithms import build_algorithm
from pmtl.cli import options as opt
from pmtl.errors import PmtlError, how_many
from pmtl.experiments.sweep.grid import Grid, parse_axes
from pmtl.privacy.request import DEFAULT_EPSILON
from pmtl.storage import next_numbered, write_text


@opt.with_settings(
    *("algorithm", "epsilon", "noise", "hardened", "metrics", "mode", "seed"),
    *("evaluate_every", "patience", "checkpoint_seconds"),
)
def compare(
    algorithm: list[str] | None = opt.completed(
        None,
        "An algorithm, also package.module:Name; repeatable.",
        "algorithm",
        Grid.algorithms,
    ),
    epsilon: list[float] | None = opt.optional("An ε; repeatable.", Grid.epsilons),
    grid: list[str] | None = opt.optional(
        "A setting and its values, lr=0.1,0.3, or an algorithm's setting and its values, "
        "pmtl:lam=0.1,1; repeatable: all combinations are run."
    ),
    seeds: int | None = opt.optional("How many seeds, counted from --seed.", len(Grid.seeds)),
    seed: int | None = opt.optional("The first seed.", Grid.seeds[0]),
    select: bool = opt.flag(
        "--select", "Choose privately: only the best run is kept, and --epsilon covers the choice."
    ),
    config: opt.Config = None,
    out: str | None = opt.optional("A new folder; runs/compare-N unless given."),
    jobs: int = typer.Option(1, help="How many runs are made at once."),
    as_json: opt.AsJson = False,
    **settings: Any,
) -> None:
    """Compare algorithms and settings at several ε; writes a table, CSV, JSON and a plot.

    Every combination is run with several seeds. If a method has several settings, validation rows
    choose one at each ε, by the same rule for every method, and test rows report. It also says what
    such a choice would cost.

        pmtl compare --data visits.csv --algorithm pmtl --algorithm fedavg --epsilon 1 --epsilon 4

        pmtl compare --data visits.csv --grid lr=0.1,0.3 --grid pmtl:lam=0.03,0.3 --epsilon 2

    With --select the choice itself is private: a random number of runs is made, and only the run
    with the best noisy score is kept.

        pmtl compare --data visits.csv --algorithm pmtl --grid lr=0.1,0.3 --epsilon 2 --select
    """
    axes = parse_axes(grid or [])
    listed = _listed(
        axes, {"algorithm": algorithm, "epsilon": epsilon, "seed": seeds if seed is None else seed}
    )
    if twice := [name for name in axes if settings.get(name) is not None]:
        name = twice[0]
        raise PmtlError(
            f"{name} is given by --{name.replace('_', '-')} and by --grid: keep one of them."
        )
    base = opt.make_config(config, settings)
    first = (base.seed or 0) if seed is None else seed
    count = (1 if select else len(Grid.seeds)) if seeds is None else seeds
    chosen: dict[str, Any] = {"seeds": tuple(range(first, first + count))}
    if algorithm or config:  # A configuration names its algorithm.
        chosen["algorithms"] = tuple(algorithm or [base.algorithm])
    elif select:  # `local` shares nothing, so each client can choose it without any cost.
        sharing = (name for name in Grid.algorithms if build_algorithm(name).shares)
        chosen["algorithms"] = tuple(sharing)
    if epsilon or select:
        chosen["epsilons"] = tuple(epsilon or [DEFAULT_EPSILON])
    made = Grid(base=base, axes=axes, **(chosen | listed))
    folder = Path(out) if out else next_numbered(Path("runs/compare"))
    if select:
        from pmtl.experiments.sweep.choice import select as choose

        if jobs != 1:
            raise PmtlError("A private choice makes one run after the other: leave out --jobs.")
        finish_choice(choose(made, folder, progress=True), folder, as_json)
        return
    from pmtl.experiments.compare import compare as run_comparison

    finish(run_comparison(made, folder, jobs=jobs, progress=True), folder, as_json)


def _listed(axes: dict[str, tuple[str, ...]], given: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The axes that are lists of a grid (algorithms, epsilons, seeds), taken out of `axes`."""
    listed: dict[str, tuple[Any, ...]] = {}
    for name, kind in (("algorithm", str), ("epsilon", float), ("seed", int)):
        values = axes.pop(name, None)
        if values is None:
            continue
        if given[name] is not None:
            raise PmtlError(f"{name} is given by an option and by --grid: keep one of them.")
        try:
            listed[f"{name}s"] = tuple(kind(value) for value in values)
        except ValueError as error:
            wanted = "whole numbers" if kind is int else "numbers"
            raise PmtlError(
                f"The grid has {name}={','.join(values)}, but its values must be {wanted}."
            ) from error
    return listed


def finish(results: Any, folder: Path, as_json: bool) -> None:
    """Write the table and the plot, and show them."""
    from pmtl.report.plots import plot_comparison
    from pmtl.report.tables import comparison_markdown

    write_text(folder / "table.md", comparison_markdown(results))
    plot = folder / "comparison.png"
    about_plot = f"Plot: {plot}"
    try:
        plot_comparison(results, plot)
    except PmtlError as error:
        about_plot = f"No plot: {error}"
    if as_json:
        opt.print_json({"folder": str(folder), **results})
    else:
        _show(results, folder, about_plot)
    wrong = [row["run"] for row in results["runs"] if row.get("not_finite") or "error" in row]
    if len(wrong) == len(results["runs"]):
        raise PmtlError(
            f"Training diverged in {len(wrong)} of {len(results['runs'])} runs ("
            f"{', '.join(wrong[:3])}{', …' * (len(wrong) > 3)}): their models are not finite, and "
            "their scores mean nothing. Scale the features to about 1 (--scale client), or use a "
            "smaller step (--lr) or a smaller λ."
        )
    if wrong:
        opt.warn(f"{len(wrong)} of {len(results['runs'])} runs failed or diverged; see above.")


def _show(results: dict[str, Any], folder: Path, about_plot: str) -> None:
    from pmtl.report.tables import all_notes, comparison_tables

    console = opt.console()
    several = max(entry["seeds"] for entry in results["summary"]) > 1
    over = "mean ± standard deviation over seeds" if several else "one seed"
    for table in comparison_tables(results):
        console.print(table)
    console.print(
        f"{how_many(results['clients'], 'client')}; {over}; ε holds for each "
        "single run. Choosing between runs on these clients' data would cost more.",
        soft_wrap=True,
    )
    # Paths are not wrapped, and their brackets are not markup.
    where, verdict = f"Table, numbers and all runs: {folder}", results["verdict"]["sentence"]
    lines = (*all_notes(results), about_plot, where, verdict)
    console.print(*lines, sep="\n", soft_wrap=True, markup=False)


def finish_choice(results: dict[str, Any], folder: Path, as_json: bool) -> None:
    """Show what was chosen, and what the choice cost."""
    if as_json:
        opt.print_json({"folder": str(folder), **results})
        return
    count, chosen = len(results["candidates"]), results["chosen"]
    if chosen is None:
        found = (
            "No run was drawn, so nothing was chosen, and nothing is published. The ε below is "
            "spent nevertheless: drawing again with another seed costs it again."
        )
    else:
        found = (
            f"Chosen among {count} settings: {chosen}, with a validation score of "
            f"{results['score']:.3f} ± {results['score_noise']:.3f} (the noise; 1 is best)."
        )
    cost = (
        f"ε = {results['epsilon']:.4g} at δ = {results['delta']:.3g} covers the run and the "
        f"choice; each run was trained at ε = {results['one_run']:.4g}."
    )
    where = f"The run: {folder / results['run']}" if results["run"] else f"Everything: {folder}"
    lines = (found, cost, results["protocol"], where)
    opt.console().print(*lines, sep="\n", soft_wrap=True, markup=False)
