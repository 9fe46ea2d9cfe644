"""`pmtl finetune`."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pmtl.cli import options as opt
from pmtl.client.batches import LocalTraining
from pmtl.errors import Interrupted, PmtlError
from pmtl.options import rounds_only
from pmtl.personalize.settings import FinetuneSettings

if TYPE_CHECKING:
    from pmtl.personalize.result import Finetuned
    from pmtl.runs.result import Run

#: All four methods, one after the other.
ALL = "all"


@opt.with_settings(*rounds_only(LocalTraining), kind=FinetuneSettings)
def finetune(
    path: str = opt.completed_argument("The folder of a finished run.", "RUN", "run"),
    name: str | None = opt.optional(
        "The result is in RUN/finetuned/NAME, of a production run in "
        "RUN/private/finetuned/NAME (default: METHOD-START; with all, NAME-METHOD)."
    ),
    out: str | None = opt.optional("Another folder; instead of --name."),
    as_json: opt.AsJson = False,
    **settings: Any,
) -> None:
    """Let every client of a finished run train its model further; it costs no privacy.

    A client minimises, where w̃ is the published model,

        vanilla  its own loss
        mean     its loss + λ/2 · ‖w − w̃‖²
        kl       its loss + λ · the symmetrised divergence of both models' answers
        ewc      its loss + λ/2 · Σ F (w − w̃)², F the Fisher information of w̃

    With select, it tries all of these, the models of the run, and training alone (up to 25 times
    the steps), and keeps the best by its validation rows.
    The result is a folder that `pmtl evaluate` and `pmtl predict` read like a run's.

        pmtl finetune runs/clinics-1 --method select
    """
    from pmtl.personalize.finetuning import finetune as tune
    from pmtl.personalize.finetuning import folder_of
    from pmtl.personalize.methods import METHODS, SELECT, build_method
    from pmtl.personalize.result import refuse_existing
    from pmtl.runs.result import load_run
    from pmtl.spec import unknown
    from pmtl.storage import is_free

    settings = opt.given(settings)
    method = settings.pop("method", FinetuneSettings.method)
    start, lam = settings.get("start"), settings.pop("lam", None)
    if name is not None and out is not None:
        raise PmtlError("Both --name and --out were given: give one of them.")
    if method == ALL and out:
        raise PmtlError("--method all writes a folder for each method: use --name, not --out.")
    if method not in (*METHODS, SELECT, ALL):
        raise unknown("method of fine-tuning", method, [*METHODS, SELECT, ALL])
    run = load_run(path)
    methods = list(METHODS) if method == ALL else [method]
    tasks: list[tuple[str, float | None, Path]] = []
    for one in methods:
        # Everything is checked before the first method runs.
        strength = None if method == ALL and one == "vanilla" else lam
        if one in METHODS:
            build_method(one, strength)
        called = f"{name}-{one}" if name and method == ALL else name
        folder = folder_of(run, one, start, called) if out is None else Path(out)
        tasks.append((one, strength, folder))
    missing = [task for task in tasks if is_free(task[2])]
    if not missing:
        refuse_existing(tasks[0][2])
    for one, _, folder in (task for task in tasks if task not in missing):
        opt.warn(f"{folder} exists already and is kept as it is: {one} is not done again.")
    done: list[Finetuned] = []
    try:
        for one, strength, folder in missing:
            done.append(tune(run, one, lam=strength, out=folder, progress=True, **settings))
    except KeyboardInterrupt:
        kept = ", ".join(str(tuned.path) for tuned in done) or "nothing"
        raise Interrupted(f"Stopped before the end. Finished and kept: {kept}.") from None
    report(run, done, as_json)


def report(run: Run, done: list[Finetuned], as_json: bool) -> None:
    """Print the metrics before and after, what clients chose, and whether that was better."""
    from pmtl.personalize.methods import SELECT
    from pmtl.report.run_verdict import verdict

    production = run.facts.production
    scores = {} if production else _scores(done)
    chosen = {} if production or done[0].about.picks is None else done[0].chosen
    statement = done[0].privacy
    judged = verdict(done[0]) if done[0].about.method == SELECT else None
    if as_json:
        summary: dict[str, Any] = {"finetuned": [str(tuned.path) for tuned in done]}
        summary |= {"epsilon": statement.epsilon, "delta": statement.delta, **scores}
        summary |= {"chosen": chosen} if chosen else {}
        opt.print_json(summary | ({"verdict": judged.to_dict()} if judged else {}))
        return
    from pmtl.report.tables import counts_table, metrics_table

    console = opt.console()
    if scores:
        console.print(metrics_table(scores), "")
    if chosen:
        console.print(counts_table("chosen by clients", chosen), "")
    lines = [f"{statement.afterwards}", *(f"It is in {tuned.path}." for tuned in done)]
    measured = [entry for views in scores.values() for entry in (views or {}).items()]
    lost = dict.fromkeys(name for name, score in measured if not isfinite(score.get("loss", 0.0)))
    if lost:
        lines.append(
            f"Careful: {', '.join(lost)} diverged for some or all clients, whose models are "
            "useless. Use a smaller --lr or --lam."
        )
    lines += [judged.sentence] if judged else []
    console.print(*lines, sep="\n", soft_wrap=True, markup=False)


def _scores(done: list[Finetuned]) -> dict[str, Any]:
    """Metrics before (shared, personal) and after (by the name of each result)."""
    scores: dict[str, Any] = {}
    for tuned in done:
        method, start = tuned.about.method, tuned.about.start
        name = method if start is None else f"{method}-{start}"
        for split, views in tuned.evaluate().items():
            if views is None:
                scores[split] = None
                continue
            before = {view: views[view] for view in ("shared", "personal") if view in views}
            scores[split] = before | scores.get(split, {}) | {name: views["finetuned"]}
    return scores
