"""The ledger: what it has said it keeps, whatever happens to the process or the disk."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from example_ledger import CLIENTS, COINS, FULL, fill, head, refused

from pmtl.errors import PmtlError
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "the.ledger"


# --- one writer, many readers ---


def test_a_second_writer_is_refused_and_readers_are_not(path):
    with Ledger.create(path, CLIENTS) as ledger:
        refused(path, "another process is writing")
        link = path.with_name("another name")
        link.symlink_to(path)
        refused(link, "another process is writing")
        code = f"from pmtl.privacy.ledger.ledger import Ledger; Ledger.open({str(path)!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "another process is writing" in other.stderr
        for round in range(3):
            ledger.charge("a", round, FULL)
            with Ledger.open(path, write=False) as reader:
                assert reader.charged("a") == list(range(round + 1))
    Ledger.open(path).close()


def test_a_forked_child_does_not_write(path, monkeypatch):
    with Ledger.create(path, CLIENTS) as ledger:
        child = os.getpid() + 1  # what a child sees, without forking a threaded process
        monkeypatch.setattr(os, "getpid", lambda: child)
        with pytest.raises(PmtlError, match="one writer"):
            ledger.charge("a", 0, FULL)


def test_reading_while_another_process_charges(path):
    Ledger.create(path, CLIENTS).close()
    with charging(path) as process:
        process.stdout.readline()
        seen = 0
        for _ in range(30):
            with Ledger.open(path, write=False) as reader:
                now = reader.verify()
            assert now >= seen
            seen = now
        assert seen > 1


def test_a_reader_that_is_overtaken_reads_again(path, monkeypatch):
    """Two charges between its look at the head and its look at the entries are no rollback."""
    fill(path)
    stale = head(path).read_text()
    with Ledger.open(path) as writer:
        writer.charge("a", 3, FULL)
        writer.charge("a", 4, FULL)
        heads = iter([stale, head(path).read_text()])
        monkeypatch.setattr("pmtl.privacy.ledger.chain.read_head", lambda _: next(heads))
        with Ledger.open(path, write=False) as reader:
            assert reader.charged("a") == [0, 1, 2, 3, 4]


# --- death ---

CHARGE = """
import sys
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.ledger.events import GaussianEvent
assert "torch" not in sys.modules
event = GaussianEvent("full", 10, 10, 1.0, 1.0)
ledger = Ledger.open(sys.argv[1])
for round in range(100_000):
    sys.stdout.write(f"{ledger.charge('a', round, event)}\\n")
    sys.stdout.flush()
"""


class charging:
    """A process that charges as fast as it can and says so after each charge."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        command = [sys.executable, "-c", CHARGE, str(self.path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return self.process

    def __exit__(self, *_):
        self.process.kill()
        self.process.stdout.close()
        self.process.wait()


def test_kill_9_at_any_moment_loses_nothing_that_was_said(path):
    Ledger.create(path, CLIENTS).close()
    chance = random.Random(4)
    said = set()
    for kill in range(1, 11):
        with charging(path) as process:
            lines, start = [process.stdout.readline()], time.perf_counter()
            lines += [process.stdout.readline() for _ in range(chance.randint(2, 5))]
            # Anywhere within the next two charges, however quick this disk is.
            charge = (time.perf_counter() - start) / (len(lines) - 1)
            time.sleep(chance.uniform(0, 2 * charge))
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        assert lines[0].endswith("\n")
        said |= {int(line) for line in lines if line.endswith("\n")}
        with Ledger.open(path, CLIENTS, write=chance.random() < 0.5) as ledger:
            written = {entry.sequence for entry in ledger.entries() if entry.kind == "charge"}
        assert said <= written
        # Each time at most the one charge it died in was not announced.
        assert len(written - said) <= kill


def test_a_crash_between_the_commit_and_the_head_is_repaired(path):
    fill(path)
    before = head(path).read_text()
    with Ledger.open(path) as ledger:
        ledger.charge("a", 3, FULL)
    after = head(path).read_text()
    head(path).write_text(before)
    with Ledger.open(path, write=False) as ledger:
        assert ledger.charged("a") == [0, 1, 2, 3]
    assert head(path).read_text() == before  # a reader repairs nothing
    Ledger.open(path).close()
    assert head(path).read_text() == after


