"""A ledger, its head and SQLite's journal after an accident: refused, or every entry as it was.

`test_ledger_damage.py` flips bits one by one and cuts files short; here they are also shifted,
doubled, overwritten and replaced by anything.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from fuzzing import damaged, fuzz, judge
from hypothesis import given
from hypothesis import strategies as st

from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger

pytestmark = pytest.mark.usefixtures("silent")

CLIENTS = [f"site-{k}" for k in range(10)]
EVENT = GaussianEvent("full", 10, 10, 1.0, 1.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """The files of a ledger with a few entries, and the journal of a charge that was cut off."""
    path = tmp_path_factory.mktemp("whole") / "ledger"
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(50.0, 1e-5)
        for round in range(5):
            ledger.charge("a", round, EVENT)
        ledger.mark("a", 4, "digest")
    files = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    copy = Path(shutil.copy(path, path.with_name("copy")))
    db = sqlite3.connect(copy, isolation_level=None)
    db.execute("PRAGMA cache_size = 1")  # So that the journal is on disk before the end.
    db.execute("BEGIN IMMEDIATE")
    for table in range(9):
        db.execute(f"CREATE TABLE t{table} AS SELECT zeroblob(9000)")
    files["ledger-journal"] = copy.with_name("copy-journal").read_bytes()
    db.execute("ROLLBACK")
    db.close()
    return files


@pytest.mark.parametrize("name", ["ledger", "ledger.head", "ledger-journal"])
def test_damage(name, whole, tmp_path):
    path = tmp_path / "ledger"
    path.write_bytes(whole["ledger"])
    (tmp_path / "ledger.head").write_bytes(whole["ledger.head"])
    with Ledger.open(path, CLIENTS) as ledger:
        entries = list(ledger.entries())

    def same(ledger: Ledger) -> None:
        """Nothing is lost, and what is charged now is kept, too."""
        with ledger:
            assert list(ledger.entries()) == entries
            assert ledger.charged("a") == [0, 1, 2, 3, 4]
            number = ledger.charge("b", 0, EVENT)
        with Ledger.open(path, CLIENTS, write=False) as again:
            assert again.verify() == number + 1 == len(entries) + 1

    @fuzz(30)
    @given(damaged(whole[name]))
    def damage(content: bytes) -> None:
        for file in tmp_path.iterdir():
            file.unlink()
        for there in ("ledger", "ledger.head"):
            (tmp_path / there).write_bytes(whole[there])
        (tmp_path / name).write_bytes(content)
        judge(name, lambda: Ledger.open(path, CLIENTS), same, mention="ledger")

    damage()


@fuzz(50)
@given(st.binary(max_size=400), st.booleans())
def test_anything_after_the_mark_of_sqlite(tmp_path_factory, content, headed):
    """A file that begins like a database, with or without a head that knows better."""
    path = tmp_path_factory.mktemp("any") / "ledger"
    path.write_bytes(b"SQLite format 3\x00" + content)
    if headed:
        path.with_name("ledger.head").write_text(f"3 {'0' * 64}\n")

    def never(ledger: Ledger) -> None:
        raise AssertionError("this is no ledger")

    judge("ledger of any bytes", lambda: Ledger.open(path, CLIENTS), never, mention="ledger")
