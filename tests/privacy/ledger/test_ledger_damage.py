"""A ledger that somebody edited, or that the disk damaged, is refused in a sentence."""

import random
import shutil
import sqlite3
from collections import Counter

import pytest
from example_ledger import CLIENTS, FULL, copy, fill, head, refused

from pmtl.errors import PmtlError
from pmtl.privacy.ledger import file as ledger_file
from pmtl.privacy.ledger.ledger import Ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "the.ledger"


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
        (["PRAGMA user_version = 3"], "format 3"),
        (["PRAGMA user_version = 1"], "format"),
    ],
)
@pytest.mark.parametrize("write", [True, False])
def test_edits_are_found_and_named(path, statements, words, write):
    fill(path)
    tamper(path, *statements)
    refused(path, words, write)


def test_another_journal_mode_is_put_back(path, monkeypatch):
    opened, connect = [], ledger_file.connect
    fill(path)
    monkeypatch.setattr(
        ledger_file, "connect", lambda path: opened.append(connect(path)) or opened[-1]
    )
    tool = sqlite3.connect(path)
    assert tool.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    tool.close()
    with Ledger.open(path, write=False) as ledger:
        assert ledger.verify() == 6
    with Ledger.open(path) as ledger:
        assert opened[-1].execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert opened[-1].execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
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