def test_a_crash_while_it_is_created(path):
    Ledger.create(path, CLIENTS).close()
    head(path).unlink()  # it died before the first head
    with Ledger.open(path) as ledger:
        assert ledger.verify() == 1
    assert head(path).exists()
    partial = path.with_name(".other.partial")
    partial.write_bytes(b"half a database")
    with Ledger.create(path.with_name("other"), CLIENTS) as ledger:
        assert ledger.verify() == 1
    assert not partial.exists()


# --- no room ---

FULL_DISK = """
import resource, sys
from pmtl.errors import PmtlError
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.ledger.events import GaussianEvent
event = GaussianEvent("full", 10, 10, 1.0, 1.0)
ledger = Ledger.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    for round in range(1000):
        ledger.charge("a", round, event)
        print(round, flush=True)
except PmtlError as error:
    print("refused:", error)
    try:
        ledger.charge("a", round, event)
    except PmtlError as error:
        print("again:", error)
"""


@pytest.mark.parametrize("room", [30, 1000, 8192, 20_000, 40_000])
def test_a_full_disk_refuses_before_anything_is_released(path, room):
    fill(path)
    before = 3
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), str(room)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *said, refusal, again = done.stdout.splitlines()
    assert refusal.startswith("refused: The disk is full")
    assert "earlier write" in again
    with Ledger.open(path, CLIENTS) as ledger:
        charged = ledger.charged("a")
        assert len(charged) - before in (len(said), len(said) + 1)
        ledger.charge("a", 0, FULL)
        assert ledger.verify() == len(charged) + 4
    assert (room < 10_000) == (not said)


def test_a_write_protected_ledger_is_refused_before_anything_is_charged(path, monkeypatch):
    fill(path)
    with pytest.raises(PmtlError, match="could not be"):
        Ledger.create("/proc/ledger", CLIENTS)

    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    with Ledger.open(path) as ledger:
        before = path.read_bytes()
        monkeypatch.setattr("pmtl.privacy.ledger.chain.os.fsync", forbidden)
        with pytest.raises(PmtlError, match="Permission denied"):
            ledger.charge("a", 3, FULL)
        monkeypatch.undo()
        assert path.read_bytes() == before
        with pytest.raises(PmtlError, match="earlier write"):
            ledger.charge("a", 3, FULL)
    with Ledger.open(path) as ledger:
        assert ledger.charge("a", 3, FULL) == 6


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(path):
    fill(path)
    path.parent.chmod(0o555)
    try:
        with Ledger.open(path) as ledger, pytest.raises(PmtlError):
            ledger.charge("a", 3, FULL)
        with Ledger.open(path, write=False) as ledger:
            assert ledger.charged("a") == [0, 1, 2]
    finally:
        path.parent.chmod(0o755)


# --- quick enough for every round ---


def test_a_charge_costs_the_same_however_long_the_ledger_is(path, monkeypatch):
    """Counted in SQLite's own steps: a charge reads nothing that grows."""
    steps = []
    connect = sqlite3.connect

    def counting(*given, **options):
        db = connect(*given, **options)
        db.set_progress_handler(lambda: steps.append(1), 1)
        return db

    monkeypatch.setattr(sqlite3, "connect", counting)
    costs = []
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(1000.0, 1e-5)
        for round in range(200):
            before = len(steps)
            ledger.charge("a", round, COINS)
            costs.append(len(steps) - before)
    assert 0 < max(costs[100:]) <= 1.2 * max(costs[1:20])


def test_entries_are_plain_canonical_json(path):
    fill(path)
    db = sqlite3.connect(path)
    rows = db.execute("SELECT payload FROM entries WHERE kind = 'charge'").fetchall()
    db.close()
    for (text,) in rows:
        values = json.loads(text)
        assert text == json.dumps(values, sort_keys=True, separators=(",", ":"))
        assert values.pop("population") == 0
        assert GaussianEvent.from_dict(values) == FULL
