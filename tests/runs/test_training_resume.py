"""A run that was stopped continues to the same bytes, however it was stopped."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pmtl
from pmtl import storage as files
from pmtl.algorithms import PMTL
from pmtl.errors import Interrupted
from pmtl.runs.folder import RunFolder
from pmtl.simulation import RoundReport

OPTIONS = {
    "privacy": {"epsilon": 3.0, "rounds": 12, "cohort": 5},
    "local": {"steps": 2, "batch": 4},
    "evaluate_every": 5,
    "seed": 2,
}
COMPARED = (
    "config.toml",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "personal.safetensors",
    "shared.safetensors",
    "result.json",
    "privacy.json",
)


def contents(folder: Path) -> dict[str, bytes]:
    there = [name for name in COMPARED if (folder / name).exists()]
    assert "shared.safetensors" in there
    return {name: (folder / name).read_bytes() for name in there}


def stop_after(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Make the run end, as if the power went, right after it wrote the metrics of a round."""
    save = RunFolder.save_round

    def save_and_die(self, line):
        save(self, line)
        if line["round"] == rounds:
            raise SystemError("power cut")

    monkeypatch.setattr(RunFolder, "save_round", save_and_die)


@pytest.mark.parametrize("checkpoints", [0.0, 60.0])
def test_lines_that_are_written_a_round_late_are_all_there(
    checkpoints, small, tmp_path, monkeypatch
):
    """As on a graphics card, where a round's numbers arrive when the next one is on its way."""
    pmtl.train(small, out=tmp_path / "whole", **OPTIONS)
    monkeypatch.setattr(RoundReport, "pending", True)
    pmtl.train(small, out=tmp_path / "late", **OPTIONS)
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(SystemError):
            pmtl.train(small, out=tmp_path / "cut", **OPTIONS, checkpoint_seconds=checkpoints)
    pmtl.resume(tmp_path / "cut", data=small)
    whole = contents(tmp_path / "whole")["metrics.jsonl"]
    assert contents(tmp_path / "late")["metrics.jsonl"] == whole
    assert contents(tmp_path / "cut")["metrics.jsonl"] == whole


@pytest.mark.parametrize("algorithm", ["pmtl", "ditto", "ppsgd", "fedavg", "local"])
@pytest.mark.parametrize("rounds", [1, 7])
def test_a_resumed_run_equals_an_uninterrupted_one(algorithm, rounds, small, tmp_path, monkeypatch):
    pmtl.train(small, algorithm=algorithm, out=tmp_path / "whole", **OPTIONS)
    with monkeypatch.context() as patch:
        stop_after(patch, rounds)
        with pytest.raises(SystemError):
            pmtl.train(
                small,
                algorithm=algorithm,
                out=tmp_path / "cut",
                **OPTIONS,
                checkpoint_seconds=0.0,
            )
    assert RunFolder(tmp_path / "cut").facts().state == "running"
    pmtl.resume(tmp_path / "cut", data=small)
    whole, cut = contents(tmp_path / "whole"), contents(tmp_path / "cut")
    whole.pop("config.toml"), cut.pop("config.toml")  # They differ in checkpoint_seconds.
    assert whole == cut


def test_a_run_without_any_checkpoint_starts_again(small, tmp_path, monkeypatch):
    pmtl.train(small, out=tmp_path / "whole", **OPTIONS)
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(SystemError):
            pmtl.train(small, out=tmp_path / "cut", **OPTIONS)
    assert not (tmp_path / "cut/checkpoint.safetensors").exists()
    pmtl.resume(tmp_path / "cut", data=small)
    assert contents(tmp_path / "whole") == contents(tmp_path / "cut")


