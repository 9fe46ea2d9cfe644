"""Completion in the shell: the names that the library knows, files, and no torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pmtl.algorithms import ALGORITHMS
from pmtl.audit.games import ALL_GAMES, GAMES
from pmtl.cli.finetune import ALL
from pmtl.cli.shell.completion import ENDINGS, VALUES, completer
from pmtl.data.download import CATALOGUE
from pmtl.data.load import READERS
from pmtl.engines.choose import ENGINES
from pmtl.export.formats import FORMATS
from pmtl.models import MODELS
from pmtl.personalize.methods import METHODS, SELECT
from pmtl.privacy.noise import MODES
from pmtl.privacy.sampling import SCHEMES


def test_the_names_are_those_of_the_library():
    known = {
        "algorithm": {"auto", *ALGORITHMS},
        "model": {"auto", *MODELS},
        "engine": set(ENGINES),
        "mode": set(MODES),
        "sampling": set(SCHEMES),
        "format": set(FORMATS),
        "method": {*METHODS, SELECT, ALL},
        "game": {ALL_GAMES, *GAMES},
        "data set": set(CATALOGUE),
    }
    for what, names in known.items():
        assert {value.partition(":")[0] for value in VALUES[what]} == names, what
    assert {ending.removeprefix(".") for ending in ENDINGS} == set(READERS)


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


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["train", "--algorithm", "p"], ["pooling", "pmtl", "ppsgd"]),
        (["compare", "--algorithm", "fed"], ["fedavg", "fedadam", "fedprox"]),
        (["train", "--sampling", ""], ["full", "poisson", "fixed"]),
        (["export", "run", "--to", "o"], ["onnx"]),
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
