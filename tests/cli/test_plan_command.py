"""`pmtl plan`: words, JSON, TOML and a plot, from public numbers; mistakes are sentences."""

from __future__ import annotations

import json

import pytest

import pmtl
from pmtl.runs.config import read_config


def test_it_recommends_in_words(pmtl_command):
    done = pmtl_command("plan", "--clients", 60, "--parameters", 66, "--epsilon", 1)
    assert done.status == 0, done.err
    assert done.out.startswith(
        "With 60 clients and 66 shared numbers at ε = 1: expect training alone to be as good."
    )
    assert 'algorithm = "local"' in done.out


def test_json_is_what_python_returns(pmtl_command):
    done = pmtl_command(
        *("plan", "--clients", 300, "--columns", 8, "--classes", 3, "--epsilon", 2, "--json"),
        *("--rounds", 5, "--clip", 1, "--delta", 1e-4, "--rows", 20),
    )
    assert done.status == 0, done.err
    privacy = {"epsilon": 2.0, "rounds": 5, "clip": 1.0, "delta": 1e-4}
    plan = pmtl.plan(300, columns=8, classes=3, rows=20, privacy=privacy)
    answer = json.loads(done.out)
    assert answer["numbers"] == 27
    assert answer == json.loads(json.dumps(plan.to_dict()))


def test_the_settings_and_the_plot_are_written(tmp_path, pmtl_command):
    settings, plot = tmp_path / "plan.toml", tmp_path / "plan.svg"
    done = pmtl_command(
        *("plan", "--clients", 300, "--columns", 8, "--cohort", 40, "--rounds", 5),
        *("--out", settings, "--plot", plot),
    )
    assert done.status == 0, done.err
    assert read_config(settings).privacy.cohort == 40
    assert "<svg" in plot.read_text()
    assert str(settings) in done.out
    assert str(plot) in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--parameters", 5], "--clients is missing"),
        (["--clients", 50], "--parameters, or --columns"),
        (["--clients", 0, "--parameters", 5], "at least 1"),
        (["--clients", 50, "--parameters", 5, "--epsilon", "nan"], "epsilon must be a number"),
        (["--clients", 50, "--parameters", 5, "--sampling", "some"], "no sampling scheme 'some'"),
        (["--clients", 50, "--columns", 5, "--model", "logistc"], "'logistic'"),
        (["--clients", 50, "--parameters", 5, "--plot", "plan.gif"], "no known ending"),
        (["--clients", 50, "--parameters", 5, "--out", "no/such/x.toml"], "could not be written"),
        (["--clients", 50, "--parameters", 5, "--plot", "no/such/x.svg"], "could not be written"),
    ],
)
def test_mistakes_are_sentences(arguments, words, pmtl_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = pmtl_command("plan", *arguments)
    assert refused.status == 2
    assert words in refused.err
    assert "Traceback" not in refused.err
