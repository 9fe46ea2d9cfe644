"""Callbacks hear of a run as it goes on, and nothing that they do harms it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from weights import shared

import pmtl
from pmtl import storage as files
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.callbacks import Event
from pmtl.server import Server

PRIVACY = {"rounds": 4}
QUICK = {"steps": 1}


class Diary(pmtl.Callback):
    """Notes all events."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Event]] = []

    def on_round(self, event: Event) -> None:
        self.heard.append(("round", event))

    def on_checkpoint(self, event: Event) -> None:
        self.heard.append(("checkpoint", event))

    def on_end(self, event: Event) -> None:
        self.heard.append(("end", event))

    def rounds(self, kind: str) -> list[int]:
        return [event.round for name, event in self.heard if name == kind]


class Failing(pmtl.Callback):
    """Raises at the first event of a kind from some round on."""

    def __init__(self, kind: str, round: int) -> None:
        self._kind, self._round = kind, round

    def _fail(self, kind: str, event: Event) -> None:
        if kind == self._kind and event.round >= self._round:
            raise ValueError("no pen")

    def on_round(self, event: Event) -> None:
        self._fail("on_round", event)

    def on_checkpoint(self, event: Event) -> None:
        self._fail("on_checkpoint", event)

    def on_end(self, event: Event) -> None:
        self._fail("on_end", event)


def train(data, **options):
    return pmtl.train(data, privacy=PRIVACY, local=QUICK, **options)


def test_all_events_are_heard_with_the_lines_that_are_written(small, tmp_path):
    diary = Diary()
    path = tmp_path / "run"
    run = train(small, callbacks=[diary], out=path, checkpoint_seconds=0, evaluate_every=2)
    assert diary.rounds("round") == diary.rounds("checkpoint") == [1, 2, 3, 4]
    assert diary.rounds("end") == [4]
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [event.metrics for kind, event in diary.heard if kind == "round"] == lines
    last = diary.heard[-1][1]
    assert (last.rounds, last.path) == (4, path)
    assert torch.equal(last.shared[0], shared(run)[0])


def test_a_callback_changes_nothing(small):
    class Vandal(pmtl.Callback):
        def on_round(self, event: Event) -> None:
            event.shared.zero_()
            event.metrics.clear()

    run, spoilt = train(small), train(small, callbacks=[Vandal()])
    assert torch.equal(shared(run), shared(spoilt))
    assert run.metrics == spoilt.metrics


@pytest.mark.parametrize("mode", ["experiment", "production"])
def test_checkpoints_at_the_start_and_with_the_result_are_not_announced(mode, small, tmp_path):
    Ledger.create(tmp_path / "ledger.db", small.clients).close()
    diary = Diary()
    options = {"mode": mode, "ledger": tmp_path / "ledger.db", "out": tmp_path / "run"}
    train(small, callbacks=[diary], checkpoint_seconds=1e9, **options)
    assert diary.rounds("checkpoint") == []
    stated = " ".join(pmtl.Callback.on_checkpoint.__doc__.split())
    assert "Not called for two checkpoints" in stated


def test_production_tells_only_what_is_public(small, tmp_path, monkeypatch):
    Ledger.create(tmp_path / "ledger.db", small.clients).close()
    diary, published, publish = Diary(), {}, Server.publish

    def spy(self, tally, state, *more):
        publish(self, tally, state, *more)
        published[state.round] = state.shared.clone()

    monkeypatch.setattr(Server, "publish", spy)
    train(
        small,
        mode="production",
        ledger=tmp_path / "ledger.db",
        out=tmp_path / "run",
        callbacks=[diary],
    )
    public = (tmp_path / "run/public/metrics.jsonl").read_text().splitlines()
    heard = [dict(event.metrics) for kind, event in diary.heard if kind == "round"]
    assert heard == [json.loads(line) for line in public]
    assert set().union(*heard) <= {"round", "validation", "noise"}
    assert {event.path for _, event in diary.heard} == {tmp_path / "run/public"}
    assert all(torch.equal(event.shared, published[event.round]) for _, event in diary.heard)
    file = tmp_path / "run/public/shared.safetensors"
    assert torch.equal(diary.heard[-1][1].shared, files.read_tensors(file)[0]["weights"])


def test_nothing_is_shared_by_local_training(small):
    diary = Diary()
    train(small, algorithm="local", callbacks=[diary])
    assert {event.shared for _, event in diary.heard} == {None}


