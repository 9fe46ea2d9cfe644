"""The utility suite: every method on every federation, at several ε.

    make utility                                             # everything, then the page
    python benchmarks/utility/run.py --only wage flights     # some federations
    python benchmarks/utility/run.py --methods ours          # one method; the others stay
    python benchmarks/utility/run.py --quick --out FOLDER    # one seed, two ε
    python benchmarks/utility/page.py                        # docs/utility.md from the results

One JSON file for each federation. No setting of ours is chosen by looking at any row; those of the
rivals are chosen on validation rows (contenders.py), the penalties of the baselines on training
rows (baselines.py). Test rows are only scored, with one exception, which makes training alone
stronger: `OWN` in baselines.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from baselines import all_baselines, problem
from contenders import OURS, RIVALS, Rival
from federation import MANY
from federations import LOADERS, SLOW, Absent, Federation, load
from many_classes import many_class_baselines
from scores import Sums, share

RESULTS = Path(__file__).resolve().parents[1] / "results" / "utility"
#: Each client's losses, so that one method can be run again without the others; not checked in.
KEPT = Path(__file__).resolve().parents[2] / "runs" / "utility"
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0)
#: The rivals' choice of settings takes long, and at a smaller ε they are lost in noise.
LEAST_OF_RIVALS = 0.5
SEEDS = (0, 1, 2)
METHODS = (*RIVALS, "ours")


def measure(
    federation: Federation,
    methods: tuple[str, ...],
    epsilons: tuple[float, ...],
    seeds: tuple[int, ...],
    say: Any,
    kept: dict[str, Sums],
    before: dict[str, Any],
) -> dict[str, Any]:
    """All scores of one federation.

    Args:
        federation: the federation.
        methods: the private methods that are run.
        epsilons, seeds: at which ε, and for which splits and noise.
        say: called with what is going on.
        kept: each client's losses from before, by method and ε; new ones are added.
        before: the results of other methods, and the baselines beside which they were found.
    """
    task, m, many = federation.task, federation.m, federation.outputs > MANY
    tests = {seed: federation.test_rows(seed) for seed in seeds}

    def add(sums: Sums, answers: Any, seed: int) -> None:
        rows = tests[seed]
        sums.add(answers, federation.y[rows], federation.client[rows], task, many)

    baselines: dict[str, Sums] = {}
    penalties: list[Any] = []
    for seed in seeds:
        say(f"baselines, seed {seed}")
        f = federation
        if many:
            found, chosen = many_class_baselines(f, tests[seed], seed)
        else:
            given = problem(f.x, f.y, f.client, m, task, f.outputs, tests[seed], seed)
            found, chosen = all_baselines(given)
        penalties.append(chosen)
        for name, answers in found.items():
            add(baselines.setdefault(name, Sums.nothing(m)), answers, seed)

    private: dict[str, Any] = {}
    for method in methods:
        # The rivals' settings are chosen at ε = 1, and partly again at every other.
        at_one: dict[str, float] = {}
        if method != "ours":
            say(f"{method}: settings")
            at_one = Rival(method, federation).choose(1.0)
        for epsilon in epsilons:
            if method != "ours" and epsilon < LEAST_OF_RIVALS:
                continue
            began = time.perf_counter()
            sums, scores, settings = Sums.nothing(m), [], dict(at_one)
            if method != "ours" and epsilon != 1:
                say(f"{method}, ε = {epsilon:g}: settings")
                settings = Rival(method, federation).choose(epsilon, at_one)
            for seed in seeds:
                say(f"{method}, ε = {epsilon:g}, seed {seed}")
                if method == "ours":
                    answers = OURS(federation, epsilon, seed)
                else:
                    answers = Rival(method, federation).answer(epsilon, seed, settings)
                one = Sums.nothing(m)
                add(one, answers, seed)
                sums.include(one)
                scores.append(one.score(task))
            line = {"scores": scores, "seconds": time.perf_counter() - began}
            line |= {"settings": settings} if settings else {}
            private.setdefault(method, {})[f"{epsilon:g}"] = line
            kept[f"{method} {epsilon:g}"] = sums
    measured = {name: summary(sums, baselines, task) for name, sums in baselines.items()}
    same = tidy(measured) == before.get("baselines")
    for method, lines in before.get("private", {}).items():
        # Results of before stand if the baselines do, or if they can be set beside the new ones.
        if same or all(f"{method} {epsilon}" in kept for epsilon in lines):
            private[method] = lines
        else:
            say(f"{method} is left out: the baselines changed, and its losses were not kept here")
    for method, lines in private.items():
        for epsilon, line in lines.items():
            if f"{method} {epsilon}" in kept:
                line |= summary(kept[f"{method} {epsilon}"], baselines, task)
    return {
        "name": federation.name,
        "about": federation.about,
        "task": task,
        "clients": m,
        "rows": len(federation.client),
        "training_rows": float(np.median(np.bincount(federation.client[~tests[seeds[0]]]))),
        "columns": int(federation.x.shape[1]),
        "outputs": federation.outputs,
        "score": "rmse" if task == "regression" else "error rate" if many else "log loss",
        "seeds": list(seeds),
        "baselines": measured,
        "penalties": penalties,
        "private": private,
    }


def summary(sums: Sums, baselines: dict[str, Sums], task: str) -> dict[str, Any]:
    """The score of a method, and how it compares with training alone and with the ceiling."""
    alone, tuned, ceiling = (baselines[name] for name in ("alone", "alone_tuned", "ceiling"))
    score, top = sums.score(task), ceiling.score(task)
    difference, error = sums.beside(alone, task)
    to_tuned, error_tuned = sums.beside(tuned, task)
    line: dict[str, Any] = {
        "score": score,
        "difference": difference,
        "error": error,
        "share": share(score, alone.score(task), top),
        "difference_tuned": to_tuned,
        "error_tuned": error_tuned,
        "share_tuned": share(score, tuned.score(task), top),
    }
    if task != "regression":
        line["accuracy"] = sums.accuracy()
    return line


def tidy(value: Any) -> Any:
    """Numbers with six digits; what is not finite becomes null."""
    if isinstance(value, dict):
        return {key: tidy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [tidy(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def _earlier(
    place: Path, kept_at: Path, seeds: list[int], methods: tuple[str, ...]
) -> tuple[dict[str, Sums], dict[str, Any]]:
    """What an earlier call measured: each client's losses, where they were kept, and the results of
    other methods."""
    earlier = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {"seeds": []}
    if earlier["seeds"] != seeds:
        return {}, {}
    kept = {}
    if kept_at.exists():
        with np.load(kept_at) as file:
            kept = {key: Sums(*file[key]) for key in file.files}
    lines = earlier["private"].items()
    before = {method: line for method, line in lines if method not in methods}
    return kept, {"private": before, "baselines": earlier["baselines"]}


def run_one(name: str, methods: tuple[str, ...], quick: bool, out: Path) -> str:
    """Measure one federation and write its file; returns a line for the terminal."""
    import torch

    torch.set_num_threads(1)
    began = time.perf_counter()

    def say(what: str) -> None:
        print(
            f"  {name}: {what} ({time.perf_counter() - began:.0f} s)", file=sys.stderr, flush=True
        )

    try:
        federation = load(name)
    except Absent as error:
        return f"{name}: skipped. {error}"
    epsilons, seeds = ((1.0, 2.0), (0,)) if quick else (EPSILONS, SEEDS)
    seeds = seeds[:1] if federation.outputs > MANY else seeds
    place = out / f"{name}.json"
    kept_at = (KEPT if out == RESULTS else out / "kept") / f"{name}.npz"
    kept, before = _earlier(place, kept_at, list(seeds), methods)
    result = tidy(measure(federation, methods, epsilons, seeds, say, kept, before))
    for folder in (place.parent, kept_at.parent):
        folder.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    arrays: dict[str, Any] = {key: np.stack([s.rows, s.loss, s.right]) for key, s in kept.items()}
    np.savez(kept_at, **arrays)
    scores = {key: line["score"] for key, line in result["baselines"].items()}
    for method, lines in result["private"].items():
        for epsilon, line in lines.items():
            scores[f"{method} ε={epsilon}"] = line["score"]
    shown = ", ".join(f"{key} {value}" for key, value in scores.items())
    return f"{name}: {time.perf_counter() - began:.0f} s; {shown}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    quick_ones = [name for name in LOADERS if name not in SLOW]
    parser.add_argument("--only", nargs="+", default=quick_ones, metavar="NAME")
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--quick", action="store_true", help="one seed and two ε, for a trial")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    unknown = sorted(set(given.only) - set(LOADERS))
    if unknown:
        parser.error(f"there is no federation {unknown[0]!r}: use {', '.join(LOADERS)}")
    if given.quick and given.out == RESULTS:
        parser.error("--quick needs --out, because the results that are checked in are complete")
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        rest = (tuple(given.methods), given.quick, given.out)
        waiting = [pool.submit(run_one, name, *rest) for name in given.only]
        for done, future in enumerate(as_completed(waiting), 1):
            print(f"[{done}/{len(waiting)}] {future.result()}", flush=True)


if __name__ == "__main__":
    main()
