"""A run and its ledger belong together: a ledger that was rolled back, replaced or made anew is
refused, and what it lacks can be charged afterwards."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

import pmtl
from pmtl.errors import Interrupted, PmtlError
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan
from pmtl.runs import session
from pmtl.runs.budget import Budget, Checkpoint, Published
from pmtl.runs.folder import RunFolder
from pmtl.runs.missing_charges import charge_missing

ROUNDS = 8
PLAN = {"epsilon": 2.0, "rounds": ROUNDS}


@pytest.fixture
def ledger(small, tmp_path):
    path = tmp_path / "ledger.db"
    Ledger.create(path, small.clients).close()
    return path


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def produce(small, ledger, **options):
    values = {"privacy": PLAN, "local": {"steps": 1}, "mode": "production", "ledger": ledger}
    return pmtl.train(small, **{"evaluate_every": 2, **values, **options})


def parts(path):
    return [path, path.with_name(path.name + ".head")]


def keep(path, name):
    """Copy a ledger and its head aside, as a backup would; they fit together."""
    for part in parts(path):
        shutil.copy(part, part.with_name(f"{part.name}.{name}"))


def put_back(path, name):
    for part in parts(path):
        shutil.copy(part.with_name(f"{part.name}.{name}"), part)


def stopped(small, ledger, run, monkeypatch, after, copies=(), **options):
    """A run that ends with the line of a round, as by a power cut; its ledger is copied after some
    rounds."""
    save = RunFolder.save_round

    def save_and_stop(self, line):
        save(self, line)
        if line["round"] in copies:
            keep(ledger, str(line["round"]))
        if line["round"] == after:
            raise Interrupted("enough")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", save_and_stop)
        with pytest.raises(Interrupted):
            produce(small, ledger, out=run, **{"checkpoint_seconds": 0.0, **options})


def charges(ledger, kind="training"):
    with Ledger.open(ledger, write=False) as opened:
        opened.verify()
        return [round for name in opened.runs() for round in opened.charged(name, kind)]


def refused(small, run, words):
    before = RunFolder(run).metrics_file.read_bytes()
    with pytest.raises(PmtlError, match=words) as refusal:
        pmtl.resume(run, data=small)
    assert "pmtl ledger charge" in str(refusal.value)
    assert RunFolder(run).metrics_file.read_bytes() == before  # it still shows what was published


# --- refusals ---


@pytest.mark.parametrize("checkpoints", [0.0, 1e9])
def test_a_ledger_that_was_rolled_back_with_its_head_is_refused(
    checkpoints, small, ledger, run, monkeypatch
):
    """The hole: all rounds were published, a few were charged, and the statement was of the few.
    With a checkpoint each round, and with none but the start."""
    options = {"checkpoint_seconds": checkpoints}
    stopped(small, ledger, run, monkeypatch, after=6, copies=(2,), **options)
    put_back(ledger, "2")
    assert charges(ledger) == [0, 1]
    refused(small, run, "rolled back")
    assert charges(ledger) == [0, 1]


def test_metrics_that_are_not_charged_are_refused(small, ledger, run, monkeypatch):
    """The ledger has the round's charge, and lacks that of its metrics."""
    charge = Budget.charge

    def copy_before_metrics(self, round, kind="training"):
        if kind == "validation" and round == 4:
            keep(ledger, "before")
        charge(self, round, kind)

    with monkeypatch.context() as patch:
        patch.setattr(Budget, "charge", copy_before_metrics)
        stopped(small, ledger, run, monkeypatch, after=4, checkpoint_seconds=1e9)
    put_back(ledger, "before")
    assert charges(ledger) == [0, 1, 2, 3]
    assert charges(ledger, "validation") == [2]
    refused(small, run, "1 of 6 releases")


def test_a_ledger_that_was_made_anew_is_refused(small, ledger, run, monkeypatch):
    stopped(small, ledger, run, monkeypatch, after=5)
    for part in parts(ledger):
        part.unlink()
    Ledger.create(ledger, small.clients).close()
    refused(small, run, "began with another ledger")
    assert charges(ledger) == []


