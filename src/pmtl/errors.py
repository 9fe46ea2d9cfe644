"""The exceptions and warnings whose messages are for users."""

import difflib
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MAX_MESSAGE_LENGTH = 1500
"""Characters of a message; it may quote a very long value from a file."""


class PmtlError(Exception):
    """An error that the user can correct.

    The message says in one or two sentences what was wrong, where, and what to do. The command
    line prints it without a traceback and exits with status 2. Messages may quote values from
    files: characters that are not printable are escaped, and long messages are shortened.
    """

    def __str__(self) -> str:
        message = _shorten(super().__str__())
        return _shorten("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message))


class PublicError(PmtlError):
    """An error in the settings or in a file's columns, whose message quotes no client's rows.

    In production, the messages of other errors from reading data are not shown.
    """


class PmtlWarning(UserWarning):
    """A sentence that users should read; the command line prints it to stderr."""


class Interrupted(Exception):
    """A task was asked to stop and has saved its work; the message says how to continue.

    Not a `KeyboardInterrupt`, because Typer turns that into "Aborted".
    """


def kind_of(value: object) -> str:
    """What a value is, for a message: its type, since its content may be long or private."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeio" or name == "ndarray" else f"a {name}"


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """A question, after a space, with the most similar known names; or nothing."""
    near = difflib.get_close_matches(name[:99], list(known), n=most)  # It is slow for long texts.
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def how_many(count: int, what: str) -> str:
    """A number and what is counted, in the plural unless it is 1: 1 row, 1,000 rows."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names in quotes: the first `most`, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def place_in_code(error: BaseException) -> str:
    """The file and line where an error was raised, in the innermost code that is not PyTorch's."""
    frames = traceback.extract_tb(error.__traceback__)
    last = [frame for frame in frames if "torch" not in Path(frame.filename).parts][-1]
    return f"{Path(last.filename).name}, line {last.lineno}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; torch says so only in its message."""
    message = str(error).lower()
    words = ("out of memory", "not enough memory", "allocate memory", "alloc_failed")
    return isinstance(error, MemoryError) or any(word in message for word in words)


@contextmanager
def memory_errors(sentence: str) -> Iterator[None]:
    """Raise a `PmtlError` with this sentence if memory runs out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise PmtlError(sentence) from error


@contextmanager
def require_package(sentence: str) -> Iterator[None]:
    """Raise a `PmtlError` with this sentence if an import fails."""
    try:
        yield
    except ImportError as error:
        raise PmtlError(sentence) from error


@contextmanager
def errors_naming(where: str) -> Iterator[None]:
    """Add `where` (a file) to error messages that do not name it."""
    try:
        yield
    except PmtlError as error:
        name = where.rpartition("/")[2] or where
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error)):
            raise
        raise type(error)(f"In {where}: {error}") from error


def _shorten(message: str) -> str:
    if len(message) <= MAX_MESSAGE_LENGTH:
        return message
    return f"{message[: MAX_MESSAGE_LENGTH * 2 // 3]} … {message[-MAX_MESSAGE_LENGTH // 4 :]}"
