"""Mistakes on the command line, each as one sentence: what is wrong, and what to write.

The texts of Typer and click (a package of its own, or a part of Typer, by its version) are replaced
here, so that all errors of `pmtl` look alike. An option that is given twice is refused; click would
use the last one without a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from pmtl.errors import PmtlError, did_you_mean

#: The class of all errors in what was typed.
UsageMistake: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def sentence_of(error: Any, program: Any, typed: Sequence[str]) -> str:
    """The sentence for an error of click's; `program` is the command of the whole program, and
    `typed` its arguments."""
    kind, context = type(error).__name__, getattr(error, "ctx", None)
    message = str(getattr(error, "message", "") or error).strip()
    where = "pmtl" if context is None else context.command_path
    parameter = getattr(error, "param", None)
    if kind == "NoSuchOption":
        return _no_option(str(error.option_name), context, where)
    if kind == "MissingParameter" and parameter is not None:
        return f"{_named(parameter)} is missing: {_help(parameter)}."
    if kind == "BadParameter" and parameter is not None:
        return _bad_value(parameter, message, program, typed)
    if kind == "BadOptionUsage":
        if "not take" in message:
            return f"{error.option_name} takes no value: write it alone."
        found = _known(_command_of(program, typed)[0]).get(str(error.option_name))
        return f"{error.option_name} needs a value: {_help(found)}."
    if command := re.search(r"No such command '(.*?)'", message):
        return _no_command(command[1], context, where)
    if extra := re.search(r"unexpected extra arguments? ?(?:\(s\) )?\((.*)\)", message):
        return _not_expected(extra[1], context, where)
    return f"{message.rstrip('.')}. See `{where} --help`."


def refuse_repeated(program: Any, typed: Sequence[str]) -> None:
    """Refuse an option that has one value and is given twice with different ones."""
    seen: dict[str, str] = {}
    for parameter, option, value in _options(program, typed):
        name = parameter.name
        first = seen.setdefault(name, value)
        if first != value and not parameter.multiple:
            how = "" if parameter.is_flag else f"{option} was given twice: "
            raise PmtlError(f"{how}{first} and {value} cannot both hold. Keep one of them.")


def _command_of(program: Any, typed: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that is called, and its own arguments."""
    rest = list(typed)
    while rest and rest[0] in getattr(program, "commands", {}):
        program = program.commands[rest.pop(0)]
    return program, rest


def _options(program: Any, typed: Sequence[str]) -> Iterator[tuple[Any, str, str]]:
    """The options among the arguments, with their values; of a flag, its name."""
    command, rest = _command_of(program, typed)
    known, words = _known(command), iter(rest)
    for word in words:
        if word == "--":
            return
        option, equals, value = word.partition("=")
        if (parameter := known.get(option)) is None:
            continue
        if parameter.is_flag:
            value = option
        elif not equals:
            value = next(words, "")
        yield parameter, option, value


def _known(command: Any) -> dict[str, Any]:
    """The options of a command by all their names."""
    options = [one for one in command.params if one.param_type_name == "option"]
    return {name: one for one in options for name in (*one.opts, *one.secondary_opts)}


def _not_expected(word: str, context: Any, where: str) -> str:
    """A word that no option takes; the name of a file is most likely the data."""
    hint = ""
    if context is not None and "--data" in _known(context.command) and Path(word).exists():
        hint = f" If it is the data, write --data {word}."
    return f"{word!r} is not expected here: `{where} --help` lists the arguments.{hint}"


def _no_option(name: str, context: Any, where: str) -> str:
    known: Mapping[str, Any] = {} if context is None else _known(context.command)
    longer = [one for one in known if one.startswith(name)]  # --eps is a part of --epsilon.
    hint = did_you_mean(name, known).replace("'", "")
    hint = f" Did you mean {longer[0]}?" if len(longer) == 1 else hint
    return f"There is no option {name} of `{where}`.{hint} `{where} --help` lists all."


def _no_command(name: str, context: Any, where: str) -> str:
    known = sorted(getattr(context.command, "commands", {})) if context is not None else []
    hint = did_you_mean(name, known)
    return f"There is no command {name!r} of `{where}`.{hint} Known: {', '.join(known)}."


def _bad_value(parameter: Any, message: str, program: Any, typed: Sequence[str]) -> str:
    number = int if "integer" in message else float
    if number is float and not re.search("number|float", message):
        return f"{_named(parameter)} cannot be read ({message.rstrip('.')}): {_help(parameter)}."
    wanted = "a whole number" if number is int else "a number"
    given = [value for found, _, value in _options(program, typed) if found is parameter]
    wrong = [value for value in given if not _is_number(number, value)]
    but_given = f", but {wrong[0]!r} was given" if wrong else ""
    return f"{_named(parameter)} must be {wanted}{but_given}: {_help(parameter)}."


def _is_number(number: type[int] | type[float], value: str) -> bool:
    try:
        number(value)
    except ValueError:
        return False
    return True


def _named(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"The argument {parameter.metavar or parameter.name.upper()}"
    return f"The option {parameter.opts[0]}"


def _help(parameter: Any) -> str:
    text = str(getattr(parameter, "help", None) or "see --help")
    return text.replace("\\[", "[").strip().rstrip(".")
