"""Names of the user's own models, algorithms and so on."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

import pmtl
from pmtl import plugins
from pmtl.errors import PmtlError

ALGORITHM = """
from dataclasses import dataclass
from typing import ClassVar
from pmtl.algorithms import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    name: ClassVar[str] = "mine"
    strength: float = 1.0
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module `own_plugin` of the user's, in the present folder."""
    (tmp_path / "own_plugin.py").write_text(ALGORITHM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_plugin"
    sys.modules.pop("own_plugin", None)


def test_library_names_come_first():
    assert plugins.find("model", "a", {"a": 1}) == 1


def test_an_algorithm_is_found_by_its_path(module):
    found = pmtl.build_algorithm(f"{module}:Mine:strength=0.5")
    assert (found.name, found.strength) == ("mine", 0.5)


def test_a_run_with_it_can_be_resumed_by_name(module, tmp_path):
    run = pmtl.train(
        "synthetic:clients=4,samples=10",
        algorithm=f"{module}:Mine",
        privacy={"noise": 0.1, "rounds": 1},
        out=tmp_path / "run",
    )
    assert 'algorithm = "own_plugin:Mine:strength=1.0"' in (run.path / "config.toml").read_text()


def test_an_entry_point_is_found_by_its_name(module, monkeypatch):
    entry = EntryPoint("fedmine", f"{module}:Mine", "pmtl.algorithms")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry] if "algo" in group else [])
    assert pmtl.build_algorithm("fedmine:strength=2").strength == 2
    with pytest.raises(PmtlError, match=r"Known: .*fedmine.*pmtl.*own as package\.module:Name"):
        pmtl.build_algorithm("fedyours")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:Mine", "cannot be imported .ModuleNotFoundError"),
        ("own_plugin:Yours", "has no 'Yours'"),
        ("own_plugin:dataclass", "is not an algorithm"),
    ],
)
def test_what_cannot_be_found_is_said(module, name, sentence):
    with pytest.raises(PmtlError, match=sentence):
        pmtl.build_algorithm(name)


def test_where_the_library_has_none_nothing_is_listed():
    with pytest.raises(PmtlError, match=r"^There is no metric 'f1'\. Write your own as package"):
        plugins.find("metric", "f1", {})