def test_a_rolled_back_ledger_that_went_on_with_other_runs_is_refused(
    small, ledger, run, monkeypatch
):
    """It is as long as it was, and has charges of all that the folder shows."""
    stopped(small, ledger, run, monkeypatch, after=3, copies=(1,))
    put_back(ledger, "1")
    (name,) = {entry.run for entry in entries(ledger) if entry.kind == "mark"}
    with Ledger.open(ledger, small.clients) as opened:
        training, metrics = opened.plan(name)
        opened.charge(name, 1, training)
        opened.charge(name, 2, training)
        opened.charge(name, 2, metrics)
        for _ in range(8):
            opened.mark("another", 1, "digest")
    refused(small, run, "newer than the ledger")


def entries(ledger):
    with Ledger.open(ledger, write=False) as opened:
        return list(opened.entries())


def test_a_checkpoint_of_the_same_round_but_another_history_is_refused(
    small, ledger, run, tmp_path, monkeypatch
):
    """Two copies of a folder go on from one checkpoint. They publish different models for the same
    rounds, and the ledger belongs to the one that it has marks of."""
    stopped(small, ledger, run, monkeypatch, after=3)
    other = tmp_path / "other"
    shutil.copytree(run, other)
    keep(ledger, "fork")

    def go_on(folder):
        stop = RunFolder.save_round

        def save_and_stop(self, line):
            stop(self, line)
            if line["round"] == 5:
                raise Interrupted("enough")

        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "save_round", save_and_stop)
            with pytest.raises(Interrupted):
                pmtl.resume(folder, data=small)

    go_on(other)
    put_back(ledger, "fork")
    go_on(run)
    rounds = [RunFolder(folder).checkpoint().round for folder in (run, other)]
    assert rounds == [4, 4]
    with pytest.raises(PmtlError, match="rolled back"):
        pmtl.resume(other, data=small)
    # Charging afterwards takes nothing of the other copy for this one's: its three releases since
    # they parted are charged, though the ledger has charges for the same rounds.
    before = len(charges(ledger))
    assert charge_missing(ledger, other)["charged"]["training"] == 3
    assert len(charges(ledger)) == before + 3


@pytest.mark.parametrize("reproducible", [True, False])
def test_a_mark_is_of_one_checkpoint_and_no_other(reproducible, small, ledger):
    plan = PrivacyPlan(small.m, small.m, "full", 1.0, 1.0, 5, 1e-3)
    published = Published(2, [])
    with Ledger.open(ledger, small.clients) as opened:
        budget = Budget(opened, "a", plan, None, reproducible)
        for round in range(2):
            budget.charge(round)
        last = [opened.last.sequence, opened.last.hash]
        history = {"run": "a", "entry": last, "charged": {"training": 2}}
        budget.saved(2, "digest")
        budget.check_resumable(Checkpoint(2, "digest", history), published)
        for other in (
            Checkpoint(2, "another", history),
            Checkpoint(1, "digest", history),
            Checkpoint(1, "another", history),
            None,
        ):
            with pytest.raises(PmtlError, match="rolled back"):
                budget.check_resumable(other, published)
        strangers = Checkpoint(3, "newer", history | {"run": "b"})
        if not reproducible:
            with pytest.raises(PmtlError, match="belongs to another"):
                budget.check_resumable(strangers, published)
        assert opened.last_mark("a") == (2, "digest")


