"""The same local work in pmtl and in its peers, on this machine, in one call.

    make bench-peers                                     # installs what it needs; everything, CPU
    python benchmarks/peers/run.py --peer pfl --workload small --turns 1 --out some.json
    python benchmarks/peers/run.py --table               # what the checked-in file says
    python benchmarks/peers/run.py --device cuda --packages DIR --out card.json

For every contestant the driver first checks that it does the same work (three rounds without noise
end in the same shared model as ours), then lets ours and the contestant take turns, each in a
process and an environment of its own. A contestant that fails is put down as such, and the others
go on. README.md says what is compared and what is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from environments import PEERS, environment
from table import table
from turn import ALGORITHMS
from workload import CNN, LAM, LOGISTIC, NOISE_MULTIPLIER, SEED, WORKLOADS, read, write

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "peers-cpu.json"
CORES = os.cpu_count() or 1
#: Rounds of the check; later ones have some clients of the first again, with what they kept.
CHECKED = 3
#: How far two shared models may be apart, in parts of how far they moved, for the linear model and
#: the CNN. Rounding alone makes some 1e-5, and 4e-4 if it carries a unit of the CNN over a kink;
#: without λ it would be 8e-4 and 8e-3, with a step or a bound that is off by a hundredth 4e-3 and
#: 1e-2.
TOLERANCE = {LOGISTIC: 3e-4, CNN: 2e-3}


@dataclass(frozen=True)
class Contestant:
    """A peer, and one way of using the machine's cores with it."""

    peer: str
    title: str
    ways: str

    def command(self, packages: Path | None = None) -> list[str]:
        python = [sys.executable if packages else str(_interpreter(self.peer))]
        if self.peer == "pfl" and self.ways != "1":
            python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", self.ways]
        return [*python, str(HERE / f"with_{self.peer}.py"), "--ways", self.ways]


OURS = Contestant("pmtl", "pmtl", "as it comes")
#: What needs nothing but an interpreter, on one graphics card.
ON_A_CARD = ("pfl-research, one process", "FedJAX, jit")
#: Ours again, from a start that is other in its last bits: what rounding alone can do.
NUDGED = Contestant("pmtl", "pmtl", "nudged")
CONTESTANTS = (
    Contestant("pfl", "pfl-research, one process", "1"),
    Contestant("pfl", f"pfl-research, {CORES} processes", str(CORES)),
    Contestant("flower", "Flower, one actor", "1"),
    Contestant("flower", f"Flower, {CORES} actors", str(CORES)),
    Contestant("fedjax", "FedJAX, jit", "jit"),
    Contestant("fedjax", f"FedJAX, pmap over {CORES}", "pmap"),
)


@dataclass(frozen=True)
class Where:
    """Where turns are taken: on which device, and with which packages of the peers, if they cannot
    have environments of their own."""

    device: str = "cpu"
    packages: Path | None = None

    def values(self, peer: str) -> dict[str, str]:
        """The environment variables of a turn."""
        # Everybody may use all cores, and peers have nothing of ours on their path.
        dropped = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
        dropped |= set() if peer == "pmtl" else {"PYTHONPATH"}
        values = {name: value for name, value in os.environ.items() if name not in dropped}
        if self.device == "cpu":  # Also where there is a card.
            values |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
        else:  # Ours computes in float32; the others' convolutions would be rounded to ten bits.
            values |= {"NVIDIA_TF32_OVERRIDE": "0", "JAX_DEFAULT_MATMUL_PRECISION": "float32"}
        if self.packages and peer != "pmtl":
            values["PYTHONPATH"] = str(self.packages / peer)
        return values


ON_THE_CPU = Where()


class Failure(Exception):
    """Why a contestant has no result."""


def _interpreter(peer: str) -> Path:
    """Ours is the one that runs this; a peer's is in its own environment."""
    found = Path(sys.executable) if peer == "pmtl" else _installed(peer)
    if isinstance(found, str):
        raise Failure(found)
    return found


