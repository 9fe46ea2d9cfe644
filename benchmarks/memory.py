"""Memory and disk: personal models beyond memory, and a million clients.

    python benchmarks/memory.py [--quick] [--out benchmarks/results/memory.json] [CASE …]
    python benchmarks/memory.py --tables        # as they stand in docs/scale.md

Cases:
    steps          a round of StackOverflow's shape (10,000 words, 500 tags, 5,000,500 parameters)
                   for a few clients, with more and more local steps, and once on dense batches
    stackoverflow  400 such clients, 8 GB of vectors, every one of them in every round; with
                   checkpoints, and resumed from the last one
    clients        10⁴, 10⁵ and 10⁶ clients with 1,000 parameters, 100 of them a round, in memory
                   and on disk

Every measurement is a process of its own, so that its peak of resident memory is its own. Times
are the clock's and, as `cpu_…`, the process's own, which on a busy machine tell more. Rows are made
up. Needs torch, NumPy, SciPy and safetensors only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from pmtl.algorithms import build_algorithm
from pmtl.data import FederatedData
from pmtl.engines.process import peak_resident_bytes
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.runs.folder import RunFolder
from pmtl.simulation import LocalTraining, Simulation, simulate

RESULTS = Path(__file__).parent / "results" / "memory.json"
WORDS, TAGS, WORDS_A_ROW = 10_000, 500, 20

FULL: dict[str, list[dict[str, Any]]] = {
    "steps": [
        {"clients": 8, "steps": steps, "dense": dense}
        for steps, dense in ((1, False), (10, False), (50, False), (1, True), (10, True))
    ],
    "stackoverflow": [{"clients": 400, "rounds": 2}],
    "clients": [
        {"clients": clients, "where": where, "rounds": 40}
        for clients in (10**4, 10**5, 10**6)
        for where in ("memory", "disk")
    ],
}
QUICK: dict[str, list[dict[str, Any]]] = {
    "steps": [{"clients": 2, "steps": 2, "dense": dense} for dense in (False, True)],
    "stackoverflow": [{"clients": 4, "rounds": 2, "limit": 0}],
    "clients": [{"clients": 10**4, "where": where, "rounds": 5} for where in ("memory", "disk")],
}


def bags_of_words(clients: int, rows: int) -> FederatedData:
    """Rows of words whose frequencies fall off as in a language, each with a few tags."""
    random = np.random.default_rng(0)
    total = clients * rows
    words = (random.zipf(1.3, size=total * WORDS_A_ROW) - 1) % WORDS
    bounds = np.arange(0, total * WORDS_A_ROW + 1, WORDS_A_ROW)
    share = np.full(len(words), 1 / WORDS_A_ROW, dtype=np.float32)
    x = sparse.csr_matrix((share, words, bounds), shape=(total, WORDS))
    y = (random.random((total, TAGS)) < 3 / TAGS).astype(np.uint8)
    owner = np.repeat([f"author-{k:04d}" for k in range(clients)], rows)
    return FederatedData.from_arrays(x, y, owner)


def small_rows(clients: int) -> FederatedData:
    """Three rows a client of nine features, for 100 classes: 1,000 parameters."""
    random = np.random.default_rng(0)
    x = random.normal(size=(3 * clients, 9)).astype(np.float32)
    owner = np.repeat(np.char.mod("client-%07d", np.arange(clients)), 3)
    split = np.tile(np.array(["train", "train", "test"]), clients)
    y = random.integers(0, 100, 3 * clients)
    return FederatedData.from_arrays(x, y, owner, split, outputs=100, validation=0.0)


def federation(data: FederatedData, plan: PrivacyPlan, local: LocalTraining) -> Simulation:
    model = build_model("logistic", data.input_shape, data.outputs, data.task, 0)
    return simulate(data, model, build_algorithm("pmtl"), plan, local, seed=0)


class Watch:
    """Seconds by the clock and of this process, of one piece of work after another."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def __enter__(self) -> Watch:
        self._begin = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall.append(time.perf_counter() - self._begin[0])
        self.cpu.append(time.process_time() - self._begin[1])


