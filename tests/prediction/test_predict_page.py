"""docs/predict.md: its commands and its code work as they are shown."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from pmtl.prediction import models, source
from pmtl.simulation.measures import BINS, MEASURES

PAGE = (Path(__file__).parents[2] / "docs/predict.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def test_the_commands_and_the_code_work_in_their_order(tmp_path, monkeypatch, pmtl_command, capfd):
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks("bash")).splitlines():
        command = shlex.split(line, comments=True)[1:]
        done = pmtl_command(*command)
        assert done.status == 0, (line, done.err)
        if "--json" in command:
            assert json.loads(done.out)
    assert Path("clients.csv").read_text().startswith('"client","rows","model","accuracy","auc"')
    values: dict[str, Any] = {}
    for code in blocks("python"):
        exec(compile(code, "predict.md", "exec"), values)
    assert capfd.readouterr().out.startswith("200 [")
    assert len(values["frame"]) == len(values["new"]) == 600
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
