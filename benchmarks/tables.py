"""The tables of docs/benchmarks.md, privacy.md and others, from the results that are checked in.

python benchmarks/tables.py              # prints all of them
python benchmarks/tables.py --write      # puts them where they stand in the pages
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DOCS = HERE.parent / "docs"

TASKS = {"cnn": "FEMNIST CNN", "linear": "logistic regression"}


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def markdown(titles: tuple[str, ...], rows: list[tuple[str, ...]], left: int = 1) -> str:
    """A table; all but the first `left` columns are numbers."""
    rules = ["---"] * left + ["---:"] * (len(titles) - left)
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, tuple(rules), *rows))


def _milliseconds(taken: dict[str, Any]) -> str:
    """The median and, where it was measured, the mean."""
    mean = f" ({1e3 * taken['mean']:.1f})" if "mean" in taken else ""
    return f"{1e3 * taken['median']:.1f}{mean} ms"


def _number(line: dict[str, Any], name: str) -> str:
    """A ratio, or nothing where it was not measured."""
    return f"{line[name]:.2f}" if name in line else ""


def engines(name: str) -> str:
    """Whole rounds against loops by hand, a line for each setting and contender of ours."""
    rows = []
    for result in read(name)["results"]:
        setting = f"{TASKS[result['task']]}, q = {result['q']:,}, B = {result['batch']}"
        setting += ", TF32" if result["tf32"] else ""
        loops = [c for c in result["contenders"] if c["contender"].startswith("loop")]
        best = min(loops, key=lambda loop: float(loop["median"]))
        for line in result["contenders"]:
            if not line["contender"].startswith("pmtl"):
                continue
            share = line.get("share_of_float32_rate")
            rows.append(
                (
                    setting,
                    line["contender"].removeprefix("pmtl "),
                    _milliseconds(line),
                    _milliseconds(best),
                    f"{line['times_best_loop']:.2f}",
                    _number(line, "times_best_loop_mean"),
                    f"{line['client_steps_per_second']:,.0f}",
                    "" if share is None else f"{share:.0%}",
                )
            )
    titles = (
        *("setting", "engine", "a round (mean)", "best loop (mean)", "× best loop", "in the mean"),
        *("client steps/s", "of float32 rate"),
    )
    return markdown(titles, rows, 2)


def peers(name: str) -> str:
    """The comparison with peers, as its own driver prints it."""
    sys.path.insert(0, str(HERE / "peers"))
    from table import table

    return str(table(read(name)))


def noise() -> str:
    """What the noise of one release costs, ordinary and hardened."""
    told = read("noise")
    means = told.get("mean_seconds", {})

    def seconds(name: str) -> str:
        mean = f" ({means[name]:.2f})" if name in means else ""
        return f"{told['seconds'][name]:.2f}{mean} s"

    rows = [
        (
            what,
            seconds(f"{name}_ordinary"),
            seconds(f"{name}_hardened"),
            f"{told[f'ratio_{name}']:.2f}",
        )
        for what, name in (("the noise", "noise"), ("a release of one upload", "release"))
    ]
    titles = (f"{told['parameters']:,} parameters", "ordinary (mean)", "hardened (mean)", "ratio")
    return markdown(titles, rows)


def end_to_end() -> str:
    """Where the time of a comparison goes."""
    told = read("end-to-end")
    rows = [(name, f"{share:.1%}") for name, share in told["shares"].items()]
    rows.append(("everything else", f"{1 - sum(told['shares'].values()):.1%}"))
    return markdown((f"of {told['seconds']:.0f} seconds", "share"), rows)


def scaling() -> list[str]:
    """Processes, the check of the model of costs, and what it says of larger federations."""
    sys.path.insert(0, str(HERE))
    import scaling as benchmark

    return benchmark.tables(read("scaling")).split("\n\n")


def production(name: str) -> str:
    """What production costs beside the same rounds as an experiment."""
    rows = []
    for line in read(name)["results"]:
        times = (_milliseconds(line["seconds"][mode]) for mode in line["engines"])
        ratios = (f"{line['ratio']:.2f}", _number(line, "ratio_of_means"))
        rows.append((line["workload"], *times, *ratios))
    titles = ("a round", "experiment (mean)", "production (mean)", "×", "in the mean")
    return markdown(titles, rows)


def secure_aggregation() -> str:
    """What hiding uploads costs a site and the server in a round."""

    def milliseconds(seconds: float) -> str:
        return f"{1e3 * seconds:.1f}" if seconds < 0.01 else f"{1e3 * seconds:.0f}"

    def size(count: float) -> str:
        return f"{count / 2**10:,.0f}"

    rows = []
    for line in read("secure-aggregation")["rows"]:

        def both(name: str, show: Callable[[float], str], line: dict[str, Any] = line) -> str:
            return f"{show(line[f'without_{name}'])} → {show(line[f'with_{name}'])}"

        parts = " + ".join(milliseconds(line[name]) for name in ("keys_s", "share_s", "masks_s"))
        times = both("site_s", milliseconds), parts, both("server_s", milliseconds)
        sizes = both("sent_bytes", size), size(line["received_bytes"])
        rows.append((str(line["sites"]), f"{line['numbers']:,}", *times, *sizes))
    titles = ("sites", "numbers", "a site, ms", "of that keys + share + masks")
    more = ("server, ms", "sent by a site, KiB", "keys received, KiB")
    return markdown((*titles, *more), rows, left=0)


def share_bounds() -> str:
    """The ε of noise in shares, and what the published bound gives for the same variance."""
    from pmtl.privacy.accounting import accountant, distributed
    from pmtl.privacy.plan import PrivacyPlan

    rows = []
    for z, rounds, delta in ((2, 1, 1e-5), (10, 12, 1e-3), (10, 100, 1e-3), (40, 100, 1e-5)):
        plan = PrivacyPlan(100, 100, "full", 1.0, z / 100, rounds, delta)
        bound = distributed.report(plan, 9, 3)["discrete_gaussians"]
        exact = accountant.epsilon(plan)
        rows.append((str(z), str(rounds), f"{delta:g}", f"{exact:.3f}", f"{bound:.3f}"))
    titles = ("noise multiplier", "releases", "δ", "ε here", "by the published bound")
    return markdown(titles, rows, left=0)


def federation() -> str:
    """What a message to each site and back costs, and what the processes need."""
    rows = []
    for told in (read("federation"), read("federation-30")):
        for line in told["rounds"]:
            memory = (line[f"{name}_peak_bytes"] / 2**20 for name in ("job", "server", "site"))
            names = ("seconds", "slowest_seconds", "start_seconds")
            times = (f"{line[name]:.2f} s" for name in names)
            size = f"{line['parameters']:,}"
            rows.append((str(told["sites"]), size, *times, *(f"{m:,.0f} MiB" for m in memory)))
    titles = (
        *("sites", "float32", "a round", "the slowest", "start and end of a job"),
        *("memory: the job's process", "the server's", "a site's"),
    )
    return markdown(titles, rows, 0)


def fedavg() -> str:
    """A round of NVFLARE's FedAvg and one of ours, and from submission to the result."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in read("federation-fedavg")["rounds"]:
        found.setdefault(line["who"], []).append(line)
    theirs, ours = found["NVFLARE's FedAvg"], found["pmtl"]
    rows = [
        (
            f"{one['parameters']:,}",
            *(f"{line['seconds']:.2f} s" for line in (one, other)),
            *(f"{line['whole_seconds']:.0f} s" for line in (one, other)),
        )
        for one, other in zip(theirs, ours, strict=True)
    ]
    whole = (f"from submission to the end, {theirs[0]['rounds']} rounds: NVFLARE", "pmtl")
    return markdown(("float32", "a round of NVFLARE's FedAvg", "of pmtl", *whole), rows, 0)


