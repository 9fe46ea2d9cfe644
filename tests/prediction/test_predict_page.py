"""docs/predict.md: its commands and its code work as they are shown."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv
from visits import features, visits

import pmtl
from pmtl.prediction import models, source
from pmtl.simulation.measures import BINS, MEASURES

PAGE = (Path(__file__).parents[2] / "docs/predict.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def test_the_commands_and_the_code_work_in_their_order(tmp_path, monkeypatch, pmtl_command, capfd):
    monkeypatch.chdir(tmp_path)
    csv.write_csv(visits(), "visits.csv")
    csv.write_csv(visits(seed=1), "new.csv")
    elsewhere = visits(seed=2)
    names = pa.array([f"new {name}" for name in elsewhere.column("hospital").to_pylist()])
    csv.write_csv(elsewhere.set_column(2, "hospital", names), "elsewhere.csv")
    for line in "".join(blocks("bash")).splitlines():
        command = shlex.split(line)[1:]
        if command[0] == "train":
            command += ["--rounds", "2"]
        done = pmtl_command(*command)
        assert done.status == 0, (line, done.err)
        if "--json" in command:
            assert json.loads(done.out)
    assert Path("clients.csv").read_text().startswith('"client","rows","model","accuracy","auc"')
    new = visits(seed=1)
    values = {"pmtl": pmtl, "rows": features(new), "names": new.column("hospital").to_pylist()}
    for code in blocks("python"):
        exec(compile(code, "predict.md", "exec"), values)
    assert capfd.readouterr().out.startswith("12 [")
    assert len(values["frame"]) == 240
    assert list(values["run"].per_client("accuracy+auc")) == [
        *("client", "rows", "model", "accuracy", "auc")
    ]
    assert np.isfinite(values["table"]["log_loss"][values["table"]["rows"] > 0]).all()


def test_its_numbers_are_those_of_the_code():
    assert f"at most {source.MOST_ROWS:,} rows" in PAGE
    assert f"or {models.MOST_ROWS:,} of them" in PAGE
    assert f"fewer than {models.FEW_ROWS} rows are warned about" in PAGE.replace("\n", " ")
    assert f"in {BINS} bins" in PAGE
    lines = {line.split(" | ")[0].strip("| "): line for line in PAGE.splitlines() if "|" in line}
    for row, task in (
        ("classes", "classification"),
        ("several labels", "multilabel"),
        ("numbers", "regression"),
    ):
        assert re.findall(r"`(\w+)`", lines[row]) == list(MEASURES[task])
