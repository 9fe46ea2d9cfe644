"""A ledger's entries: a hash chain, and the head, a file that names the last entry."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pmtl.errors import PmtlError
from pmtl.storage import disk_errors

RESTORE = "restore the newest copy of the ledger and its .head together, and charge what it lacks"


class Entry(NamedTuple):
    """One row of a ledger.

    Attributes:
        sequence: its number, from 0.
        time: when it was written, in UTC.
        kind: what it says, such as "charge" or "cap".
        run: the name of the run, if it is about one.
        round: the round of the run, if it is about one.
        payload: everything else, as canonical JSON.
        previous: the hash of the entry before.
        hash: covers all other fields.
    """

    sequence: int
    time: str
    kind: str
    run: str | None
    round: int | None
    payload: str
    previous: str
    hash: str

    @property
    def values(self) -> dict[str, Any]:
        """The payload, read."""
        return dict(json.loads(self.payload))

    def digest(self) -> str:
        """The correct value of `hash`."""
        return hashlib.sha256(canonical(self[:-1]).encode()).hexdigest()


PLACEHOLDERS = ", ".join("?" * len(Entry._fields))


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def next_entry(
    last: Entry | None, kind: str, run: str | None, round: int | None, values: Mapping[str, Any]
) -> Entry:
    sequence, previous = (0, "") if last is None else (last.sequence + 1, last.hash)
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    entry = Entry(sequence, now, kind, run, round, canonical(values), previous, "")
    return entry._replace(hash=entry.digest())


def verified(rows: list[tuple[Any, ...]], path: Path) -> list[Entry]:
    """The rows as entries; an error if they are not an unbroken chain."""
    if not rows:
        raise PmtlError(f"{path} is damaged: it has no entries. To go on, {RESTORE}.")
    written = {row[-1] for row in rows}
    entries: list[Entry] = []
    for place, row in enumerate(rows):
        entry = Entry(*row)
        wrong = None
        if entry.sequence != place:
            wrong = f"entry {place} is missing"
        elif entry.previous != (before := entries[-1].hash if entries else ""):
            edited = f"entry {place} does not follow entry {place - 1}: one of them was edited"
            wrong = "entries were reordered" if entry.previous in written else edited
            wrong = f"{wrong} (entry {place} continues {entry.previous[:8] or 'nothing'}, but the "
            wrong = f"{wrong}entry before it is {before[:8] or 'nothing'})"
        elif not _plausible(entry) or entry.hash != entry.digest():
            wrong = f"entry {place} was edited: its hash does not fit its content"
        if wrong:
            raise PmtlError(f"{path} cannot be trusted: {wrong}. To go on, {RESTORE}.")
        entries.append(entry)
    return entries


def _plausible(entry: Entry) -> bool:
    """Whether the columns have their types, which SQLite does not check."""
    texts = (entry.time, entry.kind, entry.payload, entry.previous, entry.hash)
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(entry.run, str | None)
        and isinstance(entry.round, int | None)
    )


def run_name(run: str) -> str:
    return checked_text(run, "name of a run")


def checked_text(value: str, what: str) -> str:
    usable = isinstance(value, str) and value and "\0" not in value
    if usable:
        with suppress(UnicodeEncodeError):
            value.encode()
            return value
    raise PmtlError(f"The {what} must be a text that is not empty, but {value!r} was given.")


def round_number(round: int) -> int:
    if isinstance(round, bool) or not isinstance(round, int) or not 0 <= round < 2**63:
        raise PmtlError(f"A round is a whole number of at least 0, but {round!r} was given.")
    return round


def head_text(entry: Entry) -> str:
    return f"{entry.sequence} {entry.hash}\n"


def read_head(path: Path) -> str | None:
    head = with_ending(path, ".head")
    with disk_errors(head, "read"):
        if not head.exists():
            return None
        text = head.read_bytes().decode("ascii", errors="replace")
    if not re.fullmatch(r"(0|[1-9][0-9]{0,18}) [0-9a-f]{64}\n", text, flags=re.ASCII):
        raise PmtlError(f"{head} is damaged: it does not name an entry. To go on, {RESTORE}.")
    return text


def disagreement(entries: list[Entry], head: str | None, path: Path) -> str | None:
    """A sentence if the chain and the head disagree, else None."""
    last = entries[-1].sequence
    named = -1 if head is None else int(head.split()[0])
    if named > last:
        return (
            f"{path} cannot be trusted: entries are missing, the ledger was rolled back. It ends "
            f"with entry {last}, but {path.name}.head names entry {named}. To go on, {RESTORE}."
        )
    if head is not None and head != head_text(entries[named]):
        return (
            f"{path} cannot be trusted: entry {named} is not the one that {path.name}.head names, "
            f"so the ledger or its head was replaced. To go on, {RESTORE}."
        )
    if named < last - 1:
        seen = "is missing" if head is None else f"names entry {named}"
        return (
            f"{path} cannot be trusted: it ends with entry {last}, but {path.name}.head {seen}. "
            f"No crash leaves them more than one apart. To go on, {RESTORE}."
        )
    return None


def prepare_head(path: Path, entry: Entry) -> Path:
    """Write the head that names `entry` to a temporary file, and return its path."""
    partial = with_ending(path, ".head.partial")
    with partial.open("w", encoding="ascii") as file:
        file.write(head_text(entry))
        file.flush()
        os.fsync(file.fileno())
    return partial


def with_ending(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)
