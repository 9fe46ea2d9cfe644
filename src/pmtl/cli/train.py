"""`pmtl train` and `pmtl resume`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmtl.cli import options as opt
from pmtl.cli.shell.completion import completer
from pmtl.errors import PmtlError, how_many
from pmtl.storage import next_numbered

if TYPE_CHECKING:
    from pmtl.runs.result import Run


Callbacks = Annotated[
    list[str] | None,
    typer.Option(
        help="tensorboard, mlflow (with options: mlflow:uri=FOLDER) or a pmtl.Callback of your "
        "own, package.module:Name; may be given several times.",
        autocompletion=completer("callback", ("tensorboard", "mlflow")),
    ),
]


@opt.with_settings()
def train(
    config: opt.Config = None,
    out: str | None = opt.optional("The run's folder (default runs/ALGORITHM-N)."),
    callback: Callbacks = None,
    as_json: opt.AsJson = False,
    **settings: Any,
) -> None:
    """Train one private, personal model per client.

    Without options this trains on a synthetic federation. On data of your own:

        pmtl train --data visits.csv --client-column hospital --target outcome --epsilon 2

    In several processes, on one machine or many:

        torchrun --nproc-per-node 4 -m pmtl train --data visits.npz

    All processes must belong to one owner and read the same data: this is not a federation between
    organisations.
    """
    asked = opt.make_config(config, settings)
    name = asked.algorithm.partition(":")[0]
    from pmtl.runs.training import start
    from pmtl.simulation import join_team

    with join_team() as team:
        run = start(
            asked,
            out=out or next_numbered(Path("runs") / ("run" if name == "auto" else name)),
            callbacks=callback or (),
            progress=True,
            warn=opt.warn,
            team=team,
        )
        if team.leader:
            report(run, as_json)


def resume(
    path: str = opt.completed_argument("The folder of a run or of a comparison.", "RUN", "run"),
    callback: Callbacks = None,
    as_json: opt.AsJson = False,
) -> None:
    """Continue a run that was stopped.

    An experiment gives the same bits as if it had not been stopped. A production run continues with
    fresh noise, and rounds that were lost count as rounds of its plan.

        pmtl resume runs/clinics-1
    """
    if _resume_comparison(Path(path), callback or (), as_json):
        return
    from pmtl.runs.training import resume as resume_run
    from pmtl.simulation import join_team

    with join_team() as team:
        run = resume_run(path, callbacks=callback or (), progress=True, team=team)
        if team.leader:
            report(run, as_json)


def _resume_comparison(path: Path, callbacks: Sequence[str], as_json: bool) -> bool:
    """Continue a comparison or a private choice; returns whether the folder is one."""
    from pmtl.experiments.compare import PLAN_FILE
    from pmtl.experiments.sweep import choice

    chosen = (path / choice.PLAN_FILE).exists()
    if not chosen and not (path / PLAN_FILE).exists():
        return False
    if callbacks:
        raise PmtlError("A comparison has many runs and takes no callbacks: leave out --callback.")
    from pmtl.cli.compare import finish, finish_choice
    from pmtl.experiments.compare import resume_comparison

    if chosen:
        finish_choice(choice.resume_selection(path, progress=True), path, as_json)
    else:
        finish(resume_comparison(path, progress=True), path, as_json)
    return True


def report(run: Run, as_json: bool) -> None:
    """Print the result of a run; infinite or NaN weights are an error after that."""
    from pmtl.report.curve import draw_curve
    from pmtl.report.run_verdict import verdict

    scores = {} if run.facts.production else run.evaluate()
    judged = verdict(run)
    try:
        curve = draw_curve(run)
    except PmtlError as error:  # The run is complete; only its picture is missing.
        curve = None
        opt.warn(f"There is no picture of the learning curve: {error}")
    if as_json:
        opt.print_json(
            {
                "run": str(run.path),
                "epsilon": run.privacy.epsilon,
                "delta": run.privacy.delta,
                "adjacency": run.privacy.adjacency,
                "stopped": run.facts.stopped,
                "not_finite": run.not_finite,
                "released": run.released(),
                "memory": run.facts.memory,
                "verdict": judged.to_dict(),
                "curve": None if curve is None else str(curve),
                **scores,
            }
        )
    else:
        _print(run, scores, judged.sentence)
    if run.not_finite is not None:
        raise PmtlError(run.not_finite)


def _print(run: Run, scores: dict[str, Any], verdict: str) -> None:
    from pmtl.report.tables import metrics_table, released_table

    console = opt.console()
    if scores:
        console.print(metrics_table(scores), "")
    if released := run.released():
        console.print(released_table(released), "")
    if stopped := run.facts.stopped:
        console.print(f"Stopped early. {stopped}", soft_wrap=True, markup=False)
    headline = str(run.privacy).split("\n\n")[1].replace("\n", " ")
    place, client = shlex.quote(str(run.path)), shlex.quote(run.clients[0])
    next_step = f"Next: pmtl predict {place} --client {client} --data FILE --out FILE"
    sentences = (headline, *_memory(run.facts.memory), *_where(run), next_step, verdict)
    # A client's name may look like markup, and is printed as it is.
    console.print(*sentences, sep="\n", soft_wrap=True, markup=False)


def _where(run: Run) -> list[str]:
    """Sentences on where the files are and, in production, which of them are public."""
    from pmtl.runs.folder import RunFolder

    folder = RunFolder(str(run.path))
    if not folder.divided:
        return [f"Everything is in {run.path}; the whole statement in {folder.statement_file}."]
    return [
        f"Public: {folder.public} (the shared model, the plan, the released metrics, and the whole "
        f"statement in {folder.statement_file.name}).",
        f"Private: {folder.private}. Only you can open it. Give each client only its own model. "
        f"{folder.notes_file.name} lists, for you only, rows that were left out and "
        "clients that could not be trained.",
    ]


def _memory(memory: dict[str, Any] | None) -> list[str]:
    if memory is None:
        return []
    peak, owned = memory["peak_resident_bytes"], memory["owned"]
    sentence = f"It used at most {peak / 2**20:,.0f} MiB of memory"
    if owned["bytes"]:
        sentence += (
            f"; the vectors of {how_many(owned['clients'], 'client')} "
            f"({owned['bytes'] / 2**20:,.1f} MiB) were kept "
            f"{'in memory' if owned['in'] == 'memory' else 'on disk'}"
        )
    return [sentence + "."]
