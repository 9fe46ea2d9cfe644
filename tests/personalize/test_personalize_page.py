"""The numbers of docs/personalize.md are those of the commands it names."""

from __future__ import annotations

import re
from pathlib import Path

import pmtl

PAGE = (Path(__file__).parents[2] / "docs/personalize.md").read_text(encoding="utf-8")


def test_the_left_column_is_what_the_commands_give():
    """Four of its cells anew; three of 1,232 test rows may fall otherwise on another machine."""
    table = PAGE.split("<!-- finetuned -->")[1].split("<!-- /finetuned -->")[0]
    cells = dict(re.findall(r"^\| ([^|]+?) \| ([\d.]+) \|", table, re.M))
    run = pmtl.train("synthetic", algorithm="pmtl", privacy=2.0, evaluate_every=0)
    before = run.evaluate()["test"]
    found = {f"before: {view}": before[view]["accuracy"] for view in ("shared", "personal")}
    for method, start in (("kl", "shared"), ("ewc", "personal")):
        scores = pmtl.finetune(run, method, start).evaluate()["test"]
        found[f"{method} from {start}"] = scores["finetuned"]["accuracy"]
    for name, accuracy in found.items():
        assert abs(accuracy - float(cells[name])) < 0.003, name
