"""docs/report.md is true: its commands and its code are run, its pictures are there and small."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pmtl.report.page import charts, clients

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "report.md").read_text(encoding="utf-8")
#: Fewer rounds and seeds, so that a command takes a second.
QUICK = {"train": ["--rounds", "2"], "compare": ["--rounds", "2", "--seeds", "1"], "report": []}


def test_every_command_and_the_code_run(tmp_path, monkeypatch, pmtl_command, capfd):
    monkeypatch.chdir(tmp_path)
    commands = [line[2:] for line in PAGE.splitlines() if line.startswith("$ pmtl ")]
    assert len(commands) == 5
    for command in commands:
        words = shlex.split(command)[1:]
        done = pmtl_command(*words, *QUICK[words[0]])
        assert done.status == 0, done.err
    assert {file.name for file in tmp_path.glob("*.html")} == {"report.html", "all.html"}
    assert 8e5 < (tmp_path / "report.html").stat().st_size < 1e6, "as the page says"
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(code, "report.md", "exec"), {})
    assert capfd.readouterr().out.startswith("Verdict: ")


def test_the_limits_are_those_of_the_code():
    assert f"Beyond {clients.MAX_POINTS:,} clients" in PAGE
    assert f"at\n  most {charts.MOST_POINTS} points" in PAGE


@pytest.mark.parametrize("name", re.findall(r"images/([\w-]+\.png)", PAGE))
def test_pictures_are_there_and_small(name):
    picture = (DOCS / "images" / name).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000
