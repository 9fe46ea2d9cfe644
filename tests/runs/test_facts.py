"""`run.json` is checked when it is read: what is missing, unknown or wrong is a sentence."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest

import pmtl
from pmtl import storage as files
from pmtl.runs.facts import FORMAT, RunFacts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("facts") / "run"
    data = "synthetic:clients=12,samples=8"
    pmtl.train(data, privacy={"rounds": 1}, local={"steps": 1}, out=path)
    return path


def test_facts_survive_their_file(folder, tmp_path):
    facts = pmtl.load_run(folder).facts
    assert facts.state == "complete"
    spent = replace(facts, population_epsilon=math.inf, charged={})
    for one in (facts, spent):
        files.write_json(tmp_path / "run.json", one.to_dict())
        assert RunFacts.from_dict(files.read_json(tmp_path / "run.json"), "run.json") == one


def test_the_file_has_a_format_and_all_facts(folder):
    values = files.read_json(folder / "run.json")
    assert values.pop("format") == FORMAT
    assert set(values) == {field.name for field in fields(RunFacts)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 99}, "format 99.*version that wrote it"),
        ({"format": "new"}, "format 'new'"),
        ({"clients": None}, "'clients' is not valid"),
        ({"clients": ["a", 3]}, "'clients' is not valid"),
        ({"shares": 1}, "'shares' is not valid"),
        ({"parameters": True}, "'parameters' is not valid"),
        ({"task": "clustering"}, "'task' is not valid"),
        ({"plan": None}, "'plan' is not valid"),
        ({"plan": 3}, "'plan' cannot be read"),
        ({"plan": {}}, "privacy plan lacks"),
        ({"charged": [{"count": 0}]}, "'charged' cannot be read"),
        ({"colour": "red"}, "no entry of .* named 'colour'"),
    ],
)
def test_a_wrong_entry_is_a_sentence(changes, words, folder):
    values = files.read_json(folder / "run.json") | changes
    with pytest.raises(pmtl.PmtlError, match=words):
        RunFacts.from_dict(values, "run.json")


def test_a_missing_entry_is_a_sentence(folder):
    values = files.read_json(folder / "run.json")
    del values["plan"]
    with pytest.raises(pmtl.PmtlError, match=r"run.json .*no entry 'plan'"):
        RunFacts.from_dict(values, "run.json")


def test_an_earlier_format_may_lack_what_has_a_default_and_say_more(folder):
    values = files.read_json(folder / "run.json") | {"colour": "red"}
    for name in ("format", "noise_key", "memory"):
        del values[name]
    facts = RunFacts.from_dict(values, "run.json")
    assert facts == replace(pmtl.load_run(folder).facts, noise_key=None, memory=None)