def steps(clients: int, steps: int, dense: bool) -> dict[str, Any]:
    """Seconds of a round: its training alone, without the gate."""
    plan = PrivacyPlan(clients, clients, "full", 0.5, 0.01, 1, 1e-3)
    made = federation(
        bags_of_words(clients, 60), plan, LocalTraining(steps=steps, batch=10, lr=0.3)
    )
    if dense:
        made.sites.sparse = None
    progress = made.start()
    everybody = np.arange(clients)
    watch = Watch()
    for _ in range(3):
        with watch:
            for some in made.sites.pieces(everybody):
                own = progress.store.gather(some)
                read = made.server.billboard.read(progress.shared, some)
                trained = made.sites.train_clients(some, own, read, 0, 0.3)
                progress.store.scatter(some, trained.kept)
    return {
        "parameters": made.model.size,
        "seconds_per_client": min(watch.wall) / clients,
        "cpu_seconds_per_client": min(watch.cpu) / clients,
        "peak_resident_bytes": peak_resident_bytes(),
    }


def stackoverflow(clients: int, rounds: int, limit: int | None = None) -> dict[str, Any]:
    """Full participation: after one round all vectors exist, after two every one lies twice."""
    if limit is not None:
        os.environ["PMTL_MEMORY_LIMIT"] = str(limit)
    plan = PrivacyPlan(clients, clients, "full", 0.5, 0.01, rounds + 1, 1e-3)
    data, local = bags_of_words(clients, 60), LocalTraining(steps=10, batch=10, lr=0.3)
    made = federation(data, plan, local)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as path:
        folder = RunFolder(path)
        progress = made.start(folder.owned_file)
        where = progress.store.where
        trained, saved, checked, digest = Watch(), Watch(), Watch(), ""
        for _ in range(rounds):
            with trained:
                made.advance(progress)
            with saved:
                digest = folder.save_checkpoint(progress)
        again = federation(data, plan, local)
        with checked:
            resumed = folder.load_checkpoint(again.start(folder.owned_file))
        assert folder.checkpoint_digest() == digest
        last = np.array([0, clients - 1])
        assert torch.equal(resumed.store.gather(last), progress.store.gather(last))
        on_disk = {file.name: 512 * file.stat().st_blocks for file in Path(path).iterdir()}
    return {
        "parameters": made.model.size,
        "where": where,
        "vectors_bytes": len(progress.store.seen) * progress.store.start.nbytes,
        "disk_bytes": on_disk,
        "seconds_per_round": trained.wall,
        "cpu_seconds_per_round": trained.cpu,
        "seconds_per_checkpoint": saved.wall,
        "cpu_seconds_per_checkpoint": saved.cpu,
        "seconds_to_resume": checked.wall[0],
        "cpu_seconds_to_resume": checked.cpu[0],
        "peak_resident_bytes": peak_resident_bytes(),
    }


def clients(clients: int, where: str, rounds: int) -> dict[str, Any]:
    """Seconds and memory of rounds with 100 clients, however many there are."""
    if where == "disk":
        os.environ["PMTL_MEMORY_LIMIT"] = "0"
    plan = PrivacyPlan(clients, 100, "poisson", 0.5, 0.01, rounds, 1e-9)
    made = federation(small_rows(clients), plan, LocalTraining(steps=5, batch=2, lr=0.3))
    progress = made.start()
    assert progress.store.where == where
    made.advance(progress)  # What is done once is not counted.
    before = forget_peak()
    watch, coins = Watch(), Watch()
    for round in range(1, rounds):
        with watch:
            made.advance(progress)
        with coins:
            made.server.sampler.draw(round)
    return {
        "parameters": made.model.size,
        "seconds_per_round": statistics.median(watch.wall),
        "mean_seconds_per_round": statistics.mean(watch.wall),
        "cpu_seconds_per_round": statistics.median(watch.cpu),
        "of_them_for_the_coins": statistics.median(coins.cpu),
        "clients_seen": len(progress.store.seen),
        "vectors_bytes": len(progress.store.seen) * progress.store.start.nbytes,
        "resident_bytes_before": before,
        "resident_bytes_of_the_rounds": peak_resident_bytes() - before,
    }


