"""Lists all problems of a file in one error."""

from __future__ import annotations

from collections.abc import Sequence

from pmtl.errors import PmtlError, PublicError

#: Only the first 8 problems are listed.
MOST = 8


def refuse(where: str, problems: Sequence[str], public: bool = True) -> None:
    """Raise one error that lists all problems of `where`, a sentence each, if there are any.
    `public`: no sentence quotes a client's row."""
    if not problems:
        return
    error = PublicError if public else PmtlError
    if len(problems) == 1:
        raise error(f"{where}: {problems[0]}")
    told = " ".join(f"({place}) {text}" for place, text in enumerate(problems[:MOST], 1))
    more = f" … and {len(problems) - MOST} more." if len(problems) > MOST else ""
    raise error(f"{where}: {len(problems)} problems. {told}{more}")
