"""`NAME:key=value,key=value`: one line that names data, a model or an algorithm.

The options are the fields of the dataclass, or the parameters of the function, of that name.

>>> parse_spec("synthetic:clients=40,alpha=0.5")
('synthetic', {'clients': '40', 'alpha': '0.5'})
>>> parse_spec("package.module:factory")
('package.module:factory', {})
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote, unquote

from pmtl.errors import PmtlError, did_you_mean, errors_naming

P = ParamSpec("P")
T = TypeVar("T")


def convert_numbers(made: Any) -> None:
    """Convert the numbers of a frozen dataclass to the types it declares (an int given for a float,
    a NumPy number), so that writing and reading a file keeps them equal."""
    for field in fields(made):
        value, declared = getattr(made, field.name), str(field.type)
        if isinstance(value, bool):
            continue
        if "float" in declared and isinstance(value, Real):
            object.__setattr__(made, field.name, float(value))
        elif "int" in declared and isinstance(value, Integral):
            object.__setattr__(made, field.name, int(value))


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split a spec into name and options. A colon that no `=` follows is part of the name (a path,
    or `package.module:factory`)."""
    name, colon, tail = spec.rpartition(":")
    # The last value may contain a colon, as in reader=package.module:Name.
    while "=" not in tail.partition(",")[0] and "=" in name.partition(":")[2]:
        name, _, more = name.rpartition(":")
        tail = f"{more}:{tail}"
    if not colon or "=" not in tail:
        return spec, {}
    options: dict[str, str] = {}
    for item in tail.split(","):
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise PmtlError(
                f"The options of {spec!r} cannot be read at {item!r}: write "
                "NAME:key=value,key=value."
            )
        if key.strip() in options:
            raise PmtlError(f"{spec!r} gives {key.strip()!r} twice: keep one of them.")
        options[key.strip()] = unquote(value.strip())
    return name, options


def format_spec(name: str, options: Mapping[str, Any]) -> str:
    """The inverse of `parse_spec`; special characters in values are %-encoded.

    >>> parse_spec(format_spec("visits.csv", {"target": "out, come"}))
    ('visits.csv', {'target': 'out, come'})
    """
    tail = ",".join(f"{key}={quote(str(value), safe=_PLAIN)}" for key, value in options.items())
    return f"{name}:{tail}" if tail else name


#: Characters of values that are not encoded, beside letters and digits.
_PLAIN = " /\\+-_.~()[]{}@#&!?*'\"^|<>;$"


def take_format(values: dict[str, Any], where: str, newest: int) -> int:
    """Take the number of the format out of the values of the file `where`; 1 unless they have one.
    A format that this version does not know is refused."""
    format = values.pop("format", 1)
    if isinstance(format, bool) or format not in range(1, newest + 1):
        raise PmtlError(
            f"{where} has the format {format!r}, and this version of pmtl reads formats up to "
            f"{newest}: use the version that wrote it."
        )
    return int(format)


def from_values(
    kind: type[T], values: Mapping[str, Any], where: str, *, lenient: bool = False
) -> T:
    """An object of the dataclass `kind` from the values of the file `where`; lists become tuples.
    Missing names and wrong types are refused; unknown names too, or they are ignored (`lenient`).
    """
    known, hints = {item.name: item for item in fields(cast(Any, kind))}, get_type_hints(kind)
    for name in values:
        if name not in known and not lenient:
            raise unknown(f"entry of {where} named", str(name), known)
    made: dict[str, Any] = {}
    for name, item in known.items():
        if name not in values:
            if item.default is MISSING and item.default_factory is MISSING:
                raise PmtlError(f"There is no entry {name!r} in {where}, so it cannot be used.")
            continue
        value = values[name]
        made[name] = tuple(value) if isinstance(value, list) else value
        if not _fits(made[name], hints[name]):
            raise PmtlError(f"In {where}, the entry {name!r} is not valid: {value!r}.")
    with errors_naming(where):
        return kind(**made)


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, kind) for kind in get_args(hint))
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return value in inner
    if kind is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if kind in (dict, Mapping):
        return isinstance(value, kind) and all(_fits(item, inner[1]) for item in value.values())
    if kind is Any:
        return True
    if isinstance(value, bool):
        return kind is bool
    if kind is float and isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def unknown(what: str, given: str, known: Iterable[str]) -> PmtlError:
    """The error for an unknown name, with the most similar known one."""
    known = sorted(known)
    hint = did_you_mean(given, known)
    return PmtlError(f"There is no {what} {given!r}.{hint} Known: {', '.join(known)}.")


