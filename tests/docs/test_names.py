"""Options, commands and names of Python that a page mentions exist."""

from __future__ import annotations

import importlib
import re
import shlex

import pytest
import typer
from pages import PAGES, ROOT, blocks, prose

from pmtl.cli.app import app


def walk(command, path=()):
    """All commands and groups, by their words."""
    yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from walk(one, (*path, name))


COMMANDS = dict(walk(typer.main.get_command(app)))
OPTIONS = {
    path: {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    for path, command in COMMANDS.items()
}
EVERY = set().union(*OPTIONS.values())
#: Options of other programs: torchrun's, tensorboard's, and those of programs in benchmarks/.
OTHERS = {"--nproc-per-node", "--node-rank", "--nnodes", "--master-addr", "--master-port"}
OTHERS |= {"--logdir", "--only", "--methods", "--write", "--no-deps", "--check", "--table"}
README = {"README.md": ROOT / "README.md"}


def spans(text: str) -> list[str]:
    """What stands between backticks, on one line."""
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


def called(words: list[str]) -> tuple[str, ...] | None:
    """The command that `pmtl …` calls; None if there is no such command."""
    path: tuple[str, ...] = ()
    for word in words:
        if (*path, word) in COMMANDS:
            path = (*path, word)
        else:
            break
    group = bool(getattr(COMMANDS[path], "commands", None))
    first = words[len(path)] if len(words) > len(path) else "--"
    return None if group and re.fullmatch(r"[a-z]+", first) else path


def wrong(line: str) -> str | None:
    """What is wrong with a line that begins with `pmtl`, if anything is."""
    try:
        words = shlex.split(line, comments=True)[1:]
    except ValueError:
        words = line.split()[1:]
    path = called(words)
    if path is None:
        return f"there is no command {line!r}"
    used = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
    known = OPTIONS[path] if not getattr(COMMANDS[path], "commands", None) else EVERY
    return f"{line!r} has no {', '.join(used - known)}" if used - known else None


def lines_of(page: str) -> list[str]:
    """The commands of a page, in blocks and in sentences."""
    found = [
        line for one in blocks(page) if one.language in ("bash", "console") for line in one.commands
    ]
    found = [re.sub(r"^torchrun .* -m pmtl ", "pmtl ", line) for line in found]
    return [line for line in [*found, *spans(prose(page))] if re.match(r"pmtl [a-z-]", line)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options_exist(page):
    mistakes = [wrong(line) for line in lines_of(page)]
    assert [one for one in mistakes if one] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_options_in_sentences_exist(page):
    named = {
        option
        for span in spans(prose(page))
        if not span.startswith(("pmtl ", "python ", "make ", "pip ", "git "))
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", span)
    }
    assert named - EVERY - OTHERS == set()


def exists(name: str) -> bool:
    """Whether `pmtl.a.b.C.d` is a module or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            fields = getattr(thing, "__dataclass_fields__", {})
            if not hasattr(thing, part) and part not in fields:
                return False
            thing = getattr(thing, part, None)
        return True
    return False


#: Names of earlier versions, groups of entry points, and files.
NOT_NAMES = {"pmtl.comparison"}
GROUPS = r"pmtl\.(algorithms|models|readers|sampling|metrics|callbacks)$"


@pytest.mark.parametrize("page", PAGES)
def test_names_of_python_exist(page):
    named = {
        name
        for span in spans(prose(page))
        for name in re.findall(r"(?<![\w/.-])pmtl(?:\.[A-Za-z_]\w*)+(?![\w/-])", span)
    }
    named = {name for name in named if not re.match(GROUPS, name)} - NOT_NAMES
    assert [name for name in sorted(named) if not exists(name)] == []


def test_what_does_not_exist_is_found():
    assert "no command" in wrong("pmtl tarin --data x")
    assert "no command" in wrong("pmtl ledger crate x.db")
    assert "--epsilom" in wrong("pmtl train --data x --epsilom 2")
    assert wrong("pmtl federation run kits/admin --epsilon 2") is None
    assert not exists("pmtl.no_such_name")
    assert exists("pmtl.Run.predict_proba")
