"""Settings, declared once as the fields of a frozen dataclass.

    @dataclass(frozen=True)
    class LocalTraining:
        batch: int = option(10, help="Rows a step; 0 for all rows.", at_least=0)

        def __post_init__(self) -> None:
            check_options(self)

Python functions (`takes_settings`), configuration files (`runs/config.py`) and the command line
(`cli/options.py`) all read type, default, bounds and help text from the field.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from pmtl.errors import PmtlError
from pmtl.spec import unknown

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """The properties of a setting beside its name, type and default."""

    help: str  #: the text of `--help`, without the default
    at_least: float = -math.inf  #: the smallest number that is allowed
    above: float | None = None  #: a number that the value must be greater than
    at_most: float = math.inf  #: the largest number that is allowed
    finite: bool = False  #: whether infinity is refused
    panel: str | None = None  #: the heading of the option in `--help`
    metavar: str | None = None  #: the name of the value in `--help`; a FILE may be a `Path`
    rounds_only: bool = False  #: whether it is about the rounds of a run: fine-tuning has none
    only_names: bool = False  #: whether no other values than those between { and } are allowed
    names: tuple[str, ...] = ()  #: values that stand between { and } in `help`

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(re.findall(r"{(.*?)}", self.help)))
        object.__setattr__(self, "help", re.sub(r"[{}]", "", self.help))


def option(default: Any, help: str, **about: Any) -> Any:
    """A field of a dataclass that is a setting. The default is None if another setting or the data
    decides; `about` are the other fields of `Option`."""
    return field(default=default, metadata={"option": Option(help, **about)})


class Declared(NamedTuple):
    """A setting as it was declared."""

    name: str
    hint: Any  #: the type of its values
    default: Any
    about: Option


@cache
def declared(kind: Any) -> dict[str, Declared]:
    """The settings of a dataclass by name; its tables are not among them."""
    hints = get_type_hints(kind)
    return {
        item.name: Declared(item.name, hints[item.name], item.default, item.metadata["option"])
        for item in fields(kind)
        if "option" in item.metadata
    }


def rounds_only(kind: Any) -> tuple[str, ...]:
    """The settings of a dataclass that fine-tuning does not have."""
    return tuple(name for name, setting in declared(kind).items() if setting.about.rounds_only)


def same_option(kind: Any, name: str) -> Any:
    """A field of a dataclass that is also a setting of another one, `kind`."""
    setting = declared(kind)[name]
    return field(default=setting.default, metadata={"option": setting.about})


def tables(kind: Any) -> Iterator[tuple[str, type, str]]:
    """The fields of a dataclass that are dataclasses of settings: names, types, `--help` panels."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        if "panel" in item.metadata:
            yield item.name, hints[item.name], item.metadata["panel"]


def tables_by_setting(kind: Any) -> dict[str, str]:
    """The table of every setting of a dataclass, by name; "" for a setting in no table."""
    found = dict.fromkeys(declared(kind), "")
    for table, inner, _ in tables(kind):
        found |= dict.fromkeys(declared(inner), table)
    return found


def nested(kind: Any, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a dataclass and of its tables, given side by side, as the dataclass has them."""
    values = {name: flat[name] for name in declared(kind) if name in flat}
    for name, inner, _ in tables(kind):
        if inside := nested(inner, flat):
            values[name] = inside
    return values


def takes_settings(kind: Any, *left_out: str) -> Callable[[Function], Function]:
    """Replace the `**settings` of a function by an argument for each setting of `kind` that is not
    left out and has no argument. Those that its docstring lacks are added at its end."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        first = [p for p in own if p.kind is not p.KEYWORD_ONLY]
        made, lines = [], inspect.cleandoc(function.__doc__ or "").split("\n    **settings:")[:1]
        for name, hint, default, about in declared(kind).values():
            if name in left_out:
                continue
            if name not in signature.parameters:
                hint = hint | Path if about.metavar == "FILE" else hint
                made.append(
                    inspect.Parameter(
                        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint
                    )
                )
            if f"\n    {name}: " in lines[0]:
                continue
            text = textwrap.fill(f"{name}: {about.help}", 92, subsequent_indent="    ")
            lines.append(textwrap.indent(text, "    "))
        parameters = [*first, *made, *own[len(first) :]]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        function.__doc__ = "\n".join(lines)
        return function

    return decorate


_KINDS: dict[type, tuple[str, Any]] = {
    str: ("text", (str, Path)),
    bool: ("true or false", bool),
    int: ("a whole number", Integral),
    float: ("a number", Real),
}


def check_options(made: Any) -> None:
    """Refuse values of a new object that have another type than declared, are out of bounds or are
    not among the declared names.

    Numbers become Python's int or float, so that writing and reading a file keeps them equal.
    """
    for setting in declared(made.__class__).values():
        kinds = get_args(setting.hint) or (setting.hint,)
        value = getattr(made, setting.name)
        if value is None and NoneType in kinds:
            continue
        wanted = _problem(setting.about, kinds[0], value)
        if wanted is not None:
            name, help = setting.name, setting.about.help
            raise PmtlError(f"{name} must be {wanted}, but {value!r} was given. {name}: {help}")
        value = kinds[0](value)
        if setting.about.only_names and value not in setting.about.names:
            raise unknown(setting.name, value, setting.about.names)
        object.__setattr__(made, setting.name, value)


def _problem(about: Option, kind: type, value: Any) -> str | None:
    """What the value must be, if it is not; else None."""
    wanted, accepted = _KINDS[kind]
    wrong_bool = isinstance(value, bool) and kind is not bool
    if wrong_bool or not isinstance(value, accepted) or value != value:  # NaN
        return wanted
    if kind in (str, bool):
        return None
    if value < about.at_least:
        return f"at least {about.at_least:g}"
    if about.above is not None and value <= about.above:
        return f"greater than {about.above:g}"
    if about.finite and value == math.inf:
        return "finite"
    if value > about.at_most:
        return f"at most {about.at_most:g}"
    if kind is float and isinstance(value, int) and abs(value) > sys.float_info.max:
        return "a number that fits in 64 bits"
    return None
