"""`pmtl train` and `pmtl resume`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmtl.cli import options as opt
from pmtl.errors import PmtlError

if TYPE_CHECKING:
    from pmtl.runs.result import Run


def train(
    context: typer.Context,
    config: opt.Config = None,
    data: opt.Data = None,
    client_column: opt.ClientColumn = None,
    target: opt.Target = None,
    scale: opt.Scale = None,
    model: opt.Model = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="pmtl[:lam=0.1], fedavg, fedprox[:mu=0.1], local, ditto[:lam=0.1], "
            "ppsgd[:alpha=1], clustered:clusters=FILE (JSON or CSV, client to cluster), "
            "related:omega=FILE (.npy, or CSV with names), naive_joint."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="ε for the whole run (default 2); inf for no privacy.", rich_help_panel=opt.PRIVACY
        ),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            help="σ, the noise's standard deviation on the average; instead of --epsilon.",
            rich_help_panel=opt.PRIVACY,
        ),
    ] = None,
    delta: opt.Delta = None,
    clip: opt.Clip = None,
    sampling: opt.Sampling = None,
    cohort: opt.Cohort = None,
    rounds: opt.Rounds = None,
    hardened: opt.Hardened = None,
    metrics: opt.Metrics = None,
    loss_bound: opt.LossBound = None,
    steps: opt.Steps = None,
    epochs: opt.Epochs = None,
    batch: opt.Batch = None,
    lr: opt.Lr = None,
    halve_every: opt.HalveEvery = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="experiment (seeded, repeatable) or production (the operating system's "
            "randomness, every release charged, only average metrics with noise)."
        ),
    ] = None,
    ledger: opt.Ledger = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same bits.")] = None,
    device: opt.Device = None,
    engine: opt.Engine = None,
    compile: opt.Compile = None,
    evaluate_every: opt.EvaluateEvery = None,
    patience: opt.Patience = None,
    checkpoint_seconds: Annotated[
        float | None, typer.Option(help="Seconds between checkpoints (default 10).")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="The run's folder; runs/ALGORITHM-N unless given.")
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Train one private, personal model per client.

    Without any options this trains on an embedded federation. On data of your own:

        pmtl train --data visits.csv --client-column hospital --target outcome --epsilon 2

    In several processes, on one machine or many:

        torchrun --nproc-per-node 4 -m pmtl train --data visits.npz

    All of them must belong to one owner and read the same data: this is not a federation between
    organisations.
    """
    settings = opt.make_config(context.params)
    from pmtl.runs.training import start
    from pmtl.simulation import join_team

    with join_team() as team:
        run = start(
            settings,
            out=out or free_folder(settings.algorithm.partition(":")[0]),
            progress=True,
            warn=lambda sentence: typer.secho(f"warning: {sentence}", fg="yellow", err=True),
            team=team,
        )
        if team.leader:
            report(run, as_json)


def resume(
    path: Annotated[str, typer.Argument(help="The folder of a run or of a comparison.")],
    as_json: opt.AsJson = False,
) -> None:
    """Continue a run that was stopped.

    An experiment goes on to the same bits as if it had not been stopped. A production run goes on
    with fresh noise, and rounds that were lost count against its plan.
    """
    from pmtl.experiments.compare import PLAN_FILE

    if (Path(path) / PLAN_FILE).exists():
        from pmtl.cli.compare import finish
        from pmtl.experiments.compare import resume_comparison

        finish(resume_comparison(path, progress=True), Path(path), as_json)
        return
    from pmtl.runs.training import resume as resume_run
    from pmtl.simulation import join_team

    with join_team() as team:
        run = resume_run(path, progress=True, team=team)
        if team.leader:
            report(run, as_json)


def report(run: Run, as_json: bool) -> None:
    """Say what came of a run; models that are not finite are an error, after all was said."""
    _show(run, as_json)
    if run.not_finite is not None:
        raise PmtlError(run.not_finite)


def _show(run: Run, as_json: bool) -> None:
    scores = {} if run.facts["mode"] == "production" else run.evaluate()
    released = run.released()
    if as_json:
        summary: dict[str, Any] = {
            "run": str(run.path),
            "epsilon": run.privacy.epsilon,
            "delta": run.privacy.delta,
            "adjacency": run.privacy.adjacency,
            "stopped": run.facts.get("stopped"),
            "not_finite": run.not_finite,
            "released": released,
            "memory": run.facts.get("memory"),
            **scores,
        }
        opt.print_json(summary)
        return
    from pmtl.report.tables import metrics_table, released_table

    console = opt.console()
    if scores:
        console.print(metrics_table(scores))
        console.print()
    if released:
        console.print(released_table(released))
        console.print()
    if stopped := run.facts.get("stopped"):
        console.print(f"Stopped early. {stopped}", soft_wrap=True, markup=False)
    headline = str(run.privacy).split("\n\n")[1].replace("\n", " ")
    place, client = shlex.quote(str(run.path)), shlex.quote(run.clients[0])
    told = (
        headline,
        *_memory(run.facts),
        *_where(run),
        f"Next: pmtl predict {place} --client {client} --data FILE --out FILE",
    )
    # Names are shown as they are: a client's may look like markup.
    console.print(*told, sep="\n", soft_wrap=True, markup=False)


def _where(run: Run) -> list[str]:
    """Where the files are and, in production, which of them may be handed out."""
    from pmtl.runs.folder import RunFolder

    folder = RunFolder(str(run.path))
    if not folder.divided:
        return [f"Everything is in {run.path}; the whole statement in {folder.statement_file}."]
    return [
        f"May be handed out: {folder.public} (the shared model, the plan, the released metrics, "
        f"and the whole statement in {folder.statement_file.name}).",
        f"May not: {folder.private}. Only you can open it. Give each client its own model and "
        f"nobody else's. {folder.notes_file.name} tells you alone of rows that were left out and "
        "of clients that could not be trained.",
    ]


def _memory(facts: dict[str, Any]) -> list[str]:
    """What an experiment took of the machine, in a sentence."""
    if "memory" not in facts:
        return []
    peak, owned = facts["memory"]["peak_resident_bytes"], facts["memory"]["owned"]
    sentence = f"It took {peak / 2**20:,.0f} MiB of memory at most"
    if owned["bytes"]:
        sentence += (
            f"; the vectors of {owned['clients']:,} clients ({owned['bytes'] / 2**20:,.1f} MiB) "
            + ("were kept in memory" if owned["in"] == "memory" else "were kept on disk")
        )
    return [sentence + "."]


def free_folder(name: str) -> str:
    """The first of runs/NAME-1, runs/NAME-2, … that does not exist."""
    number = 1
    while Path(f"runs/{name}-{number}").exists():
        number += 1
    return f"runs/{name}-{number}"
