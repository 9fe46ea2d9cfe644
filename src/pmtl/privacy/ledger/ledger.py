"""The ledger: what was spent on each client over all runs, on disk before it is spent.

| entry | meaning |
|---|---|
| `genesis` | entry 0: the random number of this ledger, and the names of the first clients |
| `population` | who joined and who left: the clients that later charges are about |
| `plan` | all releases that a run may make, written before the first |
| `charge` | a release about a population is about to be made; it counts even if it fails |
| `mark` | a checkpoint of a run is on disk; costs nothing |
| `cap` | no charge may bring any client's ε above this |

- *Durable.* `charge` returns when the entry is on disk (SQLite with a rollback journal and
  `synchronous=EXTRA`). The caller draws noise only after that.
- *Append-only.* Each entry has the hash of the one before, and triggers abort updates and
  deletions. This detects accidents, but not a person who recomputes all hashes and the head.
- *No rollback.* `PATH.head` names the last entry and is replaced after each commit. If it is ahead
  of the database (restored from a backup), entries are missing and the ledger is refused; if it is
  one behind (a crash between the two), it is repaired.
- *One writer.* A lock on `PATH.lock` is held while a ledger is open for writing. Readers do not
  wait for it.
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
from pmtl.privacy.ledger.events import GaussianEvent, to_list
from pmtl.privacy.ledger.overlap import overlapping
from pmtl.privacy.ledger.populations import first_population
from pmtl.privacy.plan import check_epsilon, default_delta
from pmtl.storage import as_path, place

__all__ = ["Entry", "Ledger"]


class Ledger(Account):
    """An open ledger: `Ledger.create` or `Ledger.open`, then `close` or a `with` block."""

    def __init__(self, path: Path, db: sqlite3.Connection, lock: int | None) -> None:
        """Use `open` or `create`, which do the checks.

        Args:
            path: the file.
            db: the connection to it.
            lock: the descriptor of the file lock; None for reading.
        """
        super().__init__(path)
        self._db, self._lock = db, lock
        self._owner = os.getpid()
        self._failed = False

    # --- opening and closing ---

    @classmethod
    def create(cls, path: str | Path, clients: Sequence[str]) -> Ledger:
        """A new ledger, open for writing.

        Args:
            path: where; no ledger may exist there.
            clients: the names of the first population.
        """
        path = as_path(path, "The ledger").resolve()  # Two names of one ledger share one lock.
        population = first_population(clients)
        if path.exists():
            raise PmtlError(f"{path} exists already: open it, or choose another path.")
        if chain.with_ending(path, ".head").exists():
            raise file.missing_ledger(path)
        lock = file.take_lock(path)
        partial = path.with_name(f".{path.name}.partial")
        try:
            if path.exists():
                raise PmtlError(f"{path} was created by another process just now: open it.")
            with file.readable_errors(path, "created"):
                partial.unlink(missing_ok=True)
                chain.with_ending(partial, "-journal").unlink(missing_ok=True)
                file.write_new(partial, population)
                place(partial, path)
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
        """An existing ledger, verified. Nothing is written before the first charge.

        Args:
            path: where the ledger is.
            clients: the names of all clients that a run could sample, which charges will be about;
                by default the newest population.
            write: whether charges will be made; only one process can open a ledger for that.
        """
        path = as_path(path, "The ledger").resolve()
        if not path.exists():
            if chain.with_ending(path, ".head").exists():
                raise file.missing_ledger(path)
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
            ledger.set_clients(clients)
            if lock is not None and head != chain.head_text(entries[-1]):
                with file.readable_errors(path, "written"):
                    place(chain.prepare_head(path, entries[-1]), chain.with_ending(path, ".head"))
            return ledger
        except BaseException:
            db.close()
            raise

    def close(self) -> None:
        """Close the file and release the lock."""
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
        """Write all releases that a run may make, before the first; repeating it is allowed.

        Args:
            run: the name of the run.
            plan: what it may release, and how often.
        """
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
        """Charge a release that is about to be made, and return the entry's number when it is on
        disk. If a cap would be passed, nothing is written and an error is raised.

        Args:
            run: the name of the run.
            round: the round of the run.
            event: what is released.
            afterwards: for a release that was made without a charge here: the hash of the charge
                that it replaces (`charges`), or "" if unknown. Caps do not apply.
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
        """Write that a checkpoint is on disk.

        Args:
            run: the name of the run.
            round: the number of finished rounds.
            checkpoint_digest: identifies the checkpoint.
        """
        payload = {"digest": chain.checked_text(checkpoint_digest, "digest of a checkpoint")}
        return self._append("mark", chain.run_name(run), chain.round_number(round), payload)

    def cap(self, epsilon: float, delta: float | None = None, force: bool = False) -> None:
        """Set a cap: no charge may bring any client's ε at δ above it.

        Args:
            epsilon: the cap; inf for none.
            delta: δ; 1/(10m) unless given.
            force: needed to raise a cap, because that breaks a promise. The entry stays visible.
        """
        epsilon = check_epsilon(epsilon)
        delta = default_delta(self.clients) if delta is None else float(delta)
        if not 0 < delta < 1:
            raise PmtlError(f"Delta must be strictly between 0 and 1, but {delta:g} was given.")
        present = self._caps.get(delta, math.inf)
        if epsilon > present and not force:
            raise PmtlError(
                f"{self.path} is capped at ε = {present:g} (δ = {delta:.3g}), and {epsilon:g} is "
                "more: raising a cap needs --force, and the ledger keeps a record of it."
            )
        payload = {"epsilon": "inf" if math.isinf(epsilon) else epsilon, "delta": delta}
        if epsilon != present or delta not in self._caps:
            self._append("cap", None, None, payload | {"raised": epsilon > present})

    def _append(self, kind: str, run: str | None, round: int | None, values: Any) -> int:
        if self._lock is None:
            raise PmtlError(f"{self.path} is not open for writing: open it with write=True.")
        if os.getpid() != self._owner:
            raise PmtlError(
                f"{self.path} was opened by the process that started this one, and a ledger has "
                "one writer: charge it in that process."
            )
        if self._failed:
            raise PmtlError(
                f"An earlier write to {self.path} failed: close the ledger and open it again to "
                "find out whether that entry was written."
            )
        entry = chain.next_entry(self.last, kind, run, round, values)
        self._failed = True  # until the write has succeeded
        with file.readable_errors(self.path, "written"):
            try:
                # The new head is written first, so that a full disk shows before anything is
                # charged, and moved to its place after the commit.
                partial = chain.prepare_head(self.path, entry)
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute(f"INSERT INTO entries VALUES ({chain.PLACEHOLDERS})", entry)
                if kind == "population":
                    file.set_format(self._db)
                self._db.execute("COMMIT")
                place(partial, chain.with_ending(self.path, ".head"))
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
                f"{self.path} was replaced while it was open: entry {here} has changed. Stop, and "
                f"{RESTORE}."
            )
        return len(entries)

    def _read(self) -> tuple[list[Entry], str | None, int]:
        """All entries and the head, verified, and the format of the file."""
        return file.read_verified(self._db, self.path, wait=self._lock is None)

    # --- clients ---

    def name_clients(self) -> None:
        """Write the clients that the next charge is about, if their population is new."""
        if self._names is None and not self.populations.named:
            raise PmtlError(
                f"{self.path} was made by pmtl 0.1 and does not have the names of its clients. "
                f"Write them first: pmtl ledger clients {self.path} --data SPEC."
            )
        if self._change is not None:
            self._number = self._append("population", None, None, self._change._asdict())
            self._change = None

    def notices(self) -> list[str]:
        """Warnings about the clients, to be shown before anything is charged."""
        notices = []
        joined, left = self.changes()
        if joined == self.clients:
            notices.append(
                f"None of these {joined} clients is known to {self.path}: is it their ledger? What "
                "another ledger knows of them is not counted here."
            )
        elif joined or left:
            notices.append(
                f"The clients are not those of the newest population in {self.path}: {joined} "
                f"joined and {left} left. The ledger keeps an account of each."
            )
        elif self._number != self.populations.newest:
            notices.append(
                f"The clients are those of an earlier population in {self.path} ({self.clients} "
                f"clients), not of the newest ({self.population_clients()})."
            )
        return notices + [
            f"{other} is a ledger of some of the same clients as {self.path}: each of the two "
            "knows only a part of what these clients have spent. Use one ledger for all runs."
            for other in overlapping(self.path, self.populations, self._names)
        ]
