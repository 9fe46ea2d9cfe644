"""Break the privacy-relevant code on purpose, one line at a time, and see whether a test notices.

`make mutants` copies the sources and tests aside, applies one mutant of `mutants.toml` after the
other to the copy, runs the test files that hold its promise, and prints a table: caught, survived,
or stale (the line that it changes is no longer there, so nothing was tried). `--json FILE` writes
the same for programs, `--only TEXT …` tries those whose promise or file has one of the texts in it.
The tests have to pass without a mutant first. The status is 1 if any mutant survived or is stale.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", "README.md", "pyproject.toml", "CONTRIBUTING.md", "Makefile")
#: Seconds that the tests of one mutant may take; a hang counts as caught.
LIMIT = 600


@dataclass(frozen=True)
class Mutant:
    """One line of one file, changed; the promise that breaks; the tests that must notice."""

    file: str
    old: str
    new: str
    promise: str
    tests: str


def read() -> list[Mutant]:
    """The mutants of `mutants.toml`."""
    values = tomllib.loads((ROOT / "tests/mutants.toml").read_text(encoding="utf-8"))
    return [Mutant(**mutant) for mutant in values["mutant"]]


def try_out(mutant: Mutant, place: Path) -> tuple[str, float]:
    """What came of a mutant, and the seconds it took."""
    file = place / "src/pmtl" / mutant.file
    text = file.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return "stale", 0.0
    start = time.monotonic()
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        outcome = "survived" if passes(mutant.tests.split(), place) else "caught"
    except subprocess.TimeoutExpired:
        outcome = "caught"
    finally:
        file.write_text(text, encoding="utf-8")
    return outcome, time.monotonic() - start


def passes(tests: list[str], place: Path) -> bool:
    """Whether the test files pass in the copy; an error while they are collected is a failure."""
    names = [f"tests/{name}" for name in tests]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *names],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place / "src")},
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode == 0


def main() -> int:
    """Try all mutants; 1 if any survived or is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of promises or files' names")
    given = parser.parse_args()
    chosen = [m for m in read() if any(t in m.promise or t in m.file for t in given.only)]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place / name)
            else:
                shutil.copy(ROOT / name, place / name)
        for tests in sorted({mutant.tests for mutant in chosen}):
            if not passes(tests.split(), place):
                print(f"These fail without any mutant: {tests}")
                return 1
        for mutant in chosen:
            outcome, seconds = try_out(mutant, place)
            results.append({**asdict(mutant), "outcome": outcome, "seconds": round(seconds, 1)})
            line = f"| {outcome} | {mutant.file} | {mutant.promise} | {seconds:.0f} s |"
            print(line, flush=True)
    caught = sum(result["outcome"] == "caught" for result in results)
    print(f"{caught} of {len(results)} mutants were caught.")
    if given.json:
        Path(given.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
