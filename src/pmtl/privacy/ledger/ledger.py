"""The ledger: what has been spent on each client, on disk before it is spent.

A run's own statement covers that run. The clients are protected against the *sum* of everything
that is ever published about them, so somebody has to keep count across runs, crashes and restarts.
A ledger is a list of entries:

| kind | says |
|---|---|
| `genesis` | entry 0: which ledger this is (a random number), and the names of the first clients |
| `population` | who joined and who left: the clients that later charges are about |
| `plan` | all releases that a run may make, fixed before the first |
| `charge` | a release about a population is about to be made; it counts whether or not it happens |
| `mark` | a checkpoint of a run is on disk; free |
| `cap` | no charge may bring any client's ε above this |

Names are kept as they are, because they are public. A client's account is all charges of the
populations it was in (`populations`, `account`).

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

import math
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pmtl.errors import PmtlError
from pmtl.privacy.ledger.allowance import Allowance
from pmtl.privacy.ledger.chain import (
    MARKS,
    RESTORE,
    Entry,
    beside,
    checked_text,
    disagreement,
    head_text,
    next_entry,
    prepare_head,
    read_head,
    round_number,
    run_name,
    verified,
)
from pmtl.privacy.ledger.charges import to_list
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.file import (
    connect,
    read_rows,
    real_path,
    sentences,
    set_format,
    take_lock,
    vanished,
    write_new,
)
from pmtl.privacy.ledger.overlap import overlapping
from pmtl.privacy.ledger.populations import first_population
from pmtl.privacy.plan import check_epsilon, default_delta
from pmtl.storage import flush_folder

__all__ = ["Entry", "Ledger"]


class Ledger(Allowance):
    """An open ledger: `Ledger.create` or `Ledger.open`, then `close` or a `with` block."""

    def __init__(self, path: Path, db: sqlite3.Connection, lock: int | None) -> None:
        """Not for callers: `open` and `create` check what this one takes for granted."""
        super().__init__(path)
        self._db, self._lock = db, lock
        self._owner = os.getpid()
        self._failed = False

    # --- opening and closing ---

    @classmethod
    def create(cls, path: str | Path, clients: Sequence[str]) -> Ledger:
        """A new ledger for these clients, open for writing."""
        path, population = real_path(path), first_population(clients)
        if path.exists():
            raise PmtlError(f"{path} exists already: open it, or choose another path.")
        if beside(path, ".head").exists():
            raise vanished(path)
        lock = take_lock(path)
        partial = path.with_name(f".{path.name}.partial")
        try:
            if path.exists():
                raise PmtlError(f"{path} was created by another process just now: open it.")
            with sentences(path, "created"):
                partial.unlink(missing_ok=True)
                beside(partial, "-journal").unlink(missing_ok=True)
                write_new(partial, population)
                partial.replace(path)
                flush_folder(path)
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
        """A ledger that is there, verified.

        `clients` are the names of those whom charges will be about, all that a run could sample;
        without them, charges are about the newest population. Nothing is written before the first
        charge.
        """
        path = real_path(path)
        if not path.exists():
            if beside(path, ".head").exists():
                raise vanished(path)
            raise PmtlError(f"There is no ledger at {path}: make one with `pmtl ledger create`.")
        lock = take_lock(path) if write else None
        try:
            return cls._load(path, lock, clients)
        except BaseException:
            if lock is not None:
                os.close(lock)
            raise

    @classmethod
    def _load(cls, path: Path, lock: int | None, clients: Sequence[str] | None) -> Ledger:
        with sentences(path, "opened"):
            db = connect(path)
        try:
            ledger = cls(path, db, lock)
            with sentences(path, "opened" if lock is None else "written"):
                if lock is None:
                    db.execute("PRAGMA query_only = ON")
                else:
                    # A tool may have left another journal; what is promised here is about this one.
                    db.execute("PRAGMA journal_mode = DELETE")
                    db.execute("BEGIN IMMEDIATE")  # refused here if the file is write-protected
                    db.execute("ROLLBACK")
            entries, head, written = ledger._read()
            for entry in entries:
                ledger.apply(entry)
            if written != ledger.format:
                raise PmtlError(
                    f"{path} is damaged: it says that its format is {written}, but its entries "
                    f"have the format {ledger.format}. To go on, {RESTORE}."
                )
            ledger.turn_to(clients)
            if lock is not None and head != head_text(entries[-1]):
                with sentences(path, "written"):
                    prepare_head(path, entries[-1]).replace(beside(path, ".head"))
                    flush_folder(path)
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

    def declare(self, run: str, plan: Mapping[GaussianEvent, int]) -> None:
        """Put down all releases that a run may make, before the first; once is enough."""
        planned = Counter(plan)
        if self.plan(run_name(run)) == planned:
            return
        if self.plan(run) is not None or not self._may_plan(run, planned):
            raise PmtlError(
                f"{self.path} has another plan or other charges of the run {run!r}: a plan is "
                "fixed before a run's first release. Start a new run."
            )
        self._settle()
        self._append("plan", run, None, {"events": to_list(planned)})

    def charge(
        self, run: str, round: int, event: GaussianEvent, afterwards: str | None = None
    ) -> int:
        """Put down that `event` is about to be released; returns its number once that is on disk.

        Refused, with nothing written, where a cap would be passed. `afterwards` is for a release
        that was made without being charged here: it is put down whatever the caps say. The text is
        that of the charge it stands for (`charge_hashes`), or empty where that is not known.
        """
        run, round = run_name(run), round_number(round)
        caps = self.caps() if afterwards is None else {}
        if reason := self.allows(run, {event: 1}, caps=caps):
            raise PmtlError(f"Round {round} of {run!r} was not charged. {reason}")
        self._settle()
        values = event.to_dict() | {"population": self._number}
        late = {} if afterwards is None else {"afterwards": afterwards}
        return self._append("charge", run, round, values | late)

    def name_clients(self) -> None:
        """Put down the names of the clients that the ledger was opened with, if it lacks them."""
        self._settle()

    def mark(self, run: str, round: int, checkpoint_digest: str) -> int:
        """Put down that the checkpoint after `round` with this digest is on disk."""
        payload = {"digest": checked_text(checkpoint_digest, "digest of a checkpoint")}
        return self._append("mark", run_name(run), round_number(round), payload)

    def cap(self, epsilon: float, delta: float | None = None, force: bool = False) -> None:
        """Let no charge bring any client's ε at δ (1/(10m) unless given) above `epsilon`.

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
        entry = next_entry(self._last, kind, run, round, values)
        self._failed = True  # until it is known to have gone well
        head = beside(self.path, ".head")
        with sentences(self.path, "written"):
            try:
                # The new head takes its place on the disk first: if there is no room for it, that
                # shows before anything is charged. It is moved into place after the commit.
                partial = prepare_head(self.path, entry)
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute(f"INSERT INTO entries VALUES ({MARKS})", entry)
                if kind == "population":
                    set_format(self._db)
                self._db.execute("COMMIT")
                partial.replace(head)
                flush_folder(self.path)
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
        self.apply(entry)
        self._failed = False
        return entry.sequence

    # --- reading ---

    def entries(self) -> Iterator[Entry]:
        """All entries, verified, from the genesis on."""
        return iter(self._read()[0])

    def verify(self) -> int:
        """Read everything again and check it; the number of entries, or a PmtlError that says
        what is wrong."""
        entries, _, _ = self._read()
        here = self._last.sequence
        if len(entries) <= here or entries[here] != self._last:
            raise PmtlError(
                f"{self.path} was replaced while it was open: entry {here} is not the one it was. "
                f"Stop, and {RESTORE}."
            )
        return len(entries)

    def _read(self) -> tuple[list[Entry], str | None, int]:
        """All entries and the head, verified, and the format of the file."""
        # The head is read first, so that what a writer adds meanwhile makes the database longer
        # and never shorter than the head; if it adds a lot, the two are read again.
        for patience in (0.01, 0.05, 0.2, 0.5, None):
            head = read_head(self.path)
            with sentences(self.path, "read"):
                written, rows = read_rows(self._db, self.path)
            entries = verified(rows, self.path)
            trouble = disagreement(entries, head, self.path)
            if trouble is None:
                return entries, head, written
            if self._lock is not None or patience is None:
                break
            time.sleep(patience)
        raise PmtlError(trouble)

    # --- clients ---

    def _settle(self) -> None:
        """Put down the population of the clients that the next charge is about, if it is new."""
        if self._names is None and not self.populations.named:
            raise PmtlError(
                f"{self.path} was made by pmtl 0.1 and does not have the names of its clients. Put "
                f"them down first: pmtl ledger clients {self.path} --data SPEC."
            )
        if self._change is not None:
            self._number = self._append("population", None, None, self._change.payload())
            self._change = None

    def notices(self) -> list[str]:
        """What a person should know about the clients before anything is charged."""
        told = []
        joined, left = self.changes()
        if joined or left:
            told.append(
                f"The clients are not those of the newest population in {self.path}: {joined} "
                f"joined and {left} left. The ledger keeps an account of each."
            )
        elif self._number != self.populations.newest:
            told.append(
                f"The clients are those of an earlier population in {self.path} ({self.clients} "
                f"clients), not of the newest ({self.population_clients()})."
            )
        return told + [
            f"{other} is a ledger of some of the same clients as {self.path}: each of the two "
            "knows only a part of what these clients have spent. Use one ledger for all runs."
            for other in overlapping(self.path, self.populations, self._names)
        ]
