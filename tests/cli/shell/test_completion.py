"""Completion in the shell: the names that the library knows, files, and no torch."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import types
from collections.abc import Iterable

import numpy as np
import pytest

from pmtl.algorithms import ALGORITHMS
from pmtl.audit.games import ALL_GAMES, GAMES
from pmtl.audit.setup import AuditSetup
from pmtl.cli import audit, data, finetune
from pmtl.cli.results import export
from pmtl.cli.shell.completion import completer
from pmtl.data.download import CATALOGUE
from pmtl.data.load import READERS, load
from pmtl.engines.choose import ENGINES
from pmtl.export.formats import FORMATS
from pmtl.models import MODELS
from pmtl.options import declared
from pmtl.personalize.methods import METHODS, SELECT
from pmtl.privacy.request import PrivacyRequest
from pmtl.privacy.schemes import SCHEMES
from pmtl.runs.callbacks import LIBRARY
from pmtl.runs.config import TrainConfig


def test_the_names_of_settings_are_those_of_the_library():
    known = {
        (TrainConfig, "algorithm"): {"auto", *ALGORITHMS},
        (TrainConfig, "model"): {"auto", *MODELS},
        (TrainConfig, "engine"): set(ENGINES),
        (TrainConfig, "mode"): {"experiment", "production"},
        (AuditSetup, "mode"): {"experiment", "production"},
        (PrivacyRequest, "sampling"): set(SCHEMES),
    }
    for (kind, name), names in known.items():
        offered = declared(kind)[name].about.names
        assert {value.partition(":")[0] for value in offered} == names, name


def test_the_names_of_other_options_are_those_of_the_library():
    known = {
        (export.export, "to"): set(FORMATS),
        (finetune.finetune, "method"): {*METHODS, SELECT, finetune.ALL},
        (audit.audit, "game"): {ALL_GAMES, *GAMES},
        (data.fetch, "name"): set(CATALOGUE),
    }
    for (command, name), names in known.items():
        about = inspect.signature(command).parameters[name].default
        assert set(about.autocompletion("")) == names
        assert "{" not in about.help


def test_a_reader_is_all_that_a_new_format_takes(tmp_path, monkeypatch):
    reader = types.ModuleType("pmtl.data.readers.lines")
    rows = {"x": np.eye(4), "y": [0, 1, 0, 1], "client": list("aabb")}
    reader.read_lines = lambda path: rows
    monkeypatch.setitem(sys.modules, reader.__name__, reader)
    monkeypatch.setitem(READERS.places, "jsonl", "lines:read_lines")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "visits.jsonl").touch()
    assert completer("data")("vis") == ["visits.jsonl"]
    assert load("visits.jsonl").clients == ("a", "b")


SCHEME = """
import sys
from pmtl.privacy import schemes
class Turns(schemes.Full):
    in_help = "one after the other"
schemes.SCHEMES["turns"] = Turns
from pmtl.cli.shell.completion import completer
from pmtl.options import declared
from pmtl.privacy.request import PrivacyRequest
about = declared(PrivacyRequest)["sampling"].about
print(completer("sampling", about.names)("tu"))
assert ", turns (one after the other) or a scheme of your own" in about.help
print(PrivacyRequest(noise=1.0, sampling="turns").resolve(5).scheme.in_help)
"""


def test_a_class_is_all_that_a_new_sampling_scheme_takes():
    done = subprocess.run(
        [sys.executable, "-c", SCHEME], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "['turns']\none after the other\n"


COMPLETE = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "scipy", "pyarrow", "rich"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
sys.argv = ["pmtl"]
from pmtl.cli.app import main
main()
"""


def complete(*words: str) -> list[str]:
    """What bash offers after these words, of which the last is being typed."""
    asked = {"_PMTL_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(("pmtl", *words))}
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE],
        env={**os.environ, **asked, "COMP_CWORD": str(len(words))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def begin_with(letters: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(letters)]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["train", "--algorithm", "p"], begin_with("p", ALGORITHMS)),
        (["compare", "--algorithm", "fed"], begin_with("fed", ALGORITHMS)),
        (["train", "--sampling", ""], [*SCHEMES]),
        (["train", "--callback", ""], [*LIBRARY]),
        (["export", "run", "--to", "o"], begin_with("o", FORMATS)),
        (["train", "--share", "s"], ["subspace:k="]),
        (["audit", "--mode", ""], ["experiment", "production"]),
        (["data", "fetch", "femnist-"], begin_with("femnist-", CATALOGUE)),
    ],
)
def test_the_shell_offers_values_without_torch(words, offered):
    assert complete(*words) == offered


def test_data_and_runs_are_offered_as_files_and_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("visits.csv", "notes.txt", ".hidden.csv", "weights.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "runs/one").mkdir(parents=True)
    data, run, init = completer("data"), completer("run"), completer("init")
    assert data is not None
    assert run is not None
    assert init is not None
    assert data("") == ["synthetic", "runs/", "visits.csv"]
    assert data("vi") == ["visits.csv"]
    assert init("w") == ["weights.safetensors"]
    assert run("runs/o") == ["runs/one/"]
    assert run("nowhere/") == []
    assert completer("epsilon") is None
