"""The ledger: what has been spent on a population of clients, on disk before it is spent.

A run's own statement covers that run. The clients are protected against the *sum* of everything
that is ever published about them, so somebody has to keep count across runs, crashes and restarts.
A ledger belongs to one population (it keeps a digest of the names) and is a list of entries:

| kind | says |
|---|---|
| `genesis` | entry 0: whose ledger this is |
| `charge` | a release is about to be made; it counts from now on, whether or not it happens |
| `mark` | a checkpoint of a run is on disk; free |
| `cap` | no charge may bring ε above this |

**Durable before returning.** `charge` returns when the entry has reached the disk (SQLite with a
rollback journal and `synchronous=EXTRA`). The caller draws noise after that and never before.

**Only ever appended to.** Each entry holds the hash of the one before, and triggers abort updates
and deletions. That shows accidents and careless edits; somebody who may write the file and
recomputes all hashes, the head included, cannot be seen from inside.

**Not to be rolled back.** A database restored from a backup forgets charges, and looks perfectly
well. So `PATH.head` names the last entry, and is replaced after each commit. A head that is ahead
means that entries are gone, and the ledger is refused; a head one behind is what a crash between
the two leaves, and is repaired.

**One writer.** A lock on `PATH.lock` is held while a ledger is open for writing; the system frees
it on any death. Readers are never kept waiting for it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from pmtl.errors import PmtlError
from pmtl.privacy import composition
from pmtl.privacy.events import GaussianEvent
from pmtl.privacy.plan import check_epsilon, default_delta

FORMAT = 1
_APPLICATION = 0x706D746C  # "pmtl", where SQLite keeps what a database is for
_SCHEMA = (
    "CREATE TABLE entries (sequence INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, "
    "run TEXT, round INTEGER, payload TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER no_update BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are never deleted'); END",
    # Also against INSERT OR REPLACE, which deletes without asking the trigger above.
    "CREATE TRIGGER append_only BEFORE INSERT ON entries WHEN NEW.sequence IS NOT "
    "(SELECT coalesce(max(sequence) + 1, 0) FROM entries) OR NEW.previous IS NOT "
    "coalesce((SELECT hash FROM entries ORDER BY sequence DESC LIMIT 1), '') "
    "BEGIN SELECT RAISE(ABORT, 'entries are only ever appended'); END",
)
_RESTORE = "restore the newest copy of the ledger and its .head together, and charge what it lacks"


class Entry(NamedTuple):
    """One row: `payload` is canonical JSON, `hash` covers all that stands before it."""

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
        """What `hash` has to be."""
        return hashlib.sha256(_canonical(self[:-1]).encode()).hexdigest()


class Ledger:
    """An open ledger: `Ledger.create` or `Ledger.open`, then `close` or a `with` block."""

    def __init__(self, path: Path, db: sqlite3.Connection, lock: int | None) -> None:
        """Not for callers: `open` and `create` check what this one takes for granted."""
        self.path, self._db, self._lock = path, db, lock
        self._owner = os.getpid()
        self._failed = False
        self._last: Entry
        self._events: Counter[GaussianEvent] = Counter()
        self._charged: dict[str, list[int]] = {}
        self._marks: dict[str, tuple[int, str]] = {}
        self._caps: dict[float, float] = {}
        # For each δ, events whose total ε is known: whatever is part of them costs no more.
        self._known: dict[float, tuple[Counter[GaussianEvent], float]] = {}
        self._ahead = 1

    # --- opening and closing ---

    @classmethod
    def create(cls, path: str | Path, clients: Sequence[str]) -> Ledger:
        """A new ledger for these clients, open for writing."""
        path, population = _place(path), _population(clients)
        if path.exists():
            raise PmtlError(f"{path} exists already: open it, or choose another path.")
        if _beside(path, ".head").exists():
            raise _vanished(path)
        lock = _take_lock(path)
        partial = path.with_name(f".{path.name}.partial")
        try:
            if path.exists():
                raise PmtlError(f"{path} was created by another process just now: open it.")
            with _sentences(path, "created"):
                partial.unlink(missing_ok=True)
                _beside(partial, "-journal").unlink(missing_ok=True)
                _write_new(partial, population)
                partial.replace(path)
                _flush_folder(path)
            return cls._load(path, lock, clients)
        except BaseException:
            os.close(lock)
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise

    @classmethod
    def open(
        cls, path: str | Path, clients: Sequence[str] | None = None, write: bool = True
    ) -> Ledger:
        """A ledger that is there, verified; `clients`, where given, must be its population."""
        path = _place(path)
        if not path.exists():
            if _beside(path, ".head").exists():
                raise _vanished(path)
            raise PmtlError(f"There is no ledger at {path}: make one with `pmtl ledger create`.")
        lock = _take_lock(path) if write else None
        try:
            return cls._load(path, lock, clients)
        except BaseException:
            if lock is not None:
                os.close(lock)
            raise

    @classmethod
    def _load(cls, path: Path, lock: int | None, clients: Sequence[str] | None) -> Ledger:
        with _sentences(path, "opened"):
            db = _connect(path)
        try:
            ledger = cls(path, db, lock)
            with _sentences(path, "opened" if lock is None else "written"):
                if lock is None:
                    db.execute("PRAGMA query_only = ON")
                else:
                    # A tool may have left another journal; what is promised here is about this one.
                    db.execute("PRAGMA journal_mode = DELETE")
                    db.execute("BEGIN IMMEDIATE")  # refused here if the file is write-protected
                    db.execute("ROLLBACK")
            entries, head = ledger._read()
            for entry in entries:
                ledger._apply(entry)
            if clients is not None:
                ledger._check_population(clients)
            if lock is not None and head != _head_text(entries[-1]):
                with _sentences(path, "written"):
                    _prepare_head(path, entries[-1]).replace(_beside(path, ".head"))
                    _flush_folder(path)
            return ledger
        except BaseException:
            db.close()
            raise

    def close(self) -> None:
        """Let go of the file and, if it was held, of the lock."""
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- writing ---

    def charge(self, run: str, round: int, event: GaussianEvent) -> int:
        """Put down that `event` is about to be released; returns its number once that is on disk.

        Refused, with nothing written, where a cap would be passed.
        """
        if reason := self.allows(event):
            raise PmtlError(f"Round {round} of {run!r} was not charged. {reason}")
        return self._append("charge", _run(run), _round(round), event.to_dict())

    def mark(self, run: str, round: int, checkpoint_digest: str) -> int:
        """Put down that the checkpoint after `round` with this digest is on disk."""
        payload = {"digest": _text(checkpoint_digest, "digest of a checkpoint")}
        return self._append("mark", _run(run), _round(round), payload)

    def cap(self, epsilon: float, delta: float | None = None, force: bool = False) -> None:
        """Let no charge bring ε at δ (1/(10m) unless given) above `epsilon`.

        Lowering a cap is free. Raising it breaks what somebody was told, so it takes `force`, and
        the entry stays in the ledger for everybody to see.
        """
        epsilon = check_epsilon(epsilon)
        delta = default_delta(self.clients) if delta is None else float(delta)
        if not 0 < delta < 1:
            raise PmtlError(f"Delta lies strictly between 0 and 1, but {delta:g} was given.")
        present = self._caps.get(delta, math.inf)
        if epsilon > present and not force:
            raise PmtlError(
                f"{self.path} is capped at ε = {present:g} (δ = {delta:.3g}), and {epsilon:g} is "
                "more: a cap is raised only by force (--force), and that stays on record."
            )
        payload = {"epsilon": "inf" if math.isinf(epsilon) else epsilon, "delta": delta}
        if epsilon != present or delta not in self._caps:
            self._append("cap", None, None, payload | {"raised": epsilon > present})

    def _append(self, kind: str, run: str | None, round: int | None, values: Any) -> int:
        if self._lock is None:
            raise PmtlError(f"{self.path} is not open for writing: open it with write=True.")
        if os.getpid() != self._owner:
            raise PmtlError(
                f"{self.path} was opened by the process that started this one: each ledger has one "
                "writer, so send what is to be charged to that process."
            )
        if self._failed:
            raise PmtlError(
                f"An earlier write to {self.path} failed: close the ledger and open it again, "
                "which finds out whether that entry was written."
            )
        entry = _entry(self._last, kind, run, round, values)
        self._failed = True  # until it is known to have gone well
        head = _beside(self.path, ".head")
        with _sentences(self.path, "written"):
            try:
                # The new head takes its place on the disk first: if there is no room for it, that
                # shows before anything is charged. It is moved into place after the commit.
                partial = _prepare_head(self.path, entry)
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute(f"INSERT INTO entries VALUES ({_MARKS})", entry)
                self._db.execute("COMMIT")
                partial.replace(head)
                _flush_folder(self.path)
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
        self._apply(entry)
        self._failed = False
        return entry.sequence

    # --- reading ---

    @property
    def clients(self) -> int:
        """m, the size of the population."""
        return int(self._genesis["clients"])

    @property
    def population(self) -> str:
        """SHA-256 of the sorted names of the clients."""
        return str(self._genesis["population"])

    @property
    def created(self) -> str:
        """When, in UTC."""
        return self._created

    @property
    def last(self) -> Entry:
        """The newest entry."""
        return self._last

    def entries(self) -> Iterator[Entry]:
        """All entries, verified, from the genesis on."""
        return iter(self._read()[0])

    def events(self) -> dict[GaussianEvent, int]:
        """Everything that was charged, and how often."""
        return dict(self._events)

    def charged(self, run: str) -> list[int]:
        """The rounds charged to a run, in the order of the charges, repetitions included."""
        return list(self._charged.get(run, ()))

    def last_mark(self, run: str) -> tuple[int, str] | None:
        """(round, digest) of the newest checkpoint of a run that was put down."""
        return self._marks.get(run)

    def runs(self) -> list[str]:
        """The runs with a charge or a mark."""
        return sorted({*self._charged, *self._marks})

    def caps(self) -> dict[float, float]:
        """δ → the largest ε allowed there."""
        return {delta: limit for delta, limit in self._caps.items() if limit < math.inf}

    def spent(self, delta: float) -> float:
        """The ε of everything charged so far."""
        return composition.epsilon(self._events, delta)

    def would_spend(self, event: GaussianEvent, count: int, delta: float) -> float:
        """The ε after `count` more of `event`."""
        return composition.epsilon(self._with(event, count), delta)

    def allows(self, event: GaussianEvent, count: int = 1) -> str | None:
        """None if `count` more of `event` may be charged, else the sentence why not."""
        if event.clients != self.clients:
            return (
                f"{self.path} is about {self.clients} clients, but the release is about "
                f"{event.clients}: use the ledger of that population."
            )
        for delta, limit in self.caps().items():
            if (total := self._at_most(event, count, delta, limit)) > limit:
                return (
                    f"With {count} more such release{'s' * (count > 1)}, {self.path} would reach "
                    f"ε = {total:.4g} at δ = {delta:.3g}, and its cap is {limit:g}: stop here and "
                    "keep the last model, use more noise, or raise the cap with `pmtl ledger cap`."
                )
        return None

    def verify(self) -> int:
        """Read everything again and check it; the number of entries, or a PmtlError that says
        what is wrong."""
        entries, _ = self._read()
        here = self._last.sequence
        if len(entries) <= here or entries[here] != self._last:
            raise PmtlError(
                f"{self.path} was replaced while it was open: entry {here} is not the one it was. "
                f"Stop, and {_RESTORE}."
            )
        return len(entries)

    def _with(self, event: GaussianEvent, count: int) -> Counter[GaussianEvent]:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise PmtlError(f"The number of releases must be 0 or more, but {count!r} was given.")
        return self._events + Counter({event: count})

    def _at_most(self, event: GaussianEvent, count: int, delta: float, limit: float) -> float:
        """A bound on ε after `count` more events, good enough to compare with `limit`.

        Composing takes up to a second, and a run asks before every round. Fewer releases never
        cost more, so one answer for many rounds ahead serves all of them; how far ahead to ask
        doubles as long as it goes well.
        """
        wanted = self._with(event, count)
        known, total = self._known.get(delta, (Counter(), math.inf))
        if total <= limit and wanted <= known:
            return total
        for number in sorted({max(count, self._ahead), count}, reverse=True):
            known = self._with(event, number)
            total = composition.epsilon(known, delta)
            if total <= limit:
                self._known[delta] = known, total
                self._ahead = min(2 * max(number, 1), 1 << 20)
                return total
            self._ahead = max(self._ahead // 4, 1)
        return total

    def _read(self) -> tuple[list[Entry], str | None]:
        """All entries and the head, verified."""
        # The head is read first, so that what a writer adds meanwhile makes the database longer
        # and never shorter than the head; if it adds a lot, the two are read again.
        for patience in (0.01, 0.05, 0.2, 0.5, None):
            head = _read_head(self.path)
            with _sentences(self.path, "read"):
                rows = _rows(self._db, self.path)
            entries = _verified(rows, self.path)
            trouble = _disagreement(entries, head, self.path)
            if trouble is None:
                return entries, head
            if self._lock is not None or patience is None:
                break
            time.sleep(patience)
        raise PmtlError(trouble)

    def _apply(self, entry: Entry) -> None:
        """Add one verified entry to the totals."""
        try:
            self._count(entry)
        except (ValueError, KeyError, TypeError, PmtlError) as error:
            raise PmtlError(
                f"Entry {entry.sequence} of {self.path} cannot be understood ({error}): use the "
                "version of pmtl that wrote it."
            ) from error
        self._last = entry

    def _count(self, entry: Entry) -> None:
        values, run, round = entry.values, entry.run or "", entry.round or 0
        if entry.kind == "genesis" and entry.sequence == 0:
            if values["format"] != FORMAT:
                raise ValueError(f"format {values['format']!r}")
            self._genesis, self._created = values, entry.time
        elif entry.kind == "charge":
            self._events[GaussianEvent.from_dict(values)] += 1
            self._charged.setdefault(run, []).append(round)
        elif entry.kind == "mark":
            self._marks[run] = (round, values["digest"])
        elif entry.kind == "cap":
            self._caps[float(values["delta"])] = float(values["epsilon"])
        else:
            raise ValueError(f"kind {entry.kind!r}")

    def _check_population(self, clients: Sequence[str]) -> None:
        if _population(clients)["population"] != self.population:
            raise PmtlError(
                f"{self.path} is the ledger of other clients ({self.clients}, not these "
                f"{len(clients)}): what is spent on one population says nothing about another. Use "
                "its own ledger, or make one with `pmtl ledger create`."
            )


# --- entries --------------------------------------------------------------------------------------

_MARKS = ", ".join("?" * len(Entry._fields))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _entry(
    last: Entry | None, kind: str, run: str | None, round: int | None, values: Mapping[str, Any]
) -> Entry:
    sequence, previous = (0, "") if last is None else (last.sequence + 1, last.hash)
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    entry = Entry(sequence, now, kind, run, round, _canonical(values), previous, "")
    return entry._replace(hash=entry.digest())


def _population(clients: Sequence[str]) -> dict[str, Any]:
    names = [str(name) for name in clients]
    if isinstance(clients, str) or not names or len(set(names)) < len(names):
        raise PmtlError(
            "A ledger is about at least one client, each with a name of its own, but "
            f"{len(names)} names were given of which {len(set(names))} differ."
        )
    digest = hashlib.sha256(_canonical(sorted(names)).encode()).hexdigest()
    return {"clients": len(names), "population": digest}


def _verified(rows: list[tuple[Any, ...]], path: Path) -> list[Entry]:
    """The rows as entries, if they are an unbroken chain."""
    if not rows:
        raise PmtlError(f"{path} is damaged: it has no entries. To go on, {_RESTORE}.")
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
            wrong = f"{wrong} (at entry {place}, which continues {entry.previous[:8] or 'nothing'}"
            wrong = f"{wrong} where {before[:8] or 'nothing'} stands before it)"
        elif not _plausible(entry) or entry.hash != entry.digest():
            wrong = f"entry {place} was edited: its hash does not fit what it says"
        if wrong:
            raise PmtlError(f"{path} cannot be trusted: {wrong}. To go on, {_RESTORE}.")
        entries.append(entry)
    return entries


def _plausible(entry: Entry) -> bool:
    """Whether the columns have their types (SQLite would put anything anywhere)."""
    texts = (entry.time, entry.kind, entry.payload, entry.previous, entry.hash)
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(entry.run, str | None)
        and isinstance(entry.round, int | None)
    )


def _run(run: str) -> str:
    return _text(run, "name of a run")


def _text(value: str, what: str) -> str:
    usable = isinstance(value, str) and value and "\0" not in value
    if usable:
        with suppress(UnicodeEncodeError):
            value.encode()
            return value
    raise PmtlError(f"The {what} must be a text that is not empty, but {value!r} was given.")


def _round(round: int) -> int:
    if isinstance(round, bool) or not isinstance(round, int) or not 0 <= round < 2**63:
        raise PmtlError(f"A round is a whole number of at least 0, but {round!r} was given.")
    return round


# --- the head -------------------------------------------------------------------------------------


def _head_text(entry: Entry) -> str:
    return f"{entry.sequence} {entry.hash}\n"


def _read_head(path: Path) -> str | None:
    head = _beside(path, ".head")
    try:
        text = head.read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PmtlError(f"{head} cannot be read: {error.strerror}.") from error
    if not re.fullmatch(r"(0|[1-9][0-9]{0,18}) [0-9a-f]{64}\n", text, flags=re.ASCII):
        raise PmtlError(f"{head} is damaged: it does not name an entry. To go on, {_RESTORE}.")
    return text


def _disagreement(entries: list[Entry], head: str | None, path: Path) -> str | None:
    """What is wrong between the chain and the head, if anything is."""
    last = entries[-1].sequence
    named = -1 if head is None else int(head.split()[0])
    if named > last:
        return (
            f"{path} cannot be trusted: entries are missing, the ledger was rolled back. It ends "
            f"with entry {last}, but {path.name}.head has seen entry {named}. To go on, {_RESTORE}."
        )
    if head is not None and head != _head_text(entries[named]):
        return (
            f"{path} cannot be trusted: entry {named} is not the one that {path.name}.head has "
            f"seen, so the ledger or its head was replaced. To go on, {_RESTORE}."
        )
    if named < last - 1:
        seen = "is missing" if head is None else f"has only seen entry {named}"
        return (
            f"{path} cannot be trusted: it ends with entry {last}, but {path.name}.head {seen}. "
            f"No crash leaves them more than one apart. To go on, {_RESTORE}."
        )
    return None


def _prepare_head(path: Path, entry: Entry) -> Path:
    """The head that names `entry`, on disk beside its place."""
    partial = _beside(path, ".head.partial")
    with partial.open("w", encoding="ascii") as file:
        file.write(_head_text(entry))
        file.flush()
        os.fsync(file.fileno())
    return partial


# --- files ----------------------------------------------------------------------------------------
# The database itself is only ever opened by SQLite: its locks belong to the process and the file,
# and closing any other handle on that file would drop them.


def _place(path: str | Path) -> Path:
    """The real path: two names of one ledger have to share one lock."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise PmtlError(f"{path} cannot be the path of a ledger: {error}.") from error


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _vanished(path: Path) -> PmtlError:
    return PmtlError(
        f"The ledger {path} is missing, but {path.name}.head says that it had entries: a new one "
        f"would forget them. To go on, {_RESTORE}; or choose another path for another population."
    )