@pytest.mark.parametrize("kind", ["on_round", "on_checkpoint"])
@pytest.mark.parametrize("mode", ["experiment", "production"])
def test_an_error_ends_the_run_and_loses_nothing(kind, mode, small, tmp_path):
    Ledger.create(tmp_path / "ledger.db", small.clients).close()
    options = {"mode": mode, "ledger": tmp_path / "ledger.db", "out": tmp_path / "run"}
    failing = Failing(kind, 2)
    seconds = 0 if kind == "on_checkpoint" else 1e9
    with pytest.raises(pmtl.PmtlError, match=rf"test_callbacks:Failing failed in {kind} .*no pen"):
        train(small, callbacks=[failing], checkpoint_seconds=seconds, **options)
    diary = Diary()
    run = pmtl.resume(tmp_path / "run", data=small, callbacks=[diary])
    assert diary.rounds("round") == [3, 4]
    with Ledger.open(tmp_path / "ledger.db", write=False) as ledger:
        assert ledger.charged(run.facts.id) == [0, 1, 2, 3]
    if mode == "experiment":
        assert torch.equal(shared(run), shared(train(small)))


@pytest.mark.parametrize("kind", ["on_round", "on_end"])
def test_an_error_at_the_end_leaves_a_run_that_can_be_finished(kind, small, tmp_path):
    with pytest.raises(pmtl.PmtlError, match=f"failed in {kind} after round 4 of 4"):
        train(small, callbacks=[Failing(kind, 4)], out=tmp_path / "run")
    if kind == "on_round":
        pmtl.resume(tmp_path / "run", data=small)
    assert torch.equal(shared(pmtl.load_run(tmp_path / "run")), shared(train(small)))


def test_an_error_of_a_run_in_memory_says_so(small):
    with pytest.raises(pmtl.PmtlError, match="had no folder"):
        train(small, callbacks=[Failing("on_round", 1)])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("no_such_module:Plot", "cannot be imported"),
        ("plot", "There is no callback 'plot'"),
        ("json:loads", "is not a pmtl.Callback"),
        ("json:loads:colour=red", "is not a class, so it takes no options"),
        (Failing, "cannot be made"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_is_written(given, words, small, tmp_path):
    with pytest.raises(pmtl.PmtlError, match=words):
        train(small, callbacks=[given], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_line_takes_names(tmp_path, monkeypatch, pmtl_command):
    monkeypatch.chdir(tmp_path)
    Path("my_plots.py").write_text(
        "import pmtl\n"
        "class Plot(pmtl.Callback):\n"
        "    def on_end(self, event):\n"
        "        open('heard.txt', 'w').write(f'{event.round} of {event.rounds}')\n"
    )
    done = pmtl_command("train", "--rounds", 2, "--out", "run", "--callback", "my_plots:Plot")
    assert done.status == 0, done.err
    assert Path("heard.txt").read_text() == "2 of 2"


class Wordless(Exception):
    """An error whose text is an error."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [SystemExit(3), Wordless()])
def test_whatever_a_callback_raises_the_run_is_saved(small, tmp_path, error):
    class Leaves(pmtl.Callback):
        def on_round(self, event: Event) -> None:
            if event.round == 3:
                raise error

    path = tmp_path / "run"
    with pytest.raises(pmtl.PmtlError, match="failed in on_round after round 3 of 4"):
        train(small, callbacks=[Leaves()], out=path, checkpoint_seconds=1e9)
    left = Diary()
    pmtl.resume(path, data=small, callbacks=[left])
    assert left.rounds("round") == [4]


def test_a_callback_cannot_change_nested_metrics(small):
    class Vandal(pmtl.Callback):
        def on_round(self, event: Event) -> None:
            for view in event.metrics.get("validation", {}).values():
                view["loss"] = 123.0

    run = train(small, callbacks=[Vandal()], evaluate_every=1)
    assert all(line["validation"]["personal"]["loss"] != 123.0 for line in run.metrics)


def test_what_the_server_keeps_survives_a_stop(small, tmp_path):
    """FedAdam's moments are in the checkpoint: a resumed run ends with the same bits."""
    settings = {"algorithm": "fedadam", "checkpoint_seconds": 0}
    whole = train(small, out=tmp_path / "whole", **settings)
    with pytest.raises(pmtl.PmtlError, match="no pen"):
        train(small, out=tmp_path / "cut", callbacks=[Failing("on_round", 2)], **settings)
    resumed = pmtl.resume(tmp_path / "cut", data=small)
    assert torch.equal(shared(resumed), shared(whole))


def test_a_failure_in_the_round_that_ends_the_run_says_that_it_is_complete(small, tmp_path):
    privacy = {"epsilon": 2.0, "rounds": 9, "metrics": 0.2}
    options = {"privacy": privacy, "local": QUICK, "patience": 1, "evaluate_every": 1}
    whole = pmtl.train(small, **options)
    stopped = len(whole.metrics)
    assert stopped < 9
    diary = Diary()
    callbacks = [Failing("on_round", stopped), diary]
    with pytest.raises(pmtl.PmtlError, match=r"failed in on_round .* complete nevertheless"):
        pmtl.train(small, out=tmp_path / "run", callbacks=callbacks, **options)
    assert diary.rounds("end") == [stopped]
    assert len(pmtl.load_run(tmp_path / "run").metrics) == stopped
