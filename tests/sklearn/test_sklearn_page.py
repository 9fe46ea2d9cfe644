"""docs/scikit-learn.md is true: its examples run, one after the other, and print what it says."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from pmtl.errors import PmtlWarning

PAGE = (Path(__file__).parents[2] / "docs/scikit-learn.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for block in BLOCKS:
            exec(block, names)
            printed.append(capsys.readouterr().out)
    score, epsilon = map(float, printed[0].split())
    assert score > 0.9
    assert epsilon == pytest.approx(2)
    assert len(printed) == 5
    own = [float(number) for number in re.findall(r"0\.\d+", printed[1])]
    ranks = [float(number) for number in re.findall(r"0\.\d+", printed[2])]
    assert min(own) > 0.65
    assert min(ranks) > 0.85
    assert f"# {printed[3].strip()}\n" in PAGE
    assert printed[4].strip().endswith("True")
    assert next((tmp_path / "runs").iterdir()).name in printed[4]
    sentences = [str(one.message) for one in told if issubclass(one.category, PmtlWarning)]
    assert any(s.startswith("This search makes 5 private fits on 100 clients.") for s in sentences)
    assert not any("without groups" in sentence for sentence in sentences)
