"""The ledger: what it has said it keeps, whatever happens to the process, the disk or the file."""

import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmtl.errors import PmtlError
from pmtl.privacy import composition
from pmtl.privacy.events import GaussianEvent
from pmtl.privacy.ledger import Ledger

CLIENTS = [f"site-{k}" for k in range(10)]
FULL = GaussianEvent("full", 10, 10, 1.0, 1.0)
COINS = GaussianEvent("poisson", 10, 5, 1.0, 1.0)
LOUD = GaussianEvent("full", 10, 10, 1.0, 0.1)
BARE = GaussianEvent("full", 10, 10, 1.0, 0.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "the.ledger"


def fill(path, rounds=3):
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(50.0, 1e-5)
        for round in range(rounds):
            ledger.charge("a", round, FULL)
        ledger.mark("a", rounds - 1, "digest")


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


# --- keeping count ---


def test_what_is_charged_is_there_when_it_is_opened_again(path):
    with Ledger.create(path, CLIENTS) as ledger:
        assert ledger.spent(1e-5) == 0
        assert [ledger.charge("a", 0, FULL), ledger.charge("a", 1, FULL)] == [1, 2]
        ledger.mark("a", 1, "d1")
        ledger.charge("a", 1, FULL)  # after a crash a round may be charged again
        ledger.charge("b", 0, COINS)
        ledger.mark("b", 0, "d2")
    with Ledger.open(path, list(reversed(CLIENTS)), write=False) as ledger:
        assert ledger.events() == {FULL: 3, COINS: 1}
        assert (ledger.charged("a"), ledger.charged("b"), ledger.charged("c")) == (
            [0, 1, 1],
            [0],
            [],
        )
        assert ledger.last_mark("a") == (1, "d1")
        assert ledger.last_mark("c") is None
        assert ledger.runs() == ["a", "b"]
        assert ledger.spent(1e-5) == composition.epsilon({FULL: 3, COINS: 1}, 1e-5)
        assert ledger.would_spend(FULL, 2, 1e-5) == composition.epsilon({FULL: 5, COINS: 1}, 1e-5)
        assert ledger.verify() == 7
        kinds = [entry.kind for entry in ledger.entries()]
        assert kinds == ["genesis", "charge", "charge", "mark", "charge", "charge", "mark"]
        assert next(ledger.entries()).values["clients"] == ledger.clients == 10
        with pytest.raises(PmtlError, match="not open for writing"):
            ledger.charge("a", 2, FULL)


def test_a_ledger_belongs_to_its_population(path):
    fill(path)
    for others in (CLIENTS[:-1], [*CLIENTS, "new"], ["x", *CLIENTS[1:]]):
        with pytest.raises(PmtlError, match="other clients"):
            Ledger.open(path, others)
    with Ledger.open(path) as ledger, pytest.raises(PmtlError, match="about 10 clients"):
        ledger.charge("a", 0, GaussianEvent("full", 11, 11, 1.0, 1.0))
    for nobody in ([], ["a", "a"], "ab"):
        with pytest.raises(PmtlError, match="name of its own"):
            Ledger.create(path.with_name("new"), nobody)


@pytest.mark.parametrize(
    ("run", "round"), [("", 0), (None, 0), ("\ud800", 0), ("a", -1), ("a", 1.0), ("a", 2**63)]
)
def test_what_cannot_be_written_is_refused(path, run, round):
    with Ledger.create(path, CLIENTS) as ledger:
        with pytest.raises(PmtlError):
            ledger.charge(run, round, FULL)
        with pytest.raises(PmtlError):
            ledger.mark(run, round, "digest")
        assert ledger.verify() == 1


def test_a_release_without_noise_costs_everything(path):
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.charge("a", 0, BARE)
        assert ledger.spent(1e-5) == math.inf
        ledger.cap(100.0)
        assert "∞" in ledger.allows(FULL) or "inf" in ledger.allows(FULL)


# --- caps ---


def test_a_cap_stops_the_charge_and_leaves_the_ledger_as_it_was(path):
    limit = composition.epsilon({FULL: 7}, 1e-5)
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(limit, 1e-5)
        assert ledger.allows(FULL, 7) is None
        assert "cap" in ledger.allows(FULL, 8)
        for round in range(7):
            ledger.charge("a", round, FULL)
        before = path.read_bytes()
        with pytest.raises(PmtlError, match=r"Round 7 of 'a' was not charged.*cap"):
            ledger.charge("a", 7, FULL)
        assert path.read_bytes() == before
        assert ledger.charged("a") == list(range(7))
        assert ledger.verify() == 9
        ledger.mark("a", 6, "still possible")
    with Ledger.open(path) as ledger, pytest.raises(PmtlError, match="cap"):
        ledger.charge("a", 7, FULL)


def test_caps_go_down_freely_and_up_only_by_force(path):
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(3.0)
        ledger.cap(2.0)
        ledger.cap(2.0)  # says nothing new, and is no entry
        ledger.cap(5.0, 1e-9)
        with pytest.raises(PmtlError, match="by force"):
            ledger.cap(2.5)
        assert ledger.caps() == {1 / 100: 2.0, 1e-9: 5.0}
        assert ledger.verify() == 4
        ledger.cap(4.0, force=True)
        ledger.cap(math.inf, 1e-9, force=True)
        assert ledger.caps() == {1 / 100: 4.0}
        raised = [entry.values["raised"] for entry in ledger.entries() if entry.kind == "cap"]
        assert raised == [False, False, False, True, True]
        for bad in (0.0, -1.0, math.nan):
            with pytest.raises(PmtlError, match="Epsilon"):
                ledger.cap(bad)
        with pytest.raises(PmtlError, match="between 0 and 1"):
            ledger.cap(1.0, 1.0)
    with Ledger.open(path, write=False) as ledger:
        assert ledger.caps() == {1 / 100: 4.0}


def test_looking_ahead_never_lets_more_through(path):
    """Totals are computed for many rounds at once; the last round that fits stays the same."""
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(composition.epsilon({COINS: 40, FULL: 3}, 1e-5) * (1 + 1e-9), 1e-5)
        for round in range(3):
            ledger.charge("a", round, FULL)
        while ledger.allows(COINS) is None:
            ledger.charge("b", 0, COINS)
        assert 39 <= len(ledger.charged("b")) <= 41
        assert ledger.spent(1e-5) <= ledger.caps()[1e-5] * (1 + 1e-3)


# --- a plain model ---

RUNS = st.sampled_from(["a", "b", "runs/ü 3"])
STEPS = st.one_of(
    st.tuples(
        st.just("charge"), RUNS, st.integers(0, 5), st.sampled_from([FULL, LOUD, COINS, BARE])
    ),
    st.tuples(st.just("mark"), RUNS, st.integers(0, 5), st.sampled_from(["x", "y"])),
    st.tuples(
        st.just("cap"),
        st.sampled_from([0.5, 2.0, 10.0, math.inf]),
        st.sampled_from([1e-3, 1e-5]),
        st.booleans(),
    ),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("verify")),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_against_a_plain_model(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("model") / "ledger"
    ledger = Ledger.create(path, CLIENTS)
    events, charged, marks, caps, entries = Counter(), {}, {}, {}, 1
    for what, *details in steps:
        if what == "charge":
            run, round, event = details
            after = events + Counter({event: 1})
            # A hair's breadth either way is the accountant's to decide.
            totals = [(composition.epsilon(after, d), cap) for d, cap in caps.items()]
            fits = all(total <= cap * (1 + 1e-9) for total, cap in totals)
            if fits:
                assert ledger.charge(run, round, event) == entries
                events, entries = after, entries + 1
                charged.setdefault(run, []).append(round)
            else:
                with pytest.raises(PmtlError, match="cap"):
                    ledger.charge(run, round, event)
        elif what == "mark":
            run, round, digest = details
            ledger.mark(run, round, digest)
            marks[run], entries = (round, digest), entries + 1
        elif what == "cap":
            limit, delta, force = details
            present = caps.get(delta)
            if limit > (math.inf if present is None else present) and not force:
                with pytest.raises(PmtlError, match="force"):
                    ledger.cap(limit, delta)
            else:
                ledger.cap(limit, delta, force=force)
                entries += limit != present
                caps[delta] = limit
        elif what == "reopen":
            ledger.close()
            ledger = Ledger.open(path, CLIENTS)
        else:
            assert ledger.verify() == entries
        assert ledger.events() == dict(events)
        assert ledger.caps() == {d: cap for d, cap in caps.items() if cap < math.inf}
    ledger.close()
    with Ledger.open(path, CLIENTS, write=False) as ledger:
        assert ledger.verify() == entries == len(list(ledger.entries()))
        for run in ("a", "b", "runs/ü 3"):
            assert ledger.charged(run) == charged.get(run, [])
            assert ledger.last_mark(run) == marks.get(run)


# --- one writer, many readers ---


def test_a_second_writer_is_refused_and_readers_are_not(path):
    with Ledger.create(path, CLIENTS) as ledger:
        refused(path, "another process is writing")
        link = path.with_name("another name")
        link.symlink_to(path)
        refused(link, "another process is writing")
        code = f"from pmtl.privacy.ledger import Ledger; Ledger.open({str(path)!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "another process is writing" in other.stderr
        for round in range(3):
            ledger.charge("a", round, FULL)
            with Ledger.open(path, write=False) as reader:
                assert reader.charged("a") == list(range(round + 1))
    Ledger.open(path).close()


def test_a_forked_child_does_not_write(path):
    with Ledger.create(path, CLIENTS) as ledger:
        ledger._owner = os.getpid() + 1  # what a child sees, without forking a threaded process
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
        monkeypatch.setattr("pmtl.privacy.ledger.read_head", lambda _: next(heads))
        with Ledger.open(path, write=False) as reader:
            assert reader.charged("a") == [0, 1, 2, 3, 4]


# --- death ---

CHARGE = """
import sys
from pmtl.privacy.ledger import Ledger
from pmtl.privacy.events import GaussianEvent
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


# --- tampering ---


def test_the_database_refuses_changes(path):
    fill(path)
    with sqlite3.connect(path) as db:
        for statement in (
            "UPDATE entries SET round = 7 WHERE sequence = 2",
            "DELETE FROM entries WHERE sequence = 4",
            "INSERT OR REPLACE INTO entries SELECT * FROM entries WHERE sequence = 2",
            "INSERT INTO entries SELECT sequence + 9, time, kind, run, round, payload, previous, "
            "hash FROM entries WHERE sequence = 2",
        ):
            with pytest.raises(sqlite3.IntegrityError, match=r"never|only ever"):
                db.execute(statement)
    db.close()
    Ledger.open(path).close()


def tamper(path, *statements):
    """What somebody does who knows SQLite: take the triggers away and put them back."""
    db = sqlite3.connect(path)
    triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        db.execute(statement)
    for _, sql in triggers:
        db.execute(sql)
    db.commit()
    db.close()


SWAP = [
    f"UPDATE entries SET sequence = {new} WHERE sequence = {old}"
    for old, new in ((2, 99), (3, 2), (99, 3))
]


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["UPDATE entries SET round = 7 WHERE sequence = 3"], "entry 3 was edited"),
        (["UPDATE entries SET run = 'b' WHERE sequence = 2"], "entry 2 was edited"),
        (["UPDATE entries SET time = '' WHERE sequence = 0"], "entry 0 was edited"),
        (["UPDATE entries SET kind = 'mark' WHERE sequence = 2"], "entry 2 was edited"),
        (["UPDATE entries SET payload = x'00' WHERE sequence = 2"], "entry 2 was edited"),
        (["UPDATE entries SET payload = '{}' WHERE sequence = 5"], "entry 5 was edited"),
        (["UPDATE entries SET previous = 'abc' WHERE sequence = 3"], "entry 3 .* edited"),
        (["UPDATE entries SET hash = 'abc' WHERE sequence = 3"], "entry 3 was edited"),
        (["DELETE FROM entries WHERE sequence = 2"], "entry 2 is missing"),
        (["DELETE FROM entries WHERE sequence = 0"], "entry 0 is missing"),
        (["DELETE FROM entries WHERE sequence = 5"], "entries are missing.*rolled back"),
        (["DELETE FROM entries"], "no entries"),
        (SWAP, "reordered"),
        (["ALTER TABLE entries ADD COLUMN note TEXT"], "tables or the triggers"),
        (["PRAGMA application_id = 5"], "not a ledger"),
        (["PRAGMA user_version = 2"], "format 2"),
    ],
)
@pytest.mark.parametrize("write", [True, False])
def test_edits_are_found_and_named(path, statements, words, write):
    fill(path)
    tamper(path, *statements)
    refused(path, words, write)


def test_another_journal_mode_is_put_back(path):
    fill(path)
    tool = sqlite3.connect(path)
    assert tool.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    tool.close()
    with Ledger.open(path, write=False) as ledger:
        assert ledger.verify() == 6
    with Ledger.open(path) as ledger:
        assert ledger._db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert ledger._db.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
        ledger.charge("a", 3, FULL)


def test_triggers_that_are_gone_are_missed(path):
    fill(path)
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER no_update")
    db.commit()
    db.close()
    refused(path, "triggers")


def test_an_edit_with_its_hash_made_anew_breaks_the_next_link_or_the_head(path):
    fill(path)
    with Ledger.open(path, write=False) as ledger:
        entries = list(ledger.entries())
    for place, words in ((3, "entry 4 does not follow entry 3"), (5, "is not the one")):
        forged = entries[place]._replace(round=77)
        forged = forged._replace(hash=forged.digest())
        folder = path.parent / str(place)
        victim = copy(path, folder)
        tamper(victim, f"UPDATE entries SET round=77, hash='{forged.hash}' WHERE sequence={place}")
        refused(victim, words)


def test_edits_under_an_open_ledger_are_found(path):
    fill(path)
    with Ledger.open(path) as ledger:
        tamper(path, "UPDATE entries SET round = 7 WHERE sequence = 3")
        with pytest.raises(PmtlError, match="entry 3 was edited"):
            ledger.verify()


def test_going_back_to_an_older_copy_is_found(path, tmp_path):
    fill(path)
    old = copy(path, tmp_path / "backup")
    with Ledger.open(path) as ledger:
        ledger.charge("a", 3, FULL)
        ledger.charge("a", 4, FULL)
    shutil.copy(old, path)
    refused(path, "rolled back")
    refused(path, "rolled back", write=False)
    # The other way round: a newer ledger with an older head is not what a crash leaves, either.
    fill(other := path.with_name("other"))
    early = head(other).read_text()
    with Ledger.open(other) as ledger:
        ledger.charge("a", 3, FULL)
        ledger.charge("a", 4, FULL)
    head(other).write_text(early)
    refused(other, "more than one apart")
    head(other).unlink()
    refused(other, "head is missing")


def test_the_head_of_another_ledger_does_not_fit(path):
    fill(path)
    fill(other := path.with_name("other"))
    shutil.copy(head(other), head(path))
    refused(path, "is not the one")


def test_a_deleted_database_is_missed(path):
    refused(path, "no ledger at .*pmtl ledger create")
    fill(path)
    path.unlink()
    refused(path, "is missing")
    with pytest.raises(PmtlError, match="is missing"):
        Ledger.create(path, CLIENTS)


def test_a_database_deleted_or_replaced_while_open_takes_no_charge(path, tmp_path):
    fill(path)
    old = copy(path, tmp_path / "backup")
    with Ledger.open(path) as ledger:
        ledger.charge("a", 3, FULL)
        path.unlink()
        with pytest.raises(PmtlError):
            ledger.charge("a", 4, FULL)
    shutil.copy(old, path)
    refused(path, "rolled back")


def test_create_replaces_nothing(path):
    fill(path)
    with pytest.raises(PmtlError, match="exists already"):
        Ledger.create(path, CLIENTS)


# --- damage ---


def test_what_is_not_a_ledger(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("dear diary, " * 1000)
    refused(text, "not a ledger")
    empty = tmp_path / "empty"
    empty.touch()
    refused(empty, "not a ledger")
    refused(tmp_path, "could not be")
    other = tmp_path / "other.db"
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE entries (a)")
    db.commit()
    db.close()
    refused(other, "not a ledger")
    with pytest.raises(PmtlError):
        Ledger.create(tmp_path / "no folder" / "ledger", CLIENTS)


def survives(victim, entries):
    """Refused with a sentence, or whole: then it also takes a charge and stays whole, or says that
    it cannot."""
    try:
        with Ledger.open(victim, CLIENTS) as ledger:
            assert list(ledger.entries()) == entries
            number = ledger.charge("b", 0, FULL)
            assert ledger.verify() == number + 1 == len(entries) + 1
        return True
    except PmtlError:
        return False


def test_flipped_bits_are_refused_or_harmless(path, tmp_path):
    fill(path)
    with Ledger.open(path, write=False) as ledger:
        entries = list(ledger.entries())
    whole = path.read_bytes()
    chance = random.Random(7)
    # Every bit of SQLite's header, and a bit of every eleventh byte of the rest.
    flips = [(place, bit) for place in range(100) for bit in range(8)]
    flips += [(place, chance.randrange(8)) for place in range(100, len(whole), 11)]
    victim = copy(path, tmp_path / "victim")
    outcomes = Counter()
    for place, bit in flips:
        for leftover in victim.parent.iterdir():
            leftover.unlink()
        shutil.copy(head(path), head(victim))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        victim.write_bytes(damaged)
        outcomes[survives(victim, entries)] += 1
    assert outcomes[False] > 200
    assert outcomes[True] > 200  # unused space


def test_a_page_that_is_both_free_and_in_use_is_refused(path):
    """The chain reads well, but a later charge would be written over entries."""
    fill(path)
    whole = bytearray(path.read_bytes())
    whole[32:40] = (2).to_bytes(4, "big") + (1).to_bytes(4, "big")  # the first free page; how many
    path.write_bytes(whole)
    refused(path, "is damaged")
    refused(path, "is damaged", write=False)


def test_flipped_bits_in_the_head_are_refused(path):
    fill(path)
    whole = head(path).read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            head(path).write_bytes(damaged)
            refused(path, "head", write=True)
    head(path).write_bytes(whole[:-1])
    refused(path, "damaged")


def test_truncated_files_are_refused(path):
    fill(path, rounds=40)
    whole = path.read_bytes()
    for length in [0, 1, 99, 100, 512, *range(1000, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refused(path, "ledger", write=length % 2 == 0)
    path.write_bytes(whole)
    Ledger.open(path, CLIENTS).close()


# --- no room ---

FULL_DISK = """
import resource, sys
from pmtl.errors import PmtlError
from pmtl.privacy.ledger import Ledger
from pmtl.privacy.events import GaussianEvent
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
        monkeypatch.setattr("pmtl.privacy.chain.os.fsync", forbidden)
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


def test_a_charge_takes_less_than_50_ms(path):
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(1000.0, 1e-5)
        ledger.charge("a", 0, COINS)
        times = []
        for round in range(1, 200):
            start = time.perf_counter()
            ledger.charge("a", round, COINS)
            times.append(time.perf_counter() - start)
    assert sorted(times)[len(times) // 2] < 0.05


def test_entries_are_plain_canonical_json(path):
    fill(path)
    db = sqlite3.connect(path)
    rows = db.execute("SELECT payload FROM entries WHERE kind = 'charge'").fetchall()
    db.close()
    for (text,) in rows:
        values = json.loads(text)
        assert GaussianEvent.from_dict(values) == FULL
        assert text == json.dumps(values, sort_keys=True, separators=(",", ":"))
