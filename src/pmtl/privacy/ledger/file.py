"""The file of a ledger, an append-only SQLite database, and its lock.

Only SQLite may open the database: its locks belong to the process and the file, and closing any
other handle on that file would drop them.
"""

from __future__ import annotations

import errno
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pmtl import storage
from pmtl.errors import PmtlError
from pmtl.privacy.ledger import chain
from pmtl.privacy.ledger.chain import PLACEHOLDERS, RESTORE, Entry, next_entry, with_ending

FORMAT = 2
READABLE = (1, 2)
APPLICATION = 0x706D746C  # "pmtl", SQLite's application_id
SCHEMA = (
    "CREATE TABLE entries (sequence INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, "
    "run TEXT, round INTEGER, payload TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER no_update BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are never deleted'); END",
    # Also prevents INSERT OR REPLACE, which deletes without the trigger above.
    "CREATE TRIGGER append_only BEFORE INSERT ON entries WHEN NEW.sequence IS NOT "
    "(SELECT coalesce(max(sequence) + 1, 0) FROM entries) OR NEW.previous IS NOT "
    "coalesce((SELECT hash FROM entries ORDER BY sequence DESC LIMIT 1), '') "
    "BEGIN SELECT RAISE(ABORT, 'entries are only ever appended'); END",
)


def missing_ledger(path: Path) -> PmtlError:
    return PmtlError(
        f"The ledger {path} is missing, but {path.name}.head says that it had entries: a new one "
        f"would not have them. To go on, {RESTORE}; or choose another path for another population."
    )


def take_lock(path: Path) -> int:
    return storage.take_lock(
        with_ending(path, ".lock"),
        f"{path} is in use: another process is writing to it, and a ledger has one writer at a "
        "time. Wait for it, or stop it first.",
    )


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    # Readers also connect with "rw": after a crash they have to roll back a half-written entry.
    db = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=30.0, isolation_level=None
    )
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "synchronous = EXTRA"):
        db.execute(f"PRAGMA {setting}")
    return db


def connected(path: Path, write: bool) -> sqlite3.Connection:
    """The database of a ledger, for reading or also for writing."""
    with readable_errors(path, "opened"):
        db = connect(path)
    try:
        with readable_errors(path, "written" if write else "opened"):
            if write:
                # Another tool may have changed the journal mode; durability depends on this one.
                db.execute("PRAGMA journal_mode = DELETE")
                db.execute("BEGIN IMMEDIATE")  # refused here if the file is write-protected
                db.execute("ROLLBACK")
            else:
                db.execute("PRAGMA query_only = ON")
        return db
    except BaseException:
        db.close()
        raise


def write_new(path: Path, population: dict[str, Any]) -> None:
    """Write the file of a new ledger, with its first entry."""
    # A random number, so that the head of one ledger never fits another.
    values = population | {"format": FORMAT, "ledger": secrets.token_hex(16)}
    db = connect(path, mode="rwc")
    try:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        set_format(db)
        for statement in SCHEMA:
            db.execute(statement)
        genesis = next_entry(None, "genesis", None, None, values)
        db.execute(f"INSERT INTO entries VALUES ({PLACEHOLDERS})", genesis)
        db.execute("COMMIT")
    finally:
        db.close()


def set_format(db: sqlite3.Connection) -> None:
    """Set the newest format, as part of the current transaction."""
    db.execute(f"PRAGMA user_version = {FORMAT}")


def read_rows(db: sqlite3.Connection, path: Path) -> tuple[int, list[tuple[Any, ...]]]:
    """The format and all rows of a ledger; an error if the database is damaged or not a ledger."""
    db.execute("BEGIN")  # all of the following reads see the same state
    try:
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            raise PmtlError(f"{path} is not a ledger of pmtl, or its beginning is damaged.")
        found = int(db.execute("PRAGMA user_version").fetchone()[0])
        if found not in READABLE:
            raise PmtlError(
                f"{path} has the format {found}, but this version of pmtl knows {FORMAT}: use the "
                "version that wrote it."
            )
        faults = [row[0] for row in db.execute("PRAGMA integrity_check")]
        if faults != ["ok"]:
            raise PmtlError(f"{path} is damaged ({faults[0]}). To go on, {RESTORE}.")
        schema = [row[0] for row in db.execute("SELECT sql FROM sqlite_master ORDER BY rowid")]
        if schema != list(SCHEMA):
            raise PmtlError(
                f"{path} cannot be trusted: its tables or the triggers that forbid changes were "
                f"changed. To go on, {RESTORE}."
            )
        return found, db.execute("SELECT * FROM entries ORDER BY sequence").fetchall()
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def read_verified(
    db: sqlite3.Connection, path: Path, wait: bool
) -> tuple[list[Entry], str | None, int]:
    """All entries, the head and the format. With `wait` another process may be writing."""
    # The head is read first: entries that a writer adds meanwhile can make the database longer than
    # the head, never shorter. If it adds several, both are read again.
    for patience in (0.01, 0.05, 0.2, 0.5, None) if wait else (None,):
        head = chain.read_head(path)
        with readable_errors(path, "read"):
            written, rows = read_rows(db, path)
        entries = chain.verified(rows, path)
        trouble = chain.disagreement(entries, head, path)
        if trouble is None:
            return entries, head, written
        if patience is not None:
            time.sleep(patience)
    raise PmtlError(trouble)


@contextmanager
def readable_errors(path: Path, what: str) -> Iterator[None]:
    """Turn errors of SQLite and of the system into readable errors."""
    safe = (
        "Earlier charges are safe, and nothing may be released now; free some space, or make the "
        "file writable."
    )
    with storage.disk_errors(path, what, safe):
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            corrupt = name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
            if corrupt or isinstance(error, sqlite3.DataError):
                raise PmtlError(
                    f"{path} is damaged or is not a ledger ({error}). To go on, {RESTORE}."
                ) from error
            full = name in ("SQLITE_FULL", "SQLITE_IOERR_WRITE")
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error
        except (UnicodeError, OverflowError) as error:
            raise PmtlError(f"{path} is damaged ({error}). To go on, {RESTORE}.") from error