@cache
def _installed(peer: str) -> Path | str:
    """The interpreter, or why there is none: what cannot be installed is tried once only."""
    try:
        return environment(peer)
    except (RuntimeError, OSError) as error:
        return str(error)


def take_turn(
    who: Contestant,
    workload: str,
    algorithm: str,
    rounds: int,
    folder: Path,
    limit: float,
    *more: str,
    where: Where = ON_THE_CPU,
) -> dict[str, Any]:
    """One process, from start to end: its answer, with the shared model it came to."""
    command, values = who.command(where.packages), where.values(who.peer)
    with tempfile.TemporaryDirectory() as out, open(Path(out) / "words", "w+") as words:  # noqa: PTH123
        command += ["--workload", workload, "--algorithm", algorithm, "--rounds", str(rounds)]
        command += ["--folder", str(folder), "--out", out, "--begun", repr(time.time())]
        command += ["--device", where.device, *more]
        process = subprocess.Popen(
            command, stdout=words, stderr=words, env=values, start_new_session=True
        )
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise Failure(f"No answer within {limit:g} seconds.") from None
        finally:
            _end(process)
        if status:
            words.seek(0)
            last = " | ".join(words.read().strip().splitlines()[-4:])
            raise Failure(f"Ended with status {status}: {last}")
        answer: dict[str, Any] = json.loads((Path(out) / "answer.json").read_text())
        answer["shared"] = np.load(Path(out) / "shared.npy")
        return answer


def _end(process: subprocess.Popen[Any]) -> None:
    """Nothing that a turn started may go on beside the next one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def check(
    who: Contestant,
    workload: str,
    algorithm: str,
    folder: Path,
    limit: float,
    where: Where = ON_THE_CPU,
) -> dict[str, Any]:
    """Two rounds without noise, and the same two of ours with the clients that the peer drew."""
    asked = (f"{workload}-gently", algorithm, CHECKED, folder, limit, "--no-noise")
    theirs = take_turn(who, *asked, where=where)
    with tempfile.TemporaryDirectory() as place:
        drawn = Path(place) / "cohorts.json"
        drawn.write_text(json.dumps({"cohorts": theirs["cohorts"]}))
        given = (*asked, "--cohorts", str(drawn))
        ours, nudged = (take_turn(one, *given, where=where) for one in (OURS, NUDGED))
    moved = float(np.abs(ours["shared"] - read(folder).start).max())
    difference, apart = (
        float(np.abs(ours["shared"] - other["shared"]).max()) for other in (theirs, nudged)
    )
    first, second, *_ = (set(cohort) for cohort in theirs["cohorts"])
    _require_steps(workload, CHECKED, ours, theirs)
    if not difference <= TOLERANCE[WORKLOADS[workload].layers] * moved:
        raise Failure(
            f"It does other work: after {CHECKED} rounds without noise the shared models differ by "
            f"{difference:.2g}, having moved by {moved:.2g}. (Ours differs by {apart:.2g} from "
            "ours with a start that is other in its last bits.)"
        )
    return {
        "rounds": CHECKED,
        "max_difference": difference,
        "ours_from_a_nudged_start": apart,
        "largest_movement": moved,
        "clients_in_both_rounds": len(first & second),
        "local_steps": theirs["local_steps"],
        "share_of_uploads_clipped": ours["clipped"],
    }


def _require_steps(workload: str, rounds: int, *answers: dict[str, Any]) -> None:
    asked = WORKLOADS[workload]
    wanted = rounds * asked.cohort * asked.steps
    for answer in answers:
        sizes = {len(set(cohort)) for cohort in answer["cohorts"]}
        if answer["local_steps"] != wanted or sizes != {asked.cohort}:
            raise Failure(
                f"{answer['local_steps']} local steps were counted instead of {wanted}, in cohorts "
                f"of {sorted(sizes)} clients."
            )


def measure(
    who: Contestant,
    workload: str,
    algorithm: str,
    folder: Path,
    turns: int,
    limit: float,
    where: Where,
) -> dict[str, Any]:
    """Ours, theirs, ours, theirs, …"""
    rounds = 1 + WORKLOADS[workload].timed
    taken: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    for _ in range(turns):
        for name, one in (("ours", OURS), ("theirs", who)):
            answer = take_turn(one, workload, algorithm, rounds, folder, limit, where=where)
            _require_steps(workload, rounds, answer)
            taken[name].append(answer)
    medians = {name: [statistics.median(a["rounds"]) for a in some] for name, some in taken.items()}
    found = {name: summary(some) for name, some in taken.items()}
    return {
        **found,
        "ratio": found["theirs"]["median"] / found["ours"]["median"],
        "ratio_of_each_turn": [t / o for o, t in zip(*medians.values(), strict=True)],
    }


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds: start-up and first round apart; of the other rounds the mean, the median, the
    quartiles and the slowest."""
    rounds = [seconds for answer in answers for seconds in answer["rounds"]]
    low, middle, high = np.quantile(rounds, [0.25, 0.5, 0.75]).tolist()
    return {
        "versions": answers[0]["versions"],
        "startup": statistics.median(answer["startup"] for answer in answers),
        "first_round": statistics.median(answer["first"] for answer in answers),
        "median": middle,
        "quartiles": [low, high],
        "mean": statistics.mean(rounds),
        "slowest": max(rounds),
        "rounds": len(rounds),
    }


