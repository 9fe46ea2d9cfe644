"""The pages on benchmarks show what was measured: their tables are those of the results."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load_tables():
    place = ROOT / "benchmarks/tables.py"
    spec = importlib.util.spec_from_file_location("benchmark_tables", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLES = load_tables()


@pytest.mark.parametrize(("page", "mark"), TABLES.TABLES)
def test_the_tables_are_the_results(page, mark, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    shown = text.split(f"<!-- {mark} -->")[1].split(f"<!-- /{mark} -->")[0].strip()
    assert shown == TABLES.TABLES[page, mark]()


def results(name):
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())["results"]


def ours(name, q, batch, **settings):
    """What `auto` was measured at on the CNN."""
    wanted = {"task": "cnn", "q": q, "batch": batch, **settings}
    found = [result for result in results(name) if wanted.items() <= result.items()]
    assert found
    for result in found:
        (line,) = (line for line in result["contenders"] if line["contender"] == "pmtl auto")
        yield line


def ratios(name, workload, peer=None, of="ratio"):
    """How many times as quick as each peer, or as one of them in its quickest variant."""
    lines = [line for line in results(name) if line["workload"] == workload]
    lines = [line for line in lines if peer in (None, line["peer"])]
    assert lines
    if of == "mean":
        return [line["theirs"]["mean"] / line["ours"]["mean"] for line in lines]
    return [line["ratio"] for line in lines]


def threads_and_processes():
    told = json.loads((ROOT / "benchmarks/results/convolutions-cpu.json").read_text())
    both = [told[way] for way in ("processes", "threads")]
    rounds = (f"{1000 * way['round']:.0f}" for way in both)
    return *rounds, str(told["rounds"]), *(f"{way['run']:.1f}" for way in both)


def times_loop():
    """How many times as fast as the best loop, in both tables: in the median, and in the mean."""
    lines = [
        *ours("engines-h200", 100, 10, tf32=False),
        *ours("engines-h200-q100", 100, 10, tf32=False),
    ]
    medians = (f"{line['times_best_loop']:.3g}" for line in lines)
    return *medians, *(f"{line['times_best_loop_mean']:.0f}" for line in lines)


#: What the page says in words, and whether the results say so, too.
CLAIMS = {
    "100 times the plain loop at q = 100, B = 10 is met with TF32": lambda: all(
        line["times_loop"] >= 100 for line in ours("engines-h200-q100", 100, 10, tf32=True)
    ),
    "At q = 1000 the target is met with room": lambda: all(
        line["times_loop"] >= 120 for line in ours("engines-h200", 1000, 10)
    ),
    "A quarter of the card's float32 rate at q = 1000, B = 32: met": lambda: all(
        line["share_of_float32_rate"] >= 0.25 for line in ours("engines-h200", 1000, 32, tf32=False)
    ),
    "the target of five times the fastest peer is met": lambda: (
        {line["peer"] for line in results("peers-cpu")} == {"pfl", "flower", "fedjax"}
        and min(ratios("peers-cpu", "small")) >= 5
    ),
    "about seven times FedJAX and eight times pfl-research": lambda: (
        6.5 < min(ratios("peers-cpu", "small", "fedjax", "mean")) < 7.7
        and 7.4 < min(ratios("peers-cpu", "small", "pfl", "mean")) < 8.5
    ),
    "(FedJAX, and nearly the same with": lambda: (
        min(ratios("peers-cpu", "cnn", of="mean"))
        == min(ratios("peers-cpu", "cnn", "fedjax", "mean"))
        > min(ratios("peers-cpu", "cnn", "pfl", "mean")) - 0.03
    ),
    "With B = 10 a loop by hand with two threads is as fast as ours": lambda: all(
        0.95 < line["times_best_loop_mean"] < 1.05 for line in ours("engines-cpu", 20, 10)
    ),
    "ours is two orders of magnitude quicker than pfl-research": lambda: (
        min(ratios("peers-h200", "cohort", "pfl")) >= 100
    ),
    "about fifty times as quick as FedJAX": lambda: (
        45 < min(ratios("peers-h200", "cohort", "fedjax")) < 60
    ),
}
#: Sentences of the page with numbers, and what the results say they are.
NUMBERS = {
    r"(\S+) in the first table and (\S+) in the second, (\d+) and (\d+) in the mean": times_loop,
    r"a round takes (\d+) ms instead of (\d+) ms, "
    r"but a run of (\d+) rounds takes (\S+) s instead of (\S+) s": threads_and_processes,
    r"whole run is missed: it is ([\d.]+) \(FedJAX": lambda: (
        f"{min(ratios('peers-cpu', 'cnn', 'fedjax', 'mean')):.2f}",
    ),
    r"The first round, which compiles, took between (\d+) and (\d+) seconds": lambda: tuple(
        f"{pick(first_rounds()):.0f}" for pick in (min, max)
    ),
}


def first_rounds():
    """Seconds of the first round of every setting that was compiled."""
    for name in ("engines-h200", "engines-h200-q100"):
        for result in results(name):
            assert result["auto"] == "axis, compiled"
            lines = result["contenders"]
            yield from (line["first"] for line in lines if line["contender"] == "pmtl auto")


def test_the_page_on_graphics_cards_has_numbers_of_the_results():
    page = " ".join((ROOT / "docs/how-to/gpu.md").read_text(encoding="utf-8").split())
    (line,) = ours("engines-h200-q100", 100, 10, tf32=False)
    assert f"a round took {1000 * line['median']:.1f} ms on one H200" in page
    loop = 1000 * line["median"] * line["times_best_loop"]
    assert f"on the same card took {loop:.1f} ms" in page
    assert "The first round, which compiles, took between 1 and 25 seconds" in page


@pytest.mark.parametrize("words", CLAIMS)
def test_what_the_page_says_in_words_was_measured(words):
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert words in " ".join(page.split())
    assert CLAIMS[words]()


@pytest.mark.parametrize("sentence", NUMBERS)
def test_the_numbers_in_its_sentences_are_those_of_the_results(sentence):
    page = " ".join((ROOT / "docs/benchmarks.md").read_text(encoding="utf-8").split())
    (found,) = re.finditer(sentence, page)
    assert found.groups() == NUMBERS[sentence]()
