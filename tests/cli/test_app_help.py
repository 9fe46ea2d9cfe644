"""Every command has an example in its help, and `--json` if it prints a result."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from pmtl.cli.app import app


def walk(command, path=("pmtl",)):
    """All commands with their paths, without groups."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, one in inner.items():
        yield from walk(one, (*path, name))


COMMANDS = {" ".join(path): command for path, command in walk(typer.main.get_command(app))}


def examples(path):
    """The lines of a command's help that call it."""
    lines = [line.strip() for line in (COMMANDS[path].help or "").splitlines()]
    called = [line.removeprefix("Example: ") for line in lines]
    return [line for line in called if line.startswith(path)]


def test_the_commands_are_found():
    assert {"pmtl train", "pmtl doctor", "pmtl export", "pmtl ledger show"} <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_has_an_example_whose_options_exist(path):
    assert examples(path), f"{path} --help has no line that begins with {path!r}"
    known = {name for one in COMMANDS[path].params for name in (*one.opts, *one.secondary_opts)}
    for line in examples(path):
        used = [word.partition("=")[0] for word in shlex.split(line) if word.startswith("--")]
        assert set(used) <= known, line


#: Commands that go on until Ctrl-C and print no result.
SERVE = ("pmtl federation server", "pmtl federation site")


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in SERVE])
def test_results_can_be_had_as_json(path):
    assert "--json" in {name for one in COMMANDS[path].params for name in one.opts}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_and_argument_is_explained(path):
    silent = [one.name for one in COMMANDS[path].params if not getattr(one, "help", None)]
    assert [name for name in silent if name != "help"] == []


@pytest.mark.parametrize("path", COMMANDS)
def test_no_help_text_is_taken_for_markup(path):
    """Rich would leave out what stands in square brackets after a letter."""
    texts = [str(getattr(one, "help", None) or "") for one in COMMANDS[path].params]
    assert [text for text in texts if re.search(r"(?<!\\)\[[a-z/#@][^]]*\]", text)] == []


def test_a_file_that_may_not_be_used_is_a_sentence(pmtl_command, monkeypatch):
    def refused(command, typed):
        raise PermissionError(13, "Permission denied", "/data/run")

    monkeypatch.setattr("pmtl.cli.app.refuse_repeated", refused)
    outcome = pmtl_command("doctor")
    assert outcome.status == 2
    assert outcome.err == "error: /data/run cannot be used: Permission denied.\n"
