"""Whole rounds of the library against a loop written by hand, in one run.

    python benchmarks/engines.py                              # the CNN and the linear model, CPU
    python benchmarks/engines.py --device cuda --tf32         # on a graphics card, with TF32, too
    python benchmarks/engines.py --task cnn -q 100 -b 10 --variant auto --json results.json

A round is: gather the cohort's models, E steps of SGD each, clip, sum, add noise, write the models
back. Ours is `Simulation.advance`, the loop that `pmtl train` runs. It needs torch, NumPy, SciPy
and safetensors, and the package on the path (`pip install .`, or PYTHONPATH=src).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Turn, machine, matmul_rate, take_turns
from plain import CLIP, LAM, LR, SIGMA, FemnistCNN, PlainRounds
from torch import nn

from pmtl.algorithms import PMTL
from pmtl.data import FederatedData
from pmtl.engines.axis import AxisTrainer
from pmtl.models import build_model
from pmtl.models.lowering import lowered
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, Simulation, simulate

#: FLOP of a training step for one row: forward, and once more for each derivative that is needed.
CNN_FLOP = 2 * (2 * 576 * 25 * 32 + 3 * 64 * 800 * 64 + 3 * 1024 * 62)
FEATURES, CLASSES, SAMPLES = 60, 10, 20
LINEAR_FLOP = 2 * 2 * FEATURES * CLASSES

CPU_VARIANTS = ("auto", "threads", "eager-patches")
CARD_VARIANTS = ("auto", "eager-grouped", "eager-patches", "compiled-patches", "compiled-tuned")
VARIANTS = tuple(dict.fromkeys(CPU_VARIANTS + CARD_VARIANTS))


def federation(
    task: str, q: int, batch: int, steps: int, rows: int, device: str
) -> tuple[Simulation, torch.Tensor, torch.Tensor]:
    """q clients with random data, all of them in every round, and their data as tensors."""
    random = np.random.default_rng(0)
    shape = (q * rows, 784) if task == "cnn" else (q * rows, FEATURES)
    x = random.random(shape, dtype=np.float32)
    outputs = 62 if task == "cnn" else CLASSES
    y = random.integers(0, outputs, len(x))
    owner = np.repeat([f"{k:06d}" for k in range(q)], rows)
    split = np.full(len(x), "train")
    data = FederatedData.from_arrays(x, y, owner, split, outputs=outputs, validation=0.0)
    name = "femnist_cnn" if task == "cnn" else "logistic"
    made = simulate(
        data,
        build_model(name, data.input_shape, outputs, data.task, 0),
        PMTL(lam=LAM),
        PrivacyPlan(q, q, "full", CLIP, SIGMA, 10**6, 1e-6),
        LocalTraining(steps=steps, batch=batch, lr=LR),
        0,
        device,
    )
    tensors = (
        torch.from_numpy(x).view(q, rows, -1).to(device),
        torch.from_numpy(y).view(q, rows).to(device),
    )
    return made, *tensors


def tuned(graph: Any, inputs: Any) -> Any:
    """The compiler, asked to look for the best matrix products by trying."""
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs, config_patches={"max_autotune_gemm": True})


def ours(made: Simulation, variant: str) -> Turn:
    """Rounds with this variant."""
    task = made.data.task
    if variant == "threads":
        parts = (made.data, made.model, made.algorithm, made.plan, made.sites.local, 0)
        made = simulate(*parts, engine="threads")
    elif variant != "auto":
        how, _, what = variant.partition("-")
        made.sites.trainer = AxisTrainer(
            made.algorithm,
            made.model if what == "grouped" else lowered(made.model, "patches"),
            task,
            compile=how == "compiled",
            width=len(made.sites.pieces(np.arange(made.plan.cohort))[0]),
            backend=tuned if what == "tuned" else "inductor",
        )
    progress = made.start()

    def turn(rounds: int) -> None:
        with made.sites.threads():  # As `pmtl train` does.
            for _ in range(rounds):
                made.advance(progress)

    return turn


def loops(make: Callable[[], nn.Module], x: Any, y: Any, batch: int, steps: int) -> dict[str, Turn]:
    """The loop by hand; on a CPU also with one client per thread."""
    plain = PlainRounds(make, x, y, batch, steps)

    def turn(threads: int, rounds: int) -> None:
        for _ in range(rounds):
            plain.round(threads)

    found: dict[str, Turn] = {"loop": partial(turn, 0)}
    if x.device.type == "cpu":
        threads = torch.get_num_threads()
        found[f"loop, {threads} clients at a time"] = partial(turn, threads)
    return found


def compare(options: argparse.Namespace, task: str, q: int, batch: int) -> dict[str, Any]:
    """All contenders at one setting."""
    device = torch.device(options.device)
    rows = 2 * batch if task == "cnn" else SAMPLES
    steps = options.steps
    made, x, y = federation(task, q, batch, steps, rows, options.device)
    variants = options.variant or (CPU_VARIANTS if device.type == "cpu" else CARD_VARIANTS)
    if task != "cnn":
        variants = [name for name in variants if name in ("auto", "compiled-patches")]
    contenders: dict[str, Turn] = {}
    for name in variants:
        fresh, _, _ = federation(task, q, batch, steps, rows, options.device)
        contenders[f"pmtl {name}"] = ours(fresh, name)
    if not options.no_loop:
        make = FemnistCNN if task == "cnn" else lambda: nn.Linear(FEATURES, CLASSES)
        contenders |= loops(make, x, y, batch, steps)
    times = take_turns(contenders, device, options.repeats, options.patience)
    flop = (CNN_FLOP if task == "cnn" else LINEAR_FLOP) * q * batch * steps
    by_hand = [taken for name, taken in times.items() if name.startswith("loop")]
    best, best_mean = (
        min((taken[key] for taken in by_hand), default=None) for key in ("median", "mean")
    )
    lines = []
    for name, taken in times.items():
        line: dict[str, Any] = {"contender": name, **taken, "gflops": flop / taken["median"] / 1e9}
        line["client_steps_per_second"] = q * steps / taken["median"]
        if best is not None:
            line["times_loop"] = times["loop"]["median"] / taken["median"]
            line["times_best_loop"] = best / taken["median"]
            line["times_best_loop_mean"] = best_mean / taken["mean"]
        if options.rate:
            line["share_of_float32_rate"] = line["gflops"] / options.rate["float32"]
        lines.append(line)
    chosen = f"{made.sites.engine}, {'compiled' if made.sites.compile else 'not compiled'}"
    setting = {"task": task, "q": q, "batch": batch, "steps": steps, "auto": chosen}
    setting["tf32"] = torch.get_float32_matmul_precision() == "high"
    return {**setting, "contenders": lines}


def show(result: dict[str, Any]) -> None:
    """One setting as a table."""
    names = {"cnn": "FEMNIST CNN", "linear": f"logistic regression, {SAMPLES} samples a client"}
    precision = ", TF32" if result["tf32"] else ""
    print(
        f"\n{names[result['task']]}: q = {result['q']}, B = {result['batch']}, "
        f"E = {result['steps']}{precision} (auto: {result['auto']})"
    )
    titles = (
        "",
        "round",
        "mean",
        "of cores",
        "first",
        "GFLOP/s",
        "× loop",
        "× best loop",
        "of float32",
    )
    rows = [titles]
    for line in result["contenders"]:
        rows.append(
            (
                line["contender"],
                f"{line['median'] * 1e3:.1f} ms",
                f"{line['mean'] * 1e3:.1f} ms",
                f"{line['core_seconds'] * 1e3:.1f} ms",
                f"{line['first']:.1f} s",
                f"{line['gflops']:.1f}",
                *(f"{line[k]:.2f}" if k in line else "" for k in ("times_loop", "times_best_loop")),
                f"{line['share_of_float32_rate']:.1%}" if "share_of_float32_rate" in line else "",
            )
        )
    wide = [max(len(row[i]) for row in rows) for i in range(len(titles))]
    for row in rows:
        print(
            "  ".join(
                c.ljust(w) if i == 0 else c.rjust(w)
                for i, (c, w) in enumerate(zip(row, wide, strict=True))
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--task", choices=("cnn", "linear", "all"), default="all")
    parser.add_argument("-q", "--clients", type=int, nargs="*", help="cohorts of the CNN")
    parser.add_argument("-b", "--batch", type=int, nargs="*", default=[10, 32])
    parser.add_argument("-e", "--steps", type=int, default=5)
    parser.add_argument("--variant", nargs="*", choices=VARIANTS)
    parser.add_argument("--tf32", action="store_true", help="measure with TensorFloat-32, too")
    parser.add_argument("--no-loop", action="store_true", help="leave the loop by hand out")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for a contender")
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    device = torch.device(options.device)
    cohorts = options.clients or ([20] if device.type == "cpu" else [100, 1000])
    options.rate = None
    if device.type == "cuda":
        options.rate = {
            name: matmul_rate(device, tf32) / 1e9
            for name, tf32 in (("float32", False), ("tf32", True))
        }
        print({name: f"{rate:.0f} GFLOP/s" for name, rate in options.rate.items()})
    settings = []
    if options.task != "linear":
        settings += [("cnn", q, batch) for q in cohorts for batch in options.batch]
    if options.task != "cnn":
        settings.append(("linear", 1000, 10))
    report: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/engines.py", *sys.argv[1:]]),
        "machine": machine(device),
        "matmul_gflops": options.rate,
        "results": [],
    }
    for precision in ("highest", "high") if options.tf32 else ("highest",):
        torch.set_float32_matmul_precision(precision)
        for setting in settings:
            result = compare(options, *setting)
            show(result)
            report["results"].append(result)
            if options.json:  # After every setting, so that nothing is lost.
                options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