def forget_peak() -> int:
    """Let the peak of resident memory begin anew (Linux), and return what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_resident_bytes()


def machine() -> dict[str, Any]:
    """What it was measured on."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    name = text.partition("model name")[2].partition("\n")[0].strip(" \t:")
    return {
        "processor": name or platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def measure(case: str, options: dict[str, Any]) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps([case, options])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {**options, **json.loads(done.stdout)}


def tables(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["| local steps | batches | CPU seconds a client |", "| ---: | --- | ---: |"]
    for row in results["steps"]:
        kind = "dense" if row["dense"] else "sparse"
        lines.append(f"| {row['steps']} | {kind} | {row['cpu_seconds_per_client']:.3f} |")
    (row,) = results["stackoverflow"]
    shape = f"{row['clients']} clients, {row['parameters']:,} parameters, all of them every round"
    disk = sum(row["disk_bytes"].values())
    per_client = row["cpu_seconds_per_round"][-1] / row["clients"]
    lines += ["", f"| {shape} | |", "| --- | ---: |"]
    lines += [
        f"| {what} | {figure} |"
        for what, figure in {
            f"the vectors, kept on {row['where']}": f"{row['vectors_bytes'] / 1e9:.2f} GB",
            "peak of resident memory": f"{row['peak_resident_bytes'] / 1e9:.2f} GB",
            "on disk after two rounds and two checkpoints": f"{disk / 1e9:.2f} GB",
            "a round with its gate, CPU seconds a client": f"{per_client:.2f}",
            "a checkpoint after everybody trained, CPU seconds": (
                f"{row['cpu_seconds_per_checkpoint'][-1]:.1f}"
            ),
            "resuming, every vector checked, CPU seconds": f"{row['cpu_seconds_to_resume']:.1f}",
        }.items()
    ]
    lines += [
        "",
        "| clients | vectors in | CPU ms a round | of them for the coins | clients seen "
        "| their vectors | memory of the rounds |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in results["clients"]:
        figures = (
            f"{row['clients']:,}",
            row["where"],
            f"{1e3 * row['cpu_seconds_per_round']:.1f}",
            f"{1e3 * row['of_them_for_the_coins']:.1f}",
            f"{row['clients_seen']:,}",
            f"{row['vectors_bytes'] / 1e6:.1f} MB",
            f"{row['resident_bytes_of_the_rounds'] / 1e6:.1f} MB",
        )
        lines.append("| " + " | ".join(figures) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="steps, stackoverflow, clients (all of them)")
    parser.add_argument("--quick", action="store_true", help="small shapes, in a minute")
    parser.add_argument("--out", help="a JSON file; the cases that are not run stay in it")
    parser.add_argument("--tables", action="store_true", help="print what was measured, and end")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.tables:
        print(tables(json.loads(RESULTS.read_text())))
        return
    if asked.one:
        case, options = json.loads(asked.one)
        print(
            json.dumps(
                {"steps": steps, "stackoverflow": stackoverflow, "clients": clients}[case](
                    **options
                )
            )
        )
        return
    plan = QUICK if asked.quick else FULL
    out = None if asked.out is None else Path(asked.out)
    results = json.loads(out.read_text()) if out is not None and out.exists() else {}
    results["machine"] = machine()
    for case in asked.cases or plan:
        results[case] = []
        for options in plan[case]:
            results[case].append(measure(case, options))
            print(case, json.dumps(results[case][-1]), flush=True)
            if out is not None:
                out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