def test_a_checkpoint_without_its_mark_is_taken_once(small, ledger, run, monkeypatch):
    """A crash came between the two. Later charges belong to a later state of the folder."""
    with monkeypatch.context() as patch:
        saved = Budget.saved

        def die_at_three(self, round, digest):
            if round == 3:
                raise Interrupted("power cut")
            saved(self, round, digest)

        patch.setattr(Budget, "saved", die_at_three)
        with pytest.raises(Interrupted):
            produce(small, ledger, out=run, checkpoint_seconds=0.0)
    third = RunFolder(run).checkpoint_file.read_bytes()
    assert RunFolder(run).checkpoint().round == 3
    with monkeypatch.context() as patch:
        patch.setattr(Budget, "refuses", lambda *_: pytest.fail("enough"))
        with pytest.raises(pytest.fail.Exception):
            pmtl.resume(run, data=small)
    marks = [entry.round for entry in entries(ledger) if entry.kind == "mark"]
    assert marks == [0, 1, 2, 3]  # put down when the run went on
    assert pmtl.resume(run, data=small).metrics[-1]["round"] == ROUNDS
    folder = RunFolder(run)
    folder.save_facts(replace(folder.facts(), state="running"))
    RunFolder(run).checkpoint_file.write_bytes(third)
    with pytest.raises(PmtlError, match="rolled back"):
        pmtl.resume(run, data=small)


def test_a_folder_without_checkpoint_is_refused_once_something_is_charged(
    small, ledger, run, monkeypatch
):
    stopped(small, ledger, run, monkeypatch, after=2)
    RunFolder(run).checkpoint_file.unlink()
    with pytest.raises(PmtlError, match="has no checkpoint"):
        pmtl.resume(run, data=small)


def test_a_run_whose_ledger_lost_charges_states_no_epsilon(small, ledger, run, monkeypatch):
    """Compared at the end, too: the ledger is replaced by an older copy during the last round."""
    finish = session._finish

    def replaced(*arguments):
        put_back(ledger, "2")
        return finish(*arguments)

    save = RunFolder.save_round

    def copy(self, line):
        save(self, line)
        if line["round"] == 2:
            keep(ledger, "2")

    monkeypatch.setattr(RunFolder, "save_round", copy)
    monkeypatch.setattr(session, "_finish", replaced)
    with pytest.raises(PmtlError, match=r"rolled back|replaced"):
        produce(small, ledger, out=run)
    assert not RunFolder(run).statement_file.exists()
    assert RunFolder(run).facts().state == "running"


def test_an_experiment_with_uncharged_rounds_is_refused_too(small, ledger, run, monkeypatch):
    options = {"mode": "experiment", "seed": 1}
    stopped(small, ledger, run, monkeypatch, after=6, copies=(2,), **options)
    put_back(ledger, "2")
    refused(small, run, "4 of 6 releases")


@pytest.mark.parametrize("written", [False, True])
def test_a_crash_before_or_after_any_entry_of_the_ledger_is_survived(
    written, small, tmp_path, monkeypatch
):
    """Populations, plans, charges, marks: the run goes on, and never costs more than its plan."""
    fewer = small.select(small.clients[1:])  # so that a population is put down, too
    append, kinds = Ledger._append, []
    for place in range(100):
        run, ledger = tmp_path / f"run-{place}", tmp_path / f"ledger-{place}.db"
        Ledger.create(ledger, small.clients).close()
        count = iter(range(100))

        def die(self, kind, *rest, place=place, count=count):
            now = next(count) == place
            if now and not written:
                raise Interrupted(kind)
            number = append(self, kind, *rest)
            if now:
                raise Interrupted(kind)
            return number

        options = {"privacy": {**PLAN, "rounds": 3}, "evaluate_every": 3, "out": run}
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "_append", die)
            try:
                produce(fewer, ledger, checkpoint_seconds=0.0, **options)
                break
            except Interrupted as death:
                kinds.append(str(death))
        finished = pmtl.resume(run, data=fewer)
        rounds = finished.metrics[-1]["round"]
        assert set(range(rounds)) <= set(charges(ledger))
        assert len(charges(ledger)) == 3
        assert finished.privacy.epsilon <= 2.0
    assert kinds[:4] == ["mark", "population", "plan", "charge"]
    assert kinds.count("charge") == 4  # three models and their metrics
    assert len(kinds) >= 9


