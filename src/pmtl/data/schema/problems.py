"""Everything that is wrong with a file, told at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from pmtl.errors import PmtlError, PublicError

#: More problems than these are counted, not told.
MOST = 8


def refuse(where: str, problems: Sequence[str], public: bool = True) -> None:
    """Raise one error that lists all problems; nothing happens if there are none.

    Args:
        where: what has the problems, for the sentence.
        problems: a sentence each.
        public: whether no sentence quotes a client's row.
    """
    if not problems:
        return
    error = PublicError if public else PmtlError
    if len(problems) == 1:
        raise error(f"{where}: {problems[0]}")
    told = " ".join(f"({place}) {text}" for place, text in enumerate(problems[:MOST], 1))
    more = f" … and {len(problems) - MOST} more." if len(problems) > MOST else ""
    raise error(f"{where}: {len(problems)} problems. {told}{more}")


def similar(name: str, known: Iterable[str]) -> str:
    """A question with the most similar known name, or nothing."""
    near = difflib.get_close_matches(name[:99], list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names in quotes, the first of them if there are many."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
