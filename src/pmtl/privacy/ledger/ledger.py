"""The ledger: what has been spent on each client, on disk before it is spent.

A run's statement covers that run. Clients have to be protected against the *sum* of everything that
is ever published about them, across runs, crashes and restarts. A ledger is a list of entries:

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

- *Durable before returning.* `charge` returns when the entry has reached the disk (SQLite with a
  rollback journal and `synchronous=EXTRA`). The caller draws noise after that and never before.
- *Only appended to.* Each entry holds the hash of the one before, and triggers abort updates and
  deletions. That shows accidents and careless edits; it cannot show somebody who may write the
  file and recomputes all hashes, the head included.
- *Not rolled back.* A database restored from a backup forgets charges and looks sound. So
  `PATH.head` names the last entry and is replaced after each commit. A head that is ahead means
  that entries are gone, and the ledger is refused; a head one behind is what a crash between the
  two leaves, and is repaired.
- *One writer.* A lock on `PATH.lock` is held while a ledger is open for writing; the system frees
  it when the process ends. Readers do not wait for it.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError
from pmtl.privacy.ledger import chain, file
from pmtl.privacy.ledger.account import Account
from pmtl.privacy.ledger.chain import RESTORE, Entry
from pmtl.privacy.ledger.charges import to_list
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.overlap import overlapping
from pmtl.privacy.ledger.populations import first_population
from pmtl.privacy.plan import check_epsilon, default_delta
from pmtl.storage import flush_folder

__all__ = ["Entry", "Ledger"]


class Ledger(Account):
    """An open ledger: `Ledger.create` or `Ledger.open`, then `close` or a `with` block."""

    def __init__(self, path: Path, db: sqlite3.Connection, lock: int | None) -> None:
        """Not for callers: `open` and `create` do the checks."""
        super().__init__(path)
        self._db, self._lock = db, lock
        self._owner = os.getpid()
        self._failed = False

    # --- opening and closing ---

    @classmethod
    def create(cls, path: str | Path, clients: Sequence[str]) -> Ledger:
        """A new ledger, open for writing.

        Args:
            path: where; there must be no ledger yet.
            clients: the names of the first population.
        """
        path, population = file.real_path(path), first_population(clients)
        if path.exists():
            raise PmtlError(f"{path} exists already: open it, or choose another path.")
        if chain.beside(path, ".head").exists():
            raise file.vanished(path)
        lock = file.take_lock(path)
        partial = path.with_name(f".{path.name}.partial")
        try:
            if path.exists():
                raise PmtlError(f"{path} was created by another process just now: open it.")
            with file.sentences(path, "created"):
                partial.unlink(missing_ok=True)
                chain.beside(partial, "-journal").unlink(missing_ok=True)
                file.write_new(partial, population)
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
        """A ledger that is there, chain.verified.

        `clients` are the names of those whom charges will be about, all that a run could sample;
        without them, charges are about the newest population. Nothing is written before the first
        charge.
        """
        path = file.real_path(path)
        if not path.exists():
            if chain.beside(path, ".head").exists():
                raise file.vanished(path)
            raise PmtlError(f"There is no ledger at {path}: make one with `pmtl ledger create`.")
        lock = file.take_lock(path) if write else None
        try:
            return cls._load(path, lock, clients)
        except BaseException:
            if lock is not None:
                os.close(lock)
            raise

    @classmethod
    def _load(cls, path: Path, lock: int | None, clients: Sequence[str] | None) -> Ledger:
        db = file.connected(path, write=lock is not None)
        try:
            ledger = cls(path, db, lock)
            entries, head, written = ledger._read()
            for entry in entries:
                ledger.apply(entry)
            if written != ledger.format:
                raise PmtlError(
                    f"{path} is damaged: it says that its format is {written}, but its entries "
                    f"have the format {ledger.format}. To go on, {RESTORE}."
                )
            ledger.turn_to(clients)
            if lock is not None and head != chain.head_text(entries[-1]):
                with file.sentences(path, "written"):
                    file.put_head(chain.prepare_head(path, entries[-1]), path)
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

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing ---

    def declare(self, run: str, plan: Mapping[GaussianEvent, int]) -> None:
        """Put down all releases that a run may make, before the first; once is enough."""
        planned = Counter(plan)
        if self.plan(chain.run_name(run)) == planned:
            return
        if self.plan(run) is not None or not self._may_plan(run, planned):
            raise PmtlError(
                f"{self.path} has another plan or other charges of the run {run!r}: a plan is "
                "fixed before a run's first release. Start a new run."
            )
        self.name_clients()
        self._append("plan", run, None, {"events": to_list(planned)})

    def charge(
        self, run: str, round: int, event: GaussianEvent, afterwards: str | None = None
    ) -> int:
        """Put down that `event` is about to be released; returns its number once that is on disk.
        Refused, with nothing written, where a cap would be passed.

        Args:
            run: the run's name.
            round: of the run.
            event: what is released.
            afterwards: for a release that was made without being charged here, whatever the caps
                say: the hash of the charge it stands for (`charge_hashes`), empty if not known.
        """
        run, round = chain.run_name(run), chain.round_number(round)
        caps = self.caps() if afterwards is None else {}
        if reason := self.allows(run, {event: 1}, caps=caps):
            raise PmtlError(f"Round {round} of {run!r} was not charged. {reason}")
        self.name_clients()
        values = event.to_dict() | {"population": self._number}
        late = {} if afterwards is None else {"afterwards": afterwards}
        return self._append("charge", run, round, values | late)

    def mark(self, run: str, round: int, checkpoint_digest: str) -> int:
        """Put down that the checkpoint after `round` with this digest is on disk."""
        payload = {"digest": chain.checked_text(checkpoint_digest, "digest of a checkpoint")}
        return self._append("mark", chain.run_name(run), chain.round_number(round), payload)

    def cap(self, epsilon: float, delta: float | None = None, force: bool = False) -> None:
        """Let no charge bring any client's ε at δ above `epsilon`.

        Args:
            epsilon: the cap; inf for none.
            delta: δ; 1/(10m) unless given.
            force: needed to raise a cap, because that breaks what somebody was told. The entry
                stays in the ledger for everybody to see.
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
        entry = chain.next_entry(self.last, kind, run, round, values)
        self._failed = True  # until it is known to have gone well
        with file.sentences(self.path, "written"):
            try:
                # The new head takes its place on the disk first: if there is no room for it, that
                # shows before anything is charged. It is moved into place after the commit.
                partial = chain.prepare_head(self.path, entry)
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute(f"INSERT INTO entries VALUES ({chain.MARKS})", entry)
                if kind == "population":
                    file.set_format(self._db)
                self._db.execute("COMMIT")
                file.put_head(partial, self.path)
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
        """Read everything again and check it; returns the number of entries."""
        entries, _, _ = self._read()
        here = self.last.sequence
        if len(entries) <= here or entries[here] != self.last:
            raise PmtlError(
                f"{self.path} was replaced while it was open: entry {here} is not the one it was. "
                f"Stop, and {RESTORE}."
            )
        return len(entries)

    def _read(self) -> tuple[list[Entry], str | None, int]:
        """All entries and the head, verified, and the format of the file."""
        return file.read_verified(self._db, self.path, wait=self._lock is None)

    # --- clients ---

    def name_clients(self) -> None:
        """Put down the clients that the next charge is about, if their population is new."""
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
