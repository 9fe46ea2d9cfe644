"""What the default method for networks is worth, on federations that are drawn (docs/networks.md).

    python benchmarks/networks.py                        # all federations, some 20 CPU minutes
    python benchmarks/networks.py --only near_200        # some of them; the others stay

A client's rows are x ~ N(0, I) with ten columns, and its answers come from a network of its own,
with 16 units and tanh: a common one plus `own` times another that is drawn for the client. `ours`
is `pmtl.train(data, model="mlp", privacy=ε)`. The rivals get the better of two clips and two steps,
chosen on the test rows: an advantage that would have to be paid for. `alone` is what the run of
ours gives a client without the others: its own network, with its penalty chosen by itself.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pmtl

RESULTS = Path(__file__).parent / "results" / "networks.json"
EPSILONS = (0.5, 2.0)
RIVALS = {"algorithm_1": "pmtl:lam=0.3", "ditto": "ditto:lam=0.3", "fedavg": "fedavg"}
CLIPS, STEPS = (0.5, 2.0), (0.1, 0.5)
LOCAL = {"steps": 5, "batch": 0}
#: Constants of the method were chosen on seed 0 of some of these families.
FIRST_SEED = 1
ROUNDS, COLUMNS, HIDDEN, TEST = 8, 10, 16, 40

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """How to draw a federation.

    Args:
        about: in words.
        m: clients.
        own: how much of a client's network is its own.
        rows: the fewest and the most training rows of a client.
        outputs: classes; 1 for a number.
        model: what is trained.
        units: whether columns and numbers are in units of very different sizes.
        linear: whether the networks that answer have no hidden layer.
    """

    about: str
    m: int = 200
    own: float = 0.3
    rows: tuple[int, int] = (10, 40)
    outputs: int = 3
    model: str = "mlp"
    units: bool = False
    linear: bool = False


FAMILIES = {
    "alike_200": Family("three classes, the same network for all", own=0.0),
    "near_60": Family("three classes, networks near a common one", m=60),
    "near_200": Family("three classes, networks near a common one"),
    "near_800": Family("three classes, networks near a common one", m=800),
    "far_200": Family("three classes, networks far from a common one", own=1.0),
    "unrelated_200": Family("three classes, nothing in common", own=1e3),
    "number_300": Family("a number, networks near a common one", m=300, outputs=1),
    "units_300": Family("the same in odd units", m=300, outputs=1, units=True),
    "linear_200": Family("two classes, linear rules", outputs=2, linear=True),
    "deep_200": Family("two hidden layers are trained", model="mlp:hidden=32,layers=2"),
}


def draw(family: Family, seed: int) -> tuple[Array, NDArray[Any], NDArray[np.int64], list[str]]:
    """Rows, targets, clients and splits."""
    random = np.random.default_rng([17, seed])
    hidden = 0 if family.linear else HIDDEN
    width = hidden or COLUMNS
    common = [random.normal(size=(COLUMNS, hidden)), random.normal(size=(width, family.outputs))]
    xs, ys, clients, splits = [], [], [], []
    keep = 1 / np.sqrt(1 + family.own**2)
    for client in range(family.m):
        first, last = (
            (keep * one + keep * family.own * random.normal(size=one.shape)) for one in common
        )
        train = int(random.integers(family.rows[0], family.rows[1] + 1))
        x = random.normal(size=(train + TEST, COLUMNS))
        inner = x if family.linear else np.tanh(1.5 * x @ first / np.sqrt(COLUMNS))
        answers = 3 * inner @ last / np.sqrt(width)
        if family.outputs == 1:
            y = answers[:, 0] + 0.5 * random.normal(size=len(x))
        else:
            y = (answers + random.gumbel(size=answers.shape)).argmax(1)
        xs.append(x)
        ys.append(y)
        clients += [client] * len(x)
        splits += ["train"] * train + ["test"] * TEST
    x, y = np.concatenate(xs), np.concatenate(ys)
    if family.units:
        x, y = 300 + x * np.logspace(-3, 5, COLUMNS), 50_000 + 800 * y
    return x, y, np.array(clients), splits


def losses(run: Any, view: str) -> Array:
    """Each client's mean loss on its test rows: nats, or squared errors."""
    return np.asarray(run.client_losses("test")[view], dtype=np.float64)


def train(data: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pmtl.train(data, **options)


def measure(family: Family, seeds: int) -> dict[str, Any]:
    """The scores of all methods, and of ours the paired standard error."""
    found: dict[str, Any] = {"clients": family.m, **asdict(family), "epsilon": {}}
    for epsilon in EPSILONS:
        kept: dict[str, list[Array]] = {}
        seconds = []
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            x, y, client, split = draw(family, seed)
            data = pmtl.FederatedData.from_arrays(
                x.astype(np.float32), y, client, split=np.array(split)
            )
            begun = time.perf_counter()
            run = train(data, model=family.model, privacy=epsilon, seed=seed)
            seconds.append(time.perf_counter() - begun)
            for view in ("personal", "alone"):
                kept.setdefault(view, []).append(losses(run, view))
            standard = data.scaled()
            spread = 1.0
            if family.outputs == 1:  # The rivals' target is standardised for them, too.
                shift, spread = float(y.mean()), float(y.std())
                standard = pmtl.FederatedData.from_arrays(
                    x.astype(np.float32), (y - shift) / spread, client, split=np.array(split)
                ).scaled()
            for name, spec in RIVALS.items():
                tried = [
                    rival(standard, family.model, spec, epsilon, clip, step, seed) * spread**2
                    for clip, step in product(CLIPS, STEPS)
                ]
                kept.setdefault(name, []).append(min(tried, key=lambda one: float(one.mean())))
        pairs = np.concatenate(kept["alone"]) - np.concatenate(kept["personal"])
        table = {name: float(np.mean(np.concatenate(parts))) for name, parts in kept.items()}
        error = float(pairs.std(ddof=1) / np.sqrt(len(pairs)))
        found["epsilon"][f"{epsilon:g}"] = {
            **table,
            "gain": float(pairs.mean()),
            "error": error,
            "seconds": float(np.median(seconds)),
        }
        print(family.about, family.m, epsilon, table, f"± {error:.4f}", seconds, flush=True)
    return found


def rival(
    data: Any, model: str, spec: str, epsilon: float, clip: float, step: float, seed: int
) -> Array:
    asked = {"epsilon": epsilon, "rounds": ROUNDS, "clip": clip}
    local = {**LOCAL, "lr": step}
    run = train(data, model=model, algorithm=spec, privacy=asked, local=local, seed=seed)
    view = "personal" if run.facts.personal else "shared"
    return np.nan_to_num(losses(run, view), nan=1e6, posinf=1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    for name in asked.only:
        found = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
        found[name] = {"seeds": asked.seeds, **measure(FAMILIES[name], asked.seeds)}
        ordered = {key: found[key] for key in FAMILIES if key in found}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
