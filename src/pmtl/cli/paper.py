"""`pmtl paper`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pmtl.cli import options as opt
from pmtl.errors import Interrupted
from pmtl.runs.config import TrainConfig

if TYPE_CHECKING:
    from pmtl.experiments.sheet import Sheet


def paper(
    experiment: list[str] = typer.Argument(
        ...,
        help="fig1, fig2, fig3, table1, table3, sweep, fedprox, ppsgd, longer, clusters, or all.",
        metavar="EXPERIMENT…",
    ),
    on: str = typer.Option(
        "synthetic",
        help="femnist, femnist_long (a thousand rounds), femnist_hog (fixed features), celeba, "
        "stackoverflow, tags, synthetic or clusters.",
    ),
    data: str | None = opt.optional(
        "Its file or folder; options after a colon replace the setting's."
    ),
    quick: bool = opt.flag("--quick", "Few clients, rounds and seeds: minutes on two cores."),
    out: str | None = opt.optional(
        "The folder of results (default: runs/paper, or runs/paper-quick)."
    ),
    jobs: int = typer.Option(
        1, help="How many runs are done at once; each process holds the data."
    ),
    device: opt.Device = None,
    as_json: opt.AsJson = False,
) -> None:
    """Reproduce the paper's figures and tables.

    Every training run is stored in the folder, so that a stopped experiment can be continued, and
    experiments share runs. Each writes a table (.md), its numbers (.json) and a plot (.png). ε is
    counted in two ways: as the paper's code does, and correctly.

        pmtl paper fig3 --on synthetic --quick
        pmtl paper all --on femnist --data femnist.npz
    """
    from pmtl.engines.process import resolve_device
    from pmtl.experiments.results import Results
    from pmtl.experiments.run import default_experiments, run_experiments
    from pmtl.experiments.settings import setting_of

    setting = setting_of(on, quick)
    names = default_experiments(on) if "all" in experiment else tuple(experiment)
    device = device or TrainConfig.device
    resolve_device(device)  # A wrong one is refused even if nothing is left to compute.
    folder = Path(out or ("runs/paper-quick" if quick else "runs/paper"))
    results = Results(setting, folder, data, device, jobs, show=not as_json)

    def show(sheet: Sheet) -> None:
        if not as_json:
            typer.echo(sheet.markdown())

    try:
        sheets = run_experiments(names, results, show)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped. Finished runs are kept in {results.out}: the same command continues."
        ) from None
    finally:
        for name, reason in results.failures.items():
            typer.echo(f"  {name} failed: {reason}", err=True)
    if as_json:
        opt.print_json({sheet.name: sheet.rows for sheet in sheets})
    else:
        typer.echo(f"Tables, numbers and plots are in {results.out}.")
