"""docs/tracking.md is true: its commands and its code are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tracking.md").read_text(encoding="utf-8")


def test_the_code_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(code, "tracking.md", "exec"), {})
    assert re.fullmatch(r"<Run of pmtl.*in memory> \d+ True\n", capsys.readouterr().out)


def test_every_command_runs(tmp_path, monkeypatch, pmtl_command):
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # Restored after the test.
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    commands = [line[2:] for line in PAGE.splitlines() if line.startswith("$ pmtl ")]
    assert len(commands) == 2
    for command in commands:
        done = pmtl_command(*shlex.split(command)[1:], "--rounds", 2)
        assert done.status == 0, done.err
    assert list((tmp_path / "tensorboard/visits").iterdir())
    assert (tmp_path / "runs/visits/metrics.csv").exists()
    assert list((tmp_path / "mlruns").glob("*/*/metrics/train_loss"))
