"""Lists all problems of a file in one error."""

from __future__ import annotations

from collections.abc import Sequence

from pmtl.errors import PmtlError, PublicError

#: Only the first 8 problems are listed.
MAX_LISTED = 8


def refuse(where: str, problems: Sequence[str], public: bool = True) -> None:
    """Raise one error that lists all problems of `where`, a sentence each, if there are any.
    `public`: no sentence quotes a client's row."""
    if not problems:
        return
    error = PublicError if public else PmtlError
    if len(problems) == 1:
        raise error(f"{where}: {problems[0]}")
    listing = " ".join(f"({place}) {text}" for place, text in enumerate(problems[:MAX_LISTED], 1))
    more = f" … and {len(problems) - MAX_LISTED} more." if len(problems) > MAX_LISTED else ""
    raise error(f"{where}: {len(problems)} problems. {listing}{more}")
