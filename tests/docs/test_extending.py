"""docs/extending.md is true: its files are written, its commands are run, its numbers counted."""

from __future__ import annotations

import inspect
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import pmtl
from pmtl.experiments.compare import compare
from pmtl.federation.nvflare.job import write_job
from pmtl.sklearn import PMTLClassifier

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python title=\"(\S+)\"\n(.*?)```", PAGE, re.S))
#: A reader and a scheme of one's own are two files each: the second is the test.
TESTS = ["test_jsonl.py", "test_groups.py"]
COMMANDS = [line[2:] for line in PAGE.splitlines() if line.startswith("$ pmtl ")]
#: Fewer rounds and seeds, so that a command takes a second.
QUICK = {"train": ["--rounds", "2"], "compare": ["--rounds", "2", "--seeds", "1", "--out", "c"]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files of the page, in the present folder."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (rows,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(rows, "extending.md", "exec"), {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_the_page_has_its_examples():
    examples = {"fedrep.py", "jsonl.py", "groups.py", "shares.py", "watch.py"}
    assert set(FILES) == {*examples, *TESTS}
    assert len(COMMANDS) == 7


@pytest.mark.parametrize("name", TESTS)
def test_the_tests_of_the_page_pass(folder, name):
    sys.path.insert(0, str(folder))
    (test,) = (part for name, part in runpy.run_path(name).items() if name.startswith("test_"))
    test(*[folder] * len(inspect.signature(test).parameters))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(folder, pmtl_command, command):
    words = shlex.split(command)[1:]
    quick = [] if words[0] == "privacy" else QUICK[words[0]]
    done = pmtl_command(*words, *quick)
    assert done.status == 0, done.err


def test_an_algorithm_is_one_file_of_at_most_forty_lines():
    assert len(FILES["fedrep.py"].splitlines()) <= 40


def test_fedrep_shares_the_body_and_keeps_the_heads(folder):
    run = pmtl.train(
        "synthetic:clients=6,samples=20",
        algorithm="fedrep:FedRep:head=*.bias",
        privacy={"noise": 0.0, "clip": float("inf"), "rounds": 3},
        out=folder / "run",
    )
    shared = run.shared_for(run.data.clients[0]).state_dict()
    personal = [run.personal(client).state_dict() for client in run.data.clients]
    names = [name for name in shared if name.endswith("bias")]
    assert names
    assert len({tuple(part[names[0]].tolist()) for part in personal}) == 6, "heads are personal"
    for name in set(shared) - set(names):
        assert all((part[name] == shared[name]).all() for part in personal), "the body is shared"
    config = (folder / "run" / "config.toml").read_text()
    assert 'algorithm = "fedrep:FedRep:head=*.bias"' in config


def test_the_callback_says_every_round(folder, pmtl_command):
    done = pmtl_command("train", "--callback", "watch:Watch", "--rounds", "2", "--noise", "1")
    assert "round 1 of 2\nround 2 of 2\ndone" in done.out


def test_the_exceptions_are_stated_and_true(tmp_path):
    layout = (Path(__file__).parents[2] / "docs/architecture.md").read_text(encoding="utf-8")
    for page in (" ".join(PAGE.split()), " ".join(layout.split())):
        assert "imports no code that a job or a message names" in page
        assert re.search("omparisons and (the )?estimators .{0,20}take no callbacks", page)
    assert "callbacks" not in inspect.signature(compare).parameters
    assert "callbacks" not in PMTLClassifier().get_params()
    for config in ({"metric": "shares:share_right"}, {"privacy": {"sampling": "groups:OneGroup"}}):
        with pytest.raises(pmtl.PmtlError, match="does not import code"):
            write_job({"name": "r", "job": {"config": config}}, tmp_path)
