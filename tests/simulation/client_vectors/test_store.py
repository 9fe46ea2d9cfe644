"""Clients own what they wrote and nothing else, in memory and on disk, before and after a crash."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pmtl.algorithms import build_algorithm
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, Store, simulate
from pmtl.simulation.client_vectors import row_file
from pmtl.simulation.client_vectors import rows_on_disk as disk_rows

M, WIDTH = 6, 3
START = torch.tensor([1.0, -2.0, 0.5])


@pytest.fixture(params=["memory", "disk"])
def where(request, monkeypatch):
    """Every promise is kept in both places."""
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "0" if request.param == "disk" else "1000000")
    return request.param


@pytest.fixture
def on_disk(monkeypatch):
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "0")


def rows(*numbers):
    return torch.tensor(numbers, dtype=torch.float32).unsqueeze(1).expand(-1, WIDTH).contiguous()


def clients(*numbers):
    return np.array(numbers, dtype=np.int64)


def saved(store):
    """What a checkpoint holds once it is on disk: a copy that later rounds cannot change."""
    parts = {name: part.clone() for name, part in store.snapshot().items()}
    store.checkpoint_saved()
    return parts


class TestOwnership:
    def test_clients_begin_with_the_start_and_take_no_space(self, where, tmp_path):
        store = Store(10**6, START, expected=2, file=tmp_path / "rows")
        assert store.where == where
        assert torch.equal(store.gather(clients(0, 999_999)), START.expand(2, -1))
        assert len(store.seen) == 0
        store.scatter(clients(999_999), rows(7))
        assert store.seen.tolist() == [999_999]
        assert torch.equal(store.gather(clients(5, 999_999)), torch.stack([START, rows(7)[0]]))
        if where == "disk":
            assert (tmp_path / "rows").stat().st_size == WIDTH * 4
        else:
            assert store.snapshot()["owned"].shape == (1, WIDTH)

    def test_what_is_gathered_is_a_copy(self, where):
        store = Store(M, START)
        store.scatter(clients(2), rows(4))
        taken = store.gather(clients(2, 0))
        taken += 100
        assert torch.equal(store.gather(clients(2, 0)), torch.stack([rows(4)[0], START]))
        assert START.tolist() == [1.0, -2.0, 0.5]

    def test_what_is_scattered_replaces_these_rows_and_no_others(self, where):
        store = Store(4, START)
        store.scatter(clients(3, 1), rows(1, 2))
        store.scatter(clients(1, 0), rows(5, 6))
        assert torch.equal(store.vectors, torch.stack([rows(6)[0], rows(5)[0], START, rows(1)[0]]))
        assert store.seen.tolist() == [0, 1, 3]

    def test_what_was_handed_over_is_not_kept_by_reference(self, where):
        store = Store(M, START)
        given = rows(3)
        store.scatter(clients(1), given)
        given += 1
        assert torch.equal(store.gather(clients(1)), rows(3))

    def test_who_owns_nothing_is_not_put_down(self, where):
        store = Store(M, START[:0])
        store.scatter(clients(1, 2), torch.zeros(2, 0))
        assert store.gather(clients(1, 2)).shape == (2, 0)
        assert len(store.seen) == 0

    def test_rows_are_made_in_the_order_in_which_clients_turn_up(self, where):
        store = Store(M, START)
        for client in (4, 1, 5, 0):
            store.scatter(clients(client), rows(client))
        assert saved(store)["clients"].tolist() == [4, 1, 5, 0]
        assert [row[0].item() for row in store.gather(clients(0, 1, 4, 5))] == [0, 1, 4, 5]

    def test_memory_grows_with_the_clients_seen_and_not_beyond_all(self):
        store = Store(10, START)
        lengths = []
        for client in range(10):
            store.scatter(clients(client), rows(client))
            lengths.append(store.snapshot()["owned"].untyped_storage().nbytes() // START.nbytes)
        assert lengths == [1, 2, 4, 4, 8, 8, 8, 8, 10, 10]
        assert store.vectors[:, 0].tolist() == list(range(10))


class TestWhere:
    @pytest.mark.parametrize(
        ("limit", "expected", "place"),
        [(72, None, "memory"), (71, None, "disk"), (24, 2, "memory"), (23, 2, "disk")],
    )
    def test_it_is_chosen_by_the_size_of_what_will_be_seen(
        self, limit, expected, place, monkeypatch
    ):
        monkeypatch.setenv("PMTL_MEMORY_LIMIT", str(limit))
        assert Store(M, START, expected).where == place

    @pytest.mark.parametrize(
        ("algorithm", "rounds", "place"),
        [
            ("pmtl", 1, "memory"),
            ("pmtl", 20, "disk"),
            ("local", 1, "disk"),
            ("fedavg", 20, "memory"),
        ],
    )
    def test_a_federation_expects_whom_its_plan_can_be_expected_to_draw(
        self, algorithm, rounds, place, small, monkeypatch
    ):
        """Two of twelve clients a round, five vectors of ten floats at most."""
        monkeypatch.setenv("PMTL_MEMORY_LIMIT", "200")
        plan = PrivacyPlan(small.m, 2, "poisson", 1.0, 0.1, rounds, 1e-3)
        model = build_model("logistic", small.input_shape, 2, small.task, 0)
        made = simulate(small, model, build_algorithm(algorithm), plan, LocalTraining(), 0)
        assert made.start().store.where == place


class Crashes(RuleBasedStateMachine):
    """Any order of rounds, checkpoints and crashes: what is found again is the last checkpoint."""

    @initialize(disk=st.booleans())
    def begin(self, disk):
        self.folder = tempfile.TemporaryDirectory()
        self.limit = pytest.MonkeyPatch()
        self.limit.setenv("PMTL_MEMORY_LIMIT", "0" if disk else "1000")
        self.store = self.fresh()
        self.owned = {}
        self.checkpoint = None, {}

    def fresh(self):
        return Store(M, START, file=Path(self.folder.name, "rows"))

    def teardown(self):
        self.limit.undo()
        self.folder.cleanup()

    @rule(chosen=st.sets(st.integers(0, M - 1), min_size=1), value=st.integers(-100, 100))
    def train(self, chosen, value):
        order = sorted(chosen)
        self.store.scatter(clients(*order), rows(*(value + k for k in order)))
        self.owned |= {k: float(value + k) for k in order}

    @rule()
    def save(self):
        self.checkpoint = saved(self.store), dict(self.owned)

    @rule()
    def fail_to_save(self):
        """The vectors are on disk, but the checkpoint that names them never was."""
        self.store.snapshot()

    @rule()
    def crash(self):
        parts, owned = self.checkpoint
        self.store = self.fresh()
        if parts is not None:
            self.store.restore({name: part.clone() for name, part in parts.items()})
        self.owned = dict(owned)

    @invariant()
    def clients_own_what_they_wrote(self):
        expected = torch.stack(
            [rows(self.owned[k])[0] if k in self.owned else START for k in range(M)]
        )
        assert torch.equal(self.store.vectors, expected)
        assert self.store.seen.tolist() == sorted(self.owned)

    @invariant()
    def no_client_takes_more_than_two_slots(self):
        file = Path(self.folder.name, "rows")
        assert not file.exists() or file.stat().st_size <= 2 * M * START.nbytes


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, derandomize=True
)


class TestOnDisk:
    def test_a_checkpoint_reads_and_writes_only_what_changed(self, on_disk, tmp_path, monkeypatch):
        store = Store(M, START, file=tmp_path / "rows")
        store.scatter(np.arange(M), rows(*range(M)))
        first = saved(store)
        before = (tmp_path / "rows").read_bytes()
        digested = []
        digest = row_file.digest_rows
        monkeypatch.setattr(
            row_file, "digest_rows", lambda rows: digested.append(len(rows)) or digest(rows)
        )
        store.scatter(clients(4), rows(40))
        store.scatter(clients(4), rows(41))
        second = saved(store)
        assert digested == [1]
        after = (tmp_path / "rows").read_bytes()
        assert after[: len(before)] == before  # What the first checkpoint names is untouched.
        assert len(after) == len(before) + 4 * WIDTH
        assert len(set(second["slots"].tolist()) - set(first["slots"].tolist())) == 1

    def test_the_digest_of_a_checkpoint_covers_every_vector(self, on_disk, tmp_path):
        tables = []
        for last in (5.0, 6.0):
            store = Store(M, START, file=tmp_path / f"{last}")
            store.scatter(np.arange(2), rows(1, last))
            tables.append(saved(store))
        assert torch.equal(tables[0]["slots"], tables[1]["slots"])
        assert not torch.equal(tables[0]["digests"], tables[1]["digests"])

    def test_vectors_are_on_the_disk_before_the_table_is_made(self, on_disk, tmp_path, monkeypatch):
        calls = []
        sync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda handle: calls.append("sync") or sync(handle))
        store = Store(M, START, file=tmp_path / "rows")
        store.scatter(clients(1), rows(1))
        assert calls == []
        store.snapshot()
        assert calls == ["sync"]

    @pytest.mark.parametrize("place", [0, 5, 4 * WIDTH, -1])
    def test_a_flipped_bit_is_refused(self, place, on_disk, tmp_path):
        file, parts = self.left_behind(tmp_path)
        raw = bytearray(file.read_bytes())
        raw[place] ^= 0x04
        file.write_bytes(raw)
        with pytest.raises(PmtlError, match="damaged: the vector of a client"):
            Store(M, START, file=file).restore(parts)

    def test_a_file_that_is_too_short_or_gone_is_refused(self, on_disk, tmp_path):
        file, parts = self.left_behind(tmp_path)
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(PmtlError, match="shorter"):
            Store(M, START, file=file).restore(parts)
        file.unlink()
        with pytest.raises(PmtlError, match="missing"):
            Store(M, START, file=file).restore(parts)

    def test_damage_outside_of_what_the_checkpoint_names_does_not_matter(self, on_disk, tmp_path):
        file, parts = self.left_behind(tmp_path)
        with file.open("ab") as appended:
            appended.write(b"what a crash left half written")
        store = Store(M, START, file=file)
        store.restore(parts)
        assert torch.equal(store.gather(clients(0, 2)), rows(1, 2))

    def test_two_clients_in_one_slot_are_refused(self, on_disk, tmp_path):
        file, parts = self.left_behind(tmp_path)
        parts["slots"][1] = parts["slots"][0]
        with pytest.raises(PmtlError, match="share a slot"):
            Store(M, START, file=file).restore(parts)

    def test_the_check_reports_its_progress(self, on_disk, tmp_path):
        file, parts = self.left_behind(tmp_path)
        reported = []
        Store(M, START, file=file).restore(parts, lambda: reported.append(1))
        assert len(reported) == disk_rows.CHECKS

    def test_a_full_disk_is_a_sentence(self, on_disk, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        store = Store(M, START, file=tmp_path / "rows")
        monkeypatch.setattr(row_file.os, "pwrite", full)
        with pytest.raises(PmtlError, match=r"disk is full.*rows could not be written"):
            store.scatter(clients(1), rows(1))
        with pytest.raises(PmtlError, match="disk is full: The temporary file"):
            Store(M, START).scatter(clients(1), rows(1))

    def test_short_reads_and_writes_are_completed(self, on_disk, monkeypatch):
        """The system may take or give less than it was asked for."""
        write, read = os.pwrite, os.preadv
        monkeypatch.setattr(row_file.os, "pwrite", lambda f, view, at: write(f, view[:5], at))
        monkeypatch.setattr(row_file.os, "preadv", lambda f, views, at: read(f, [views[0][:7]], at))
        store = Store(M, START)
        store.scatter(np.arange(M), rows(*range(M)))
        assert torch.equal(store.vectors, rows(*range(M)))

    def test_only_the_owner_may_read_the_file(self, on_disk, tmp_path):
        file, _ = self.left_behind(tmp_path)
        assert file.stat().st_mode & 0o077 == 0

    def test_what_was_saved_in_memory_goes_on_on_disk_and_the_other_way_round(
        self, tmp_path, monkeypatch
    ):
        stores = {}
        for limit in ("1000", "0"):
            monkeypatch.setenv("PMTL_MEMORY_LIMIT", limit)
            store = Store(M, START, file=tmp_path / f"rows-{limit}")
            store.scatter(clients(3, 1), rows(3, 1))
            stores[limit] = saved(store)
        other = Store(M, START, file=tmp_path / "new")  # on disk, from memory
        other.restore(stores["1000"])
        assert other.where == "disk"
        monkeypatch.setenv("PMTL_MEMORY_LIMIT", "1000")
        back = Store(M, START, file=tmp_path / "rows-0")  # vectors on disk stay there
        back.restore(stores["0"])
        assert back.where == "disk"
        assert torch.equal(other.vectors, store.vectors)
        assert torch.equal(back.vectors, store.vectors)

    def left_behind(self, tmp_path):
        """A file and its table, as a process that ended left them."""
        store = Store(M, START, file=tmp_path / "rows")
        store.scatter(clients(0, 2), rows(1, 2))
        return tmp_path / "rows", saved(store)


def test_a_snapshot_of_another_run_is_refused(where):
    store = Store(M, START)
    store.scatter(clients(M - 1), rows(1))
    parts = saved(store)
    with pytest.raises(PmtlError, match="does not fit this run of 5 clients"):
        Store(M - 1, START).restore(parts)
    if where == "memory":  # On disk, the digests tell.
        with pytest.raises(PmtlError, match="does not fit this run: its vectors"):
            Store(M, START[:2]).restore(parts)


@given(
    st.lists(st.integers(0, 30), unique=True, max_size=12),
    st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_rows_of_a_file_are_read_and_written_in_any_order(numbers, dtype):
    with disk_rows.temporary_file() as file:
        kept = row_file.RowFile(file, 2, dtype, begins=13)
        kept.write(np.arange(31), torch.zeros(31, 2))
        values = torch.arange(2.0 * len(numbers), dtype=dtype).view(-1, 2) + 1
        index = np.array(numbers, dtype=np.int64)
        kept.write(index, values)
        assert torch.equal(kept.read(index), values)
        others = np.setdiff1d(np.arange(31), index)
        assert not kept.read(others).any()