#: Page and mark → its table.
def networks() -> str:
    """The default method for networks beside training alone and its rivals."""
    names = ("alone", "personal", "algorithm_1", "ditto", "fedavg")
    titles = ("federation", "clients", "ε", "alone", "ours", "Algorithm 1", "Ditto", "FedAvg")
    rows = []
    for name, family in read("networks").items():
        for epsilon, line in family["epsilon"].items():
            scores = {one: f"{line[one]:#.4g}" if line[one] < 1e5 else "–" for one in names}
            if line["alone"] >= 1e4:  # squared errors in odd units
                scores = {one: f"{line[one]:.3g}" for one in names}
            scores["personal"] += f" ± {line['error']:.1g}"
            told = f"{name}: {family['about']}"
            rows.append((told, f"{family['m']}", epsilon, *(scores[one] for one in names)))
    return markdown(titles, rows)


TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("networks", "networks"): networks,
    ("benchmarks", "card"): lambda: engines("engines-h200"),
    ("benchmarks", "card-target"): lambda: engines("engines-h200-q100"),
    ("benchmarks", "cpu"): lambda: engines("engines-cpu"),
    ("benchmarks", "peers"): lambda: peers("peers-cpu"),
    ("benchmarks", "peers-card"): lambda: peers("peers-h200"),
    ("benchmarks", "production"): lambda: production("production-cpu"),
    ("benchmarks", "production-card"): lambda: production("production-h200"),
    ("benchmarks", "end-to-end"): end_to_end,
    ("federation", "federation"): federation,
    ("federation", "fedavg"): fedavg,
    ("secure-aggregation", "secure aggregation"): secure_aggregation,
    ("secure-aggregation", "bounds"): share_bounds,
    ("privacy", "hardened"): noise,
    ("scale", "processes"): lambda: scaling()[0],
    ("scale", "model"): lambda: scaling()[1],
    ("scale", "beyond"): lambda: scaling()[2],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for (page, mark), make in TABLES.items():
        table = make()
        if not options.write:
            print(f"{page}: {mark}\n\n{table}\n")
            continue
        file = DOCS / f"{page}.md"
        text = file.read_text(encoding="utf-8")
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)"
        replaced = re.sub(
            pattern, lambda m, table=table: f"{m[1]}{table}\n{m[2]}", text, flags=re.DOTALL
        )
        file.write_text(replaced, encoding="utf-8")


if __name__ == "__main__":
    main()
