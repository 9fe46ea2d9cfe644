"""`run.json` is checked when it is read: what is missing, unknown or wrong is a sentence."""

from __future__ import annotations

import math
import warnings
from dataclasses import fields, replace

import pytest
import torch
from torch import nn

import pmtl
from pmtl import storage as files
from pmtl.errors import PmtlWarning
from pmtl.runs.facts import FORMAT, RunFacts, rebuild_model


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
        ({"format": 2, "colour": "red"}, "no entry of .* named 'colour'"),
        ({"plugin_folder": 3}, "'plugin_folder' is not valid"),
        *(({name: []}, f"'{name}' is damaged") for name in ("blocks", "secure")),
        *(({name: {}}, f"'{name}' is damaged") for name in ("choice", "written")),
        ({"population_epsilon": 10**400}, "'population_epsilon' is not valid"),
        ({"bounds": {}}, "'bounds' cannot be read"),
        ({"bounds": {"features": [[1]], "target": None}}, "'bounds' cannot be read"),
        ({"text": {}}, "no entry 'columns' in the text rule"),
        ({"text": {"columns": ["a"], "tokenised": "no"}}, "'tokenised' is not valid: 'no'"),
        ({"schema": {"colour": 1}}, "it has no entry 'colour'"),
        ({"public_files": {"init": "start.safetensors"}}, "'public_files' is not valid"),
        ({"public_files": {"init": {"file": "a"}}}, "'public_files' is damaged"),
    ],
)
def test_a_wrong_entry_is_a_sentence(changes, words, folder):
    values = files.read_json(folder / "run.json") | changes
    with pytest.raises(pmtl.PmtlError, match=words):
        RunFacts.from_dict(values, "run.json")


@pytest.mark.parametrize("block", [-1, 1, 10**18, 2**64])
def test_blocks_that_the_shared_weights_do_not_have_are_a_sentence(block, folder):
    values = files.read_json(folder / "run.json")
    try:
        files.write_json(folder / "run.json", values | {"blocks": [0] * 11 + [block]})
        with pytest.raises(pmtl.PmtlError, match=r"run\.json: the entry 'blocks' is damaged"):
            pmtl.load_run(folder)
    finally:
        files.write_json(folder / "run.json", values)


def test_a_missing_entry_is_a_sentence(folder):
    values = files.read_json(folder / "run.json")
    del values["plan"]
    with pytest.raises(pmtl.PmtlError, match=r"no entry 'plan' in run\.json"):
        RunFacts.from_dict(values, "run.json")


def test_an_earlier_format_may_lack_what_has_a_default_and_say_more(folder):
    values = files.read_json(folder / "run.json") | {"colour": "red"}
    for name in ("format", "noise_key", "memory"):
        del values[name]
    facts = RunFacts.from_dict(values, "run.json")
    assert facts == replace(pmtl.load_run(folder).facts, noise_key=None, memory=None)


class Bent(nn.Module):
    """A linear layer behind a function, a constant and a frozen parameter."""

    def __init__(self, columns: int, outputs: int, bend=torch.relu, level=1.0, frozen=0.5):
        super().__init__()
        self.bend, self.level = bend, level
        self.fixed = nn.Parameter(torch.tensor(frozen), requires_grad=False)
        self.head = nn.Linear(columns, outputs)

    def forward(self, x):
        return self.head(self.bend(x) * self.level * self.fixed)


def relu(input_shape, outputs):
    return Bent(input_shape[0], outputs)


def other_start(input_shape, outputs):
    made = Bent(input_shape[0], outputs)
    nn.init.ones_(made.head.weight)
    return made


def sigmoid(input_shape, outputs):
    return Bent(input_shape[0], outputs, torch.sigmoid)


def louder(input_shape, outputs):
    return Bent(input_shape[0], outputs, level=2.0)


def refrozen(input_shape, outputs):
    return Bent(input_shape[0], outputs, frozen=0.25)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "run"
    pmtl.train(
        "synthetic:clients=6", relu, "pmtl", {"rounds": 1, "noise": 0}, out=path, local={"steps": 1}
    )
    return path


@pytest.mark.parametrize("factory", [relu, other_start])
def test_the_model_that_was_trained_gives_no_warning(own, factory):
    """The weights that training began with do not matter: the trained ones replace them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pmtl.load_run(own, model=factory).flat_model.changed is None


@pytest.mark.parametrize("factory", [sigmoid, louder, refrozen])
def test_a_model_that_changed_since_training_is_noticed(own, factory):
    with pytest.warns(PmtlWarning, match=f"{factory.__name__}.*changed since this run was trained"):
        run = pmtl.load_run(own, model=factory)
    assert "train again" in run.flat_model.changed


def test_runs_without_a_record_of_the_model_or_of_another_python_are_read(own):
    facts = pmtl.load_run(own, model=relu).facts
    for known in ({"model_identity": None}, {"python": "3.2.1"}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rebuild_model(replace(facts, **known), sigmoid)
