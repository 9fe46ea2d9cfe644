"""The tables of docs/benchmarks.md and docs/privacy.md, from the results that are checked in.

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
                    f"{line['median'] * 1e3:.1f} ms",
                    f"{best['median'] * 1e3:.1f} ms",
                    f"{line['times_best_loop']:.2f}",
                    f"{line['client_steps_per_second']:,.0f}",
                    "" if share is None else f"{share:.0%}",
                )
            )
    titles = (
        *("setting", "engine", "a round", "best loop", "× best loop", "client steps/s"),
        "of float32 rate",
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
    seconds = told["seconds"]
    rows = [
        (
            what,
            f"{seconds[f'{name}_ordinary']:.2f} s",
            f"{seconds[f'{name}_hardened']:.2f} s",
            f"{told[f'ratio_{name}']:.2f}",
        )
        for what, name in (("the noise", "noise"), ("a release of one upload", "release"))
    ]
    titles = (f"{told['parameters']:,} parameters", "ordinary", "hardened", "ratio")
    return markdown(titles, rows)


def convolutions() -> str:
    """Single convolutions, the library's and with fewer products."""
    rows = [
        (
            line["title"],
            f"{1e3 * line['library']:.2f} ms",
            f"{1e3 * line['fewer']:.2f} ms",
            f"{line['library'] / line['fewer']:.2f}",
            "yes" if line["chosen"] else "no",
        )
        for line in read("steps")["convolutions"]
    ]
    return markdown(("10 images, one core", "library", "fewer products", "×", "chosen"), rows)


def steps() -> str:
    """Steps of a client per thread."""
    told = read("steps")
    name = {"library": "the library's convolution", "fewer": "fewer products"}
    rows = []
    for way in ("library", "fewer"):
        plain, recorded = (told["steps"][f"{way}, {how}"] for how in ("from Python", "recorded"))
        rows.append((name[way], f"{1e3 * plain:.2f} ms", f"{1e3 * recorded:.2f} ms"))
    titles = (f"{told['machine']['threads']} clients, each a step", "from Python", "recorded")
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
        experiment, secret = (line["seconds"][mode]["median"] for mode in line["engines"])
        times = (f"{1e3 * experiment:.1f} ms", f"{1e3 * secret:.1f} ms", f"{line['ratio']:.2f}")
        rows.append((line["workload"], *times))
    return markdown(("a round", "experiment", "production", "×"), rows)


#: Page and mark → its table.
TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("benchmarks", "card"): lambda: engines("engines-h200"),
    ("benchmarks", "card-target"): lambda: engines("engines-h200-q100"),
    ("benchmarks", "cpu"): lambda: engines("engines-cpu"),
    ("benchmarks", "steps"): steps,
    ("benchmarks", "convolutions"): convolutions,
    ("benchmarks", "peers"): lambda: peers("peers-cpu"),
    ("benchmarks", "peers-card"): lambda: peers("peers-h200"),
    ("benchmarks", "production"): lambda: production("production-cpu"),
    ("benchmarks", "production-card"): lambda: production("production-h200"),
    ("benchmarks", "end-to-end"): end_to_end,
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
