"""Settings, declared once as the fields of a frozen dataclass.

    @dataclass(frozen=True)
    class LocalTraining:
        batch: int = option(10, help="Rows a step; 0 for all rows.", at_least=0)

        def __post_init__(self) -> None:
            check_options(self)

Type, default, bounds and help text stand there and nowhere else. Python programs, configuration
files (`runs/config.py`) and the command line (`cli/options.py`) all read them from the field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from pmtl.errors import PmtlError


@dataclass(frozen=True)
class Option:
    """What is known of a setting beside its name, type and default."""

    help: str
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    panel: str | None = None
    metavar: str | None = None


def option(
    default: Any,
    *,
    help: str,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    panel: str | None = None,
    metavar: str | None = None,
) -> Any:
    """A field of a dataclass that is a setting.

    Args:
        default: its value unless given; None where another setting or the data decides.
        help: what `--help` says of it, without the default.
        at_least: the smallest number that is allowed.
        above: a number that the value must be greater than.
        below: a number that the value must be less than.
        panel: the heading of the option in `--help`.
        metavar: what `--help` calls the value.
    """
    about = Option(help, at_least, above, below, panel, metavar)
    return field(default=default, metadata={"option": about})


class Declared(NamedTuple):
    """A setting as it was declared."""

    name: str
    hint: Any  #: the type of its values
    default: Any
    about: Option


def declared(kind: Any) -> dict[str, Declared]:
    """The settings of a dataclass by name; its tables are not among them."""
    hints = get_type_hints(kind)
    return {
        item.name: Declared(item.name, hints[item.name], item.default, item.metadata["option"])
        for item in fields(kind)
        if "option" in item.metadata
    }


def tables(kind: Any) -> Iterator[tuple[str, type, str]]:
    """The tables of a dataclass, which are dataclasses of further settings: their names, types and
    panels of `--help`."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        if "panel" in item.metadata:
            yield item.name, hints[item.name], item.metadata["panel"]


def check_options(made: Any) -> None:
    """Refuse values of a new object that are not of the declared type or out of bounds.

    Numbers become Python's int or float, as declared: what is written to a file is then what is
    read from it.
    """
    for setting in declared(type(made)).values():
        kinds = get_args(setting.hint) or (setting.hint,)
        value = getattr(made, setting.name)
        if value is not None or NoneType not in kinds:
            object.__setattr__(made, setting.name, _checked(setting, kinds[0], value))


def _checked(setting: Declared, kind: type, value: Any) -> Any:
    about = setting.about
    wanted, accepted = _KINDS[kind]
    wrong_bool = isinstance(value, bool) and kind is not bool
    if wrong_bool or not isinstance(value, accepted) or value != value:  # NaN is not itself.
        raise _wrong(setting, wanted, value)
    try:
        value = kind(value)
    except OverflowError:
        raise _wrong(setting, "a number that fits in 64 bits", value) from None
    if about.at_least is not None and value < about.at_least:
        raise _wrong(setting, f"at least {about.at_least:g}", value)
    if about.above is not None and value <= about.above:
        raise _wrong(setting, f"greater than {about.above:g}", value)
    if about.below is not None and value >= about.below:
        what = "finite" if math.isinf(about.below) else f"less than {about.below:g}"
        raise _wrong(setting, what, value)
    return value


_KINDS: dict[type, tuple[str, type]] = {
    str: ("text", str),
    bool: ("true or false", bool),
    int: ("a whole number", Integral),
    float: ("a number", Real),
}


def _wrong(setting: Declared, wanted: str, value: Any) -> PmtlError:
    name, help = setting.name, setting.about.help
    return PmtlError(f"{name} must be {wanted}, but {value!r} was given. {name}: {help}")