def explain_wrong_calls(
    hints: Mapping[str, str] | None = None, **inside: type
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: a call with wrong arguments raises a `PmtlError` that says how to correct it.

    Args:
        hints: what to write instead of arguments that do not exist but that users may expect.
        **inside: dataclasses by the arguments that take their fields (`privacy=PrivacyRequest`).
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                words = dict(hints or {})
                for part, kind in inside.items():
                    for item in fields(kind):
                        words[item.name] = f'{part} has it: write {part}={{"{item.name}": …}}'
                raise _wrong_call(function.__name__, signature, args, kwargs, words) from error
            return function(*args, **kwargs)

        return call

    return decorate


def _wrong_call(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    hints: Mapping[str, str],
) -> PmtlError:
    """The error for wrong arguments of a call."""
    parameters = signature.parameters
    known = [word for word in parameters if word not in ("self", "cls")]
    for word in kwargs:
        if word in parameters:
            continue
        if word in hints:
            return PmtlError(f"{name} has no argument {word!r}: {hints[word]}.")
        return unknown(f"argument of {name} named", word, known)
    places = [
        word
        for word, item in parameters.items()
        if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
    ]
    if len(args) > len(places):
        listed = ", ".join(word for word in places if word in known)
        return PmtlError(
            f"{name} takes its first arguments by place ({listed}) and all others by name, but "
            f"more were given: write name=value."
        )
    given = [*places[: len(args)], *kwargs]
    twice = next((word for word in given if given.count(word) > 1), None)
    if twice is not None:
        return PmtlError(f"{name} got {twice} twice, by place and by name: keep one of them.")
    missing = [
        word
        for word, item in parameters.items()
        if item.default is item.empty and word not in given and "VAR" not in item.kind.name
    ]
    return PmtlError(f"{name} needs {' and '.join(missing)}: write {missing[0]}=….")


def construct(build: Callable[..., T], options: Mapping[str, Any], what: str, **fixed: Any) -> T:
    """Call `build` with `options` turned from text into the types of its parameters."""
    parameters = inspect.signature(build).parameters
    known = [name for name in parameters if name not in fixed]
    hints = _hints(build)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    arguments: dict[str, Any] = {}
    for key, value in options.items():
        if key not in known:
            raise unknown(f"option of {what} named", key, known or ["(none)"])
        arguments[key] = _coerce(value, hints.get(key, str), f"{key} of {what}")
    for name in known:
        parameter = parameters[name]
        optional = parameter.default is not inspect.Parameter.empty or parameter.kind in variadic
        if name not in arguments and not optional:
            raise PmtlError(f"{what} needs the option {name!r}: write {name}=… after its name.")
    return build(**arguments, **fixed)


def path_options(build: Callable[..., Any]) -> set[str]:
    """The parameters of `build` that are declared as a `Path`."""
    hints = _hints(build).items()
    return {name for name, hint in hints if Path in getattr(hint, "__args__", (hint,))}


def _hints(build: Callable[..., Any]) -> dict[str, Any]:
    """The types of `build`'s parameters: the annotations, or else the types of the defaults."""
    parameters = inspect.signature(build).parameters
    guessed = {
        name: type(parameter.default)
        for name, parameter in parameters.items()
        if parameter.default not in (inspect.Parameter.empty, None)
    }
    try:
        annotated: Any = build.__init__ if isinstance(build, type) else build  # type: ignore[misc]
        return guessed | get_type_hints(annotated)
    except NameError:  # Only a type checker can resolve an annotation.
        return guessed


_WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _coerce(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    kinds = getattr(kind, "__args__", (kind,))
    if Path in kinds:
        return Path(value).expanduser()
    if bool in kinds and value.lower() in ("true", "false"):
        return value.lower() == "true"
    for number in (int, float):
        if number in kinds:
            try:
                return number(value)
            except ValueError:
                continue
    if str in kinds or not {int, float, bool} & set(kinds):
        return value
    names = " or ".join(_WORDS.get(kind, kind.__name__) for kind in kinds if kind is not type(None))
    raise PmtlError(f"The option {where} must be {names}, but {value!r} was given.")
