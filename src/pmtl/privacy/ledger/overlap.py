"""Other ledgers in the same folder that have clients in common with a ledger.

Each of the two knows only a part of what these clients have spent. This is for a warning, so it
verifies nothing and skips files that cannot be read.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pmtl.privacy.ledger.file import APPLICATION
from pmtl.privacy.ledger.populations import Populations, digest_of

# How many files are looked at, and how long to wait for one.
_MOST_FILES, _SECONDS = 100, 0.1
_ENTRIES = "SELECT sequence, payload FROM entries WHERE kind IN (?, ?) ORDER BY sequence"


def overlapping(path: Path, own: Populations, names: Sequence[str] | None) -> list[Path]:
    """The ledgers in the folder of `path` with a client of the populations `own` or of `names`."""
    mine = {*own.spans, *(names or ())}
    digests = {*own.digests.values()} | (set() if names is None else {digest_of(names)})
    found = []
    heads: list[Path] = []
    with suppress(OSError):
        heads = sorted(path.parent.glob("*.head"))[:_MOST_FILES]
    for head in heads:  # Every ledger has one.
        other = head.with_name(head.name.removesuffix(".head"))
        with suppress(Exception):  # A file that is damaged or not a ledger may raise anything.
            if other == path or other.is_symlink() or not other.is_file():
                continue
            theirs = _populations(other)
            # A ledger of format 1 has only the digest of all names.
            if digests & {*theirs.digests.values()} or not mine.isdisjoint(theirs.spans):
                found.append(other)
    return found


def _populations(path: Path) -> Populations:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_SECONDS)) as db:
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            raise ValueError("not a ledger")
        rows: list[tuple[Any, Any]] = db.execute(_ENTRIES, ("genesis", "population")).fetchall()
    populations = Populations()
    for number, payload in rows:
        populations.add(number, json.loads(payload))
    return populations
