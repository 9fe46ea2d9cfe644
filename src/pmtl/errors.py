"""The one exception a person is meant to read."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 1500
"""Characters of a message; a value from a file may be a million characters long."""


class PmtlError(Exception):
    """A mistake its reader can mend.

    The message is a whole sentence or two: what was wrong, where, and what to do.
    The command line prints it without a traceback and leaves with status 2.

    Messages quote names and values from files, which may hold anything. Whatever would break the
    line or speak to the terminal is written as an escape, and the middle of a long message is left
    out.
    """

    def __str__(self) -> str:
        return _readable(super().__str__())


class PublicError(PmtlError):
    """A mistake in the settings, or in a file's columns: the message quotes no client's rows.

    In production, other errors that come from reading data are not shown to everybody.
    """


class PmtlWarning(UserWarning):
    """Something its reader should know, in a sentence; the command line prints it to stderr."""


class Interrupted(Exception):
    """Work was asked to stop, and did so with everything saved; the message says how to go on.

    Not a `KeyboardInterrupt`, which Typer would turn into a bare "Aborted".
    """


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory; torch says it in words."""
    said = str(error).lower()
    words = ("out of memory", "not enough memory", "allocate memory", "alloc_failed")
    return isinstance(error, MemoryError) or any(word in said for word in words)


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Begin a sentence with `where` if it does not say so itself: what is wrong with rows or
    settings is told by code that does not know which file they came from."""
    try:
        yield
    except PmtlError as error:
        name = where.rpartition("/")[2] or where
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error)):
            raise
        raise type(error)(f"In {where}: {error}") from error


def _readable(message: str) -> str:
    return _cut("".join(c if c.isprintable() else ascii(c)[1:-1] for c in _cut(message)))


def _cut(message: str) -> str:
    if len(message) <= LONGEST:
        return message
    return f"{message[: LONGEST * 2 // 3]} … {message[-LONGEST // 4 :]}"