def test_a_damaged_checkpoint_is_not_believed_when_what_is_missing_is_charged(
    small, ledger, run, monkeypatch
):
    stopped(small, ledger, run, monkeypatch, after=4)
    file = RunFolder(run).checkpoint_file
    whole = file.read_bytes()
    assert whole.count(b'\\"round\\": 3') == 1
    file.write_bytes(whole.replace(b'\\"round\\": 3', b'\\"round\\": 1'))
    before = charges(ledger)
    with pytest.raises(PmtlError, match="damaged"):
        charge_missing(ledger, run)
    assert charges(ledger) == before


# --- charging what is missing ---


def test_what_is_missing_is_charged_and_the_run_goes_on(small, ledger, run, monkeypatch):
    stopped(small, ledger, run, monkeypatch, after=6, copies=(2,))
    put_back(ledger, "2")
    done = charge_missing(ledger, run)
    assert done["charged"] == {"training": 4, "validation": 2}
    assert (done["complete"], done["passed"]) == (False, [])
    assert charges(ledger) == [0, 1, 2, 3, 4, 5]
    afterwards = [e.round for e in entries(ledger) if "afterwards" in e.values]
    assert afterwards == [2, 3, 4, 5, 4, 6]
    assert charge_missing(ledger, run)["charged"] == {"training": 0, "validation": 0}
    finished = pmtl.resume(run, data=small)
    assert finished.privacy.rounds == ROUNDS
    assert 1.9 < finished.privacy.epsilon <= 2.0


def test_a_new_ledger_takes_over_with_all_that_was_lost_to_crashes(
    small, ledger, run, tmp_path, monkeypatch
):
    """Round 2 was published twice. The folder's lines show it once, its checkpoint twice."""
    stopped(small, ledger, run, monkeypatch, after=3, evaluate_every=0)
    assert charges(ledger) == [0, 1, 2]
    with monkeypatch.context() as patch:
        save = RunFolder.save_round

        def stop(self, line):
            save(self, line)
            if line["round"] == 5:
                raise Interrupted("enough")

        patch.setattr(RunFolder, "save_round", stop)
        with pytest.raises(Interrupted):
            pmtl.resume(run, data=small)
    assert charges(ledger) == [0, 1, 2, 2, 3, 4]
    new = tmp_path / "new.db"
    Ledger.create(new, small.clients).close()
    assert charge_missing(new, run)["charged"] == {"training": 6}
    finished = pmtl.resume(run, data=small)
    assert len(charges(new)) == ROUNDS
    assert charges(ledger) == [0, 1, 2, 2, 3, 4]  # the old one is not touched
    assert finished.privacy.rounds == ROUNDS
    facts = RunFolder(run).facts()
    assert facts.ledger == str(new)


