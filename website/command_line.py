"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import typer

from pmtl.cli.app import app

HEAD = """# The command line

Made from the commands themselves when this site is built. Every command has the same text under
`--help`. Results have `--json`. A mistake is one sentence on stderr and exit status 2.
"""
#: Typer's own, which every command has or which install completion.
USUAL = ("help", "install_completion", "show_completion")


def page() -> str:
    """The whole page."""
    commands = list(walk(typer.main.get_command(app)))
    rows = [f"| [`{name}`](#{name.replace(' ', '-')}) | {_first(one)} |" for name, one in commands]
    parts = [HEAD, "| command | what it does |\n|---|---|\n" + "\n".join(rows)]
    return "\n\n".join([*parts, *(_section(name, one) for name, one in commands)]) + "\n"


def walk(command: Any, path: tuple[str, ...] = ("pmtl",)) -> Iterator[tuple[str, Any]]:
    """All commands with their names, without groups."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
        return
    for name, one in inner.items():
        yield from walk(one, (*path, name))


def _first(command: Any) -> str:
    text: str = textwrap.dedent(command.help or "").strip()
    return " ".join(text.split("\n\n")[0].split())


def _section(name: str, command: Any) -> str:
    parameters = [one for one in command.params if one.name not in USUAL]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option"]
    called = " ".join([name, *(_argument(one) for one in arguments), "[OPTIONS]"])
    parts = [f"## {name}", _help(command), f"```text\n{called}\n```"]
    if arguments:
        rows = [f"| `{_argument(one)}` | {_cell(one.help)} |" for one in arguments]
        parts.append("| argument | meaning |\n|---|---|\n" + "\n".join(rows))
    if options:
        rows = [_option(one) for one in options]
        parts.append(
            "| option | value | meaning | default |\n|---|---|---|---|\n" + "\n".join(rows)
        )
    return "\n\n".join(parts)


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _help(command: Any) -> str:
    """The text of `--help`; lines that are commands become code."""
    paragraphs = re.split(r"\n\s*\n", textwrap.dedent(command.help or "").strip())
    shown = []
    for paragraph in paragraphs:
        if paragraph.startswith("    "):
            shown.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        elif paragraph.startswith("Example: "):
            shown.append(f"Example:\n\n```text\n{paragraph.removeprefix('Example: ')}\n```")
        else:
            shown.append(_cell(paragraph))
    return "\n\n".join(shown)


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    kind = option.type_descriptor.annotation
    name = option.metavar or getattr(kind, "__name__", str(kind)).upper()
    value = "" if option.is_flag else f"`{name}`" + (", several times" if option.multiple else "")
    default = option.default
    shown = "" if callable(default) or default in (None, False, ()) or option.is_flag else default
    return f"| {names} | {value} | {_cell(option.help)} | {_code(shown)} |"


def _code(value: object) -> str:
    return "" if value == "" else f"`{value}`"


def _cell(text: str | None) -> str:
    """Text for a table: one line, nothing of it taken for Markdown or HTML."""
    line = " ".join((text or "").split())
    return re.sub(r"([|<>*_\[\]])", r"\\\1", line)