@pytest.mark.parametrize(
    "given",
    [
        {"checkpoint_seconds": 0},
        {"local": {"steps": np.int64(2), "lr": 1}},
        {"privacy": {"epsilon": 3, "rounds": 12, "cohort": 5, "clip": 1}},
        {"privacy": {"noise": np.float32(0.5), "rounds": np.int64(12), "cohort": 5}},
    ],
)
def test_a_run_goes_on_whatever_kind_of_number_it_was_given(given, small, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(SystemError):
            pmtl.train(small, out=tmp_path / "cut", **OPTIONS | given)
    assert len(pmtl.resume(tmp_path / "cut", data=small).metrics) == 12


def test_an_algorithm_that_was_given_whole_numbers_goes_on_to_the_same_bits(
    small, tmp_path, monkeypatch
):
    """Its name in the run's files is read as real numbers, and keys the noise."""
    options = OPTIONS | {"algorithm": PMTL(lam=1), "checkpoint_seconds": 0.0}
    pmtl.train(small, out=tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(SystemError):
            pmtl.train(small, out=tmp_path / "cut", **options)
    pmtl.resume(tmp_path / "cut", data=small)
    assert contents(tmp_path / "whole") == contents(tmp_path / "cut")


def test_a_torn_metrics_line_is_dropped(small, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(SystemError):
            pmtl.train(small, out=tmp_path / "cut", **OPTIONS, checkpoint_seconds=0.0)
    with (tmp_path / "cut/metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "coh')
    run = pmtl.resume(tmp_path / "cut", data=small)
    assert [line["round"] for line in run.metrics] == list(range(1, 13))


#: The number of kills, and of the rounds of the run.
KILLS = [(6, 75), pytest.param(12, 150, marks=pytest.mark.thorough)]


def killed_and_resumed(tmp_path, mode: str, kills: int, rounds: int) -> dict:
    """Kills at seeded random instants across training, ledger and checkpoint."""
    script = Path(__file__).parents[1] / "programs/killed.py"
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(kills), "7", mode, str(rounds)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["killed"] >= kills
    assert report["killed_mid_run"] >= kills / 2
    return report


@pytest.mark.parametrize(("kills", "rounds"), KILLS)
def test_kill_9_at_any_moment_loses_nothing(kills, rounds, tmp_path):
    """The same bytes as without any kill, and each release charged once."""
    report = killed_and_resumed(tmp_path, "experiment", kills, rounds)
    assert report["charged"] == list(range(rounds))  # once, however often it was replayed
    assert report["metrics_charged"] == report["evaluations"] == [*range(20, rounds, 20), rounds]
    whole, killed = contents(tmp_path / "whole"), contents(tmp_path / "killed")
    whole.pop("config.toml"), killed.pop("config.toml")  # They name different ledgers.
    assert whole == killed


@pytest.mark.parametrize(("kills", "rounds"), KILLS)
def test_kill_9_in_production_forgets_no_charge_and_never_passes_the_plan(kills, rounds, tmp_path):
    """A replayed round is another release: charged again, and the run ends that much earlier."""
    report = killed_and_resumed(tmp_path, "production", kills, rounds)
    charged = report["charged"]
    assert set(range(report["rounds"])) <= set(charged)
    assert len(charged) == rounds
    assert report["rounds"] <= rounds - (len(charged) - len(set(charged)))
    assert set(report["evaluations"]) <= set(report["metrics_charged"])
    assert len(report["metrics_charged"]) <= math.ceil(rounds / 20)
    assert report["epsilon"] == report["population_epsilon"] <= 3.0


def test_ctrl_c_leaves_a_resumable_run_and_says_how(small, tmp_path, monkeypatch):
    save = RunFolder.save_round

    def save_and_interrupt(self, line):
        save(self, line)
        if line["round"] == 3:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", save_and_interrupt)
        with pytest.raises(Interrupted, match=r"round 3 of 12.*pmtl resume"):
            pmtl.train(small, out=tmp_path / "cut", **OPTIONS)
    assert signal.getsignal(signal.SIGINT) is before
    assert files.read_tensors(tmp_path / "cut/checkpoint.safetensors")[1]["round"] == 3
    pmtl.resume(tmp_path / "cut", data=small)
    pmtl.train(small, out=tmp_path / "whole", **OPTIONS)
    assert contents(tmp_path / "whole") == contents(tmp_path / "cut")


def cut_run(small, tmp_path, monkeypatch) -> Path:
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(SystemError):
            pmtl.train(small, out=tmp_path / "cut", **OPTIONS, checkpoint_seconds=0.0)
    return tmp_path / "cut"


def test_other_data_is_refused(small, tmp_path, monkeypatch):
    path = cut_run(small, tmp_path, monkeypatch)
    with pytest.raises(pmtl.PmtlError, match="clients"):
        pmtl.resume(path, data=small.select(small.clients[:5]))
    other = pmtl.FederatedData.from_arrays(small.x + 1, small.y, _owners(small), outputs=2)
    with pytest.raises(pmtl.PmtlError, match="fingerprint"):
        pmtl.resume(path, data=other)
    with pytest.raises(pmtl.PmtlError, match="Python program"):
        pmtl.resume(path)


def _owners(data):
    import numpy as np

    owner = np.empty(len(data.y), dtype=object)
    for split in data.splits.values():
        for k, client in enumerate(data.clients):
            owner[split.of(k)] = client
    return owner.astype(str)


@pytest.mark.parametrize("place", [0, 40, 2000, -1])
def test_a_flipped_bit_in_the_checkpoint_is_noticed(place, small, tmp_path, monkeypatch):
    path = cut_run(small, tmp_path, monkeypatch)
    file = path / "checkpoint.safetensors"
    raw = bytearray(file.read_bytes())
    raw[place % len(raw)] ^= 0x10
    file.write_bytes(raw)
    with pytest.raises(pmtl.PmtlError, match=r"damaged|does not fit"):
        pmtl.resume(path, data=small)


def test_a_truncated_checkpoint_and_a_broken_run_json_are_refused(small, tmp_path, monkeypatch):
    path = cut_run(small, tmp_path, monkeypatch)
    file = path / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(pmtl.PmtlError, match="damaged"):
        pmtl.resume(path, data=small)
    (path / "run.json").write_text("{")
    with pytest.raises(pmtl.PmtlError, match="not JSON"):
        pmtl.resume(path, data=small)


def test_a_complete_run_has_nothing_to_resume(small, tmp_path):
    pmtl.train(small, out=tmp_path / "run", **OPTIONS)
    with pytest.raises(pmtl.PmtlError, match="complete"):
        pmtl.resume(tmp_path / "run", data=small)
    with pytest.raises(pmtl.PmtlError, match="no run at"):
        pmtl.resume(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    with pytest.raises(pmtl.PmtlError, match="not a run"):
        pmtl.resume(tmp_path / "other")


def test_an_unfinished_run_is_not_evaluated(small, tmp_path, monkeypatch):
    path = cut_run(small, tmp_path, monkeypatch)
    with pytest.raises(pmtl.PmtlError, match=r"not finished.*resume"):
        pmtl.load_run(path, data=small)


def test_two_processes_cannot_work_on_one_run(small, tmp_path, monkeypatch):
    path = cut_run(small, tmp_path, monkeypatch)
    with (
        files.exclusive(path / ".lock"),
        pytest.raises(pmtl.PmtlError, match="Another process"),
    ):
        pmtl.resume(path, data=small)
    pmtl.resume(path, data=small)