def _take_lock(path: Path) -> int:
    with _sentences(path, "written"):
        handle = os.open(_beside(path, ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise PmtlError(
            f"{path} is in use: another process is writing to it, and a ledger has one writer at a "
            "time. Wait for it, or stop it first."
        ) from error
    return handle


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    # Readers connect like this, too: after a crash they have to roll back what it left behind.
    db = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=30.0, isolation_level=None
    )
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "synchronous = EXTRA"):
        db.execute(f"PRAGMA {setting}")
    return db


def _write_new(path: Path, population: dict[str, Any]) -> None:
    # A number of its own, so that the head of one ledger never fits another.
    values = population | {"format": FORMAT, "ledger": secrets.token_hex(16)}
    db = _connect(path, mode="rwc")
    try:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {FORMAT}")
        for statement in _SCHEMA:
            db.execute(statement)
        genesis = _entry(None, "genesis", None, None, values)
        db.execute(f"INSERT INTO entries VALUES ({_MARKS})", genesis)
        db.execute("COMMIT")
    finally:
        db.close()


def _rows(db: sqlite3.Connection, path: Path) -> list[tuple[Any, ...]]:
    """All rows of a database that is whole and is a ledger."""
    db.execute("BEGIN")  # one view of it for all of the following
    try:
        if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise PmtlError(f"{path} is not a ledger of pmtl, or its beginning is damaged.")
        if (found := db.execute("PRAGMA user_version").fetchone()[0]) != FORMAT:
            raise PmtlError(
                f"{path} has the format {found}, and this version of pmtl knows {FORMAT}: use the "
                "version that wrote it."
            )
        faults = [row[0] for row in db.execute("PRAGMA integrity_check")]
        if faults != ["ok"]:
            raise PmtlError(f"{path} is damaged ({faults[0]}). To go on, {_RESTORE}.")
        schema = [row[0] for row in db.execute("SELECT sql FROM sqlite_master ORDER BY rowid")]
        if schema != list(_SCHEMA):
            raise PmtlError(
                f"{path} cannot be trusted: its tables or the triggers that forbid changes were "
                f"changed. To go on, {_RESTORE}."
            )
        return db.execute("SELECT * FROM entries ORDER BY sequence").fetchall()
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _flush_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _sentences(path: Path, what: str) -> Iterator[None]:
    """Turn the refusals of SQLite and of the system into sentences."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise _refusal(path, what, full, error.strerror or str(error)) from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or isinstance(
            error, sqlite3.DataError
        ):
            raise PmtlError(
                f"{path} is damaged or is not a ledger ({error}). To go on, {_RESTORE}."
            ) from error
        full = name in ("SQLITE_FULL", "SQLITE_IOERR_WRITE")
        raise _refusal(path, what, full, str(error)) from error
    except (UnicodeError, OverflowError) as error:
        raise PmtlError(f"{path} is damaged ({error}). To go on, {_RESTORE}.") from error


def _refusal(path: Path, what: str, full: bool, reason: str) -> PmtlError:
    if full:
        return PmtlError(
            f"The disk is full or not writable: {path} could not be {what} ({reason}). What was "
            "charged before is safe, and nothing may be released now; free some space."
        )
    return PmtlError(f"The ledger {path} could not be {what}: {reason}.")