def test_a_finished_run_can_be_charged_and_its_statement_is_made_anew(
    small, ledger, run, pmtl_command
):
    keep(ledger, "empty")
    first = produce(small, ledger)
    second = produce(small, ledger, out=run)
    assert second.privacy.population_epsilon > first.privacy.epsilon
    put_back(ledger, "empty")
    shown = pmtl_command("ledger", "charge", ledger, "--run", run, "--json")
    assert shown.status == 0, shown.err
    told = json.loads(shown.out)
    assert told["charged"] == {"training": ROUNDS, "validation": ROUNDS // 2}
    assert told["complete"]
    again = pmtl.load_run(run, data=small)
    assert again.privacy.epsilon == second.privacy.epsilon
    # This ledger knows of one run only.
    assert again.privacy.population_epsilon == pytest.approx(again.privacy.epsilon)
    assert json.loads((RunFolder(run).public / "privacy.json").read_text())[
        "population_epsilon"
    ] == (again.privacy.population_epsilon)


def test_it_works_past_a_cap_and_says_so(small, ledger, run, pmtl_command):
    keep(ledger, "empty")
    produce(small, ledger, out=run)
    put_back(ledger, "empty")
    with Ledger.open(ledger) as opened:
        opened.cap(0.5)
    shown = pmtl_command("ledger", "charge", ledger, "--run", run)
    assert shown.status == 0, shown.err
    assert f"Charged {ROUNDS} models and {ROUNDS // 2} metrics" in shown.out
    assert "12 clients exceed the cap of ε = 0.5" in shown.err
    with Ledger.open(ledger, small.clients) as opened, pytest.raises(PmtlError, match="cap"):
        opened.charge("b", 0, next(iter(opened.events())))


def test_a_crash_while_it_charges_is_made_good_by_charging_again(small, ledger, run, monkeypatch):
    stopped(small, ledger, run, monkeypatch, after=6, copies=(1,))
    put_back(ledger, "1")
    charge = Ledger.charge
    for last in (2, 4):
        with monkeypatch.context() as patch:

            def die(self, name, round, event, afterwards=False, last=last):
                if round == last:
                    raise Interrupted("power cut")
                return charge(self, name, round, event, afterwards)

            patch.setattr(Ledger, "charge", die)
            with pytest.raises(Interrupted):
                charge_missing(ledger, run)
        refused(small, run, "rolled back")
    charge_missing(ledger, run)
    assert charges(ledger) == [0, 1, 2, 3, 4, 5]
    assert charges(ledger, "validation") == [2, 4, 6]
    assert pmtl.resume(run, data=small).privacy.rounds == ROUNDS


def test_charging_does_not_make_an_older_checkpoint_good(small, ledger, run, monkeypatch):
    older = []
    save = RunFolder.save_checkpoint

    def save_and_copy(self, progress, history):
        digest = save(self, progress, history)
        older.append(self.checkpoint_file.read_bytes())
        return digest

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", save_and_copy)
        stopped(small, ledger, run, monkeypatch, after=4)
    RunFolder(run).checkpoint_file.write_bytes(older[2])
    with pytest.raises(PmtlError, match="rolled back"):
        charge_missing(ledger, run)
    with pytest.raises(PmtlError, match="rolled back"):
        pmtl.resume(run, data=small)


def test_a_run_of_pmtl_0_1_is_bound_by_charging(small, ledger, run, monkeypatch):
    """Its folder does not say which ledger it began with."""
    stopped(small, ledger, run, monkeypatch, after=4)
    folder = RunFolder(run)
    folder.save_facts(replace(folder.facts(), ledger_id=None))
    refused(small, run, "does not name its ledger")
    assert charge_missing(ledger, run)["charged"] == {"training": 0, "validation": 0}
    assert pmtl.resume(run, data=small).privacy.rounds == ROUNDS


def test_nothing_published_is_nothing_to_charge(small, ledger, run):
    produce(small, ledger, out=run, algorithm="local")
    with pytest.raises(PmtlError, match="published nothing"):
        charge_missing(ledger, run)


# --- clients who join and leave between runs ---


def test_runs_on_changing_clients_share_one_ledger(small, ledger):
    told: list[str] = []
    first = produce(small, ledger, warn=told.append)
    assert not any("joined" in sentence for sentence in told)
    fewer = small.select(small.clients[1:])
    second = produce(fewer, ledger, warn=told.append)
    assert any("0 joined and 1 left" in sentence for sentence in told)
    assert second.privacy.population_epsilon > 1.3 * first.privacy.epsilon
    assert second.privacy.population_filter >= second.privacy.population_epsilon
    with Ledger.open(ledger, write=False) as opened:
        assert sorted(opened.spans().values()) == [1, 11]
        gone = opened.account(opened.populations.spans[small.clients[0]])
        assert len(gone) == 1
    lone = produce(small.select(small.clients[:1]), ledger)
    assert lone.privacy.population_epsilon < second.privacy.population_epsilon


def test_a_second_ledger_for_the_same_clients_is_named(small, ledger, tmp_path):
    Ledger.create(tmp_path / "second.db", small.clients).close()
    told: list[str] = []
    produce(small, ledger, warn=told.append)
    assert any(str(tmp_path / "second.db") in sentence for sentence in told)
