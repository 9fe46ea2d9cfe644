"""What the tests of the ledger share."""

import hashlib
import json
import shutil
import sqlite3

import pytest

from pmtl.errors import PmtlError
from pmtl.privacy.ledger import file as ledger_file
from pmtl.privacy.ledger.chain import head_text, next_entry
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger

CLIENTS = [f"site-{k}" for k in range(10)]
FULL = GaussianEvent("full", 10, 10, 1.0, 1.0)
COINS = GaussianEvent("poisson", 10, 5, 1.0, 1.0)
LOUD = GaussianEvent("full", 10, 10, 1.0, 0.1)
BARE = GaussianEvent("full", 10, 10, 1.0, 0.0)


def fill(path, rounds=3):
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(50.0, 1e-5)
        for round in range(rounds):
            ledger.charge("a", round, FULL)
        ledger.mark("a", rounds - 1, "digest")


def fill_format_1(path, clients=CLIENTS, rounds=3, event=FULL):
    """A ledger as pmtl 0.1 wrote it: a digest of the names, no plans, no populations."""
    digest = hashlib.sha256(json.dumps(sorted(clients), separators=(",", ":")).encode()).hexdigest()
    first = {"clients": len(clients), "population": digest, "format": 1, "ledger": "0" * 32}
    entries = [next_entry(None, "genesis", None, None, first)]
    cap = {"delta": 1e-5, "epsilon": 50.0, "raised": False}
    entries.append(next_entry(entries[-1], "cap", None, None, cap))
    for round in range(rounds):
        entries.append(next_entry(entries[-1], "charge", "old", round, event.to_dict()))
    entries.append(next_entry(entries[-1], "mark", "old", rounds - 1, {"digest": "digest"}))
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA application_id = {ledger_file.APPLICATION}")
    db.execute("PRAGMA user_version = 1")
    for statement in ledger_file.SCHEMA:
        db.execute(statement)
    for entry in entries:
        db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", entry)
    db.close()
    head(path).write_text(head_text(entries[-1]))


def copy(path, folder):
    """The ledger and its head, as a backup would take them."""
    folder.mkdir(exist_ok=True)
    for name in (path.name, path.name + ".head"):
        shutil.copy(path.with_name(name), folder / name)
    return folder / path.name


def head(path):
    return path.with_name(path.name + ".head")


def refused(path, words, write=True):
    with pytest.raises(PmtlError, match=words):
        Ledger.open(path, write=write).close()