def machine(device: str) -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    found = {"processor": name, "cores": CORES, "python": platform.python_version()}
    if device == "cuda":
        import torch

        found["card"] = torch.cuda.get_device_name()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--workload", nargs="*", choices=tuple(WORKLOADS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--packages", type=Path, help="as `environments.py --into` makes them")
    parser.add_argument("--algorithm", nargs="*", choices=ALGORITHMS, default=["pmtl"])
    parser.add_argument("--turns", type=int, default=2, help="of ours and of a contestant each")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one turn")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--note", help="something to keep with the results, e.g. a busy machine")
    parser.add_argument("--table", action="store_true", help="print the file, and end")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.out.read_text(encoding="utf-8"))))
        return
    card = given.device == "cuda"
    given.workload = given.workload or [n for n in WORKLOADS if card or n != "cohort"]
    where = Where(given.device, given.packages)
    # A turn is a session of its own, and ends with the driver only if the driver can say so.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/peers/run.py", *sys.argv[1:]]),
        "note": given.note,
        "date": date.today().isoformat(),
        "machine": machine(given.device),
        "settings": {"noise_multiplier": NOISE_MULTIPLIER, "lam": LAM, "seed": SEED}
        | {"turns": given.turns, "limit_seconds": given.limit},
        "workloads": {
            name: {k: v for k, v in asdict(WORKLOADS[name]).items() if k != "layers"}
            for name in given.workload
        },
        "results": [],
    }
    for workload in given.workload:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write(WORKLOADS[workload], folder)
            for algorithm in given.algorithm:
                for who in CONTESTANTS:
                    if who.peer not in given.peer or (card and who.title not in ON_A_CARD):
                        continue
                    line = {"workload": workload, "algorithm": algorithm, **asdict(who)}
                    line["load_before"] = round(os.getloadavg()[0], 2)
                    asked = (who, workload, algorithm, folder)
                    print(f"{workload}, {algorithm}: {who.title} …", file=sys.stderr, flush=True)
                    try:
                        line["check"] = check(*asked, given.limit, where)
                        line |= measure(*asked, given.turns, given.limit, where)
                    except Failure as failure:
                        line["error"] = str(failure)
                        print(f"  {failure}", file=sys.stderr, flush=True)
                    report["results"].append(line)
                    # After every contestant, so that nothing is lost.
                    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(table(report))


if __name__ == "__main__":
    main()
