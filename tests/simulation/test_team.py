"""Several processes give what one gives; if one dies, all end, and the run can go on."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from teamwork import RUNS, SPEC, options
from weights import personal, shared

import pmtl
from pmtl import storage as files
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.folder import RunFolder


def launch(processes: int, folder: Path, job: str) -> subprocess.CompletedProcess[str]:
    """As torchrun does, on this machine alone."""
    script = Path(__file__).parents[1] / "programs/teamwork.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, f"--nproc-per-node={processes}", str(script), str(folder), job],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def died_and_resumed(tmp_path_factory):
    """A folder in which a team of three trained every kind of run, after it had gone on with a run
    in which one of two processes died; and what was left of that run before."""
    folder = tmp_path_factory.mktemp("team")
    died = launch(2, folder, "die")
    state = files.read_json(folder / "run/run.json")["state"]
    checkpoint = files.read_tensors(folder / "run/checkpoint.safetensors")[1]["round"]
    Ledger.create(folder / "ledger.db", pmtl.load(SPEC).clients).close()
    done = launch(3, folder, "all")
    assert done.returncode == 0, done.stderr
    return folder, (died.returncode, died.stderr, state, checkpoint)


@pytest.fixture
def team_of_three(died_and_resumed):
    return died_and_resumed[0]


@pytest.mark.parametrize("name", RUNS)
def test_three_processes_give_what_one_gives(name, team_of_three, tmp_path):
    """Up to the order of summation; exactly, where sums are of whole numbers."""
    alone = pmtl.train(SPEC, out=tmp_path / "run", **options(name))
    team = pmtl.load_run(team_of_three / name)
    assert torch.allclose(personal(team), personal(alone), atol=1e-6)
    if name != "local":
        same = torch.equal if name == "hardened" else partial(torch.allclose, atol=1e-6)
        assert same(shared(team), shared(alone))
        assert shared(alone).any()
    assert team.privacy == alone.privacy
    for ours, theirs in zip(team.metrics, alone.metrics, strict=True):
        assert set(ours) == set(theirs)
        assert ours["cohort"] == theirs["cohort"]
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-5)
        for view, values in theirs.get("validation", {}).items():
            assert ours["validation"][view] == pytest.approx(values, abs=1e-5)
    assert team.evaluate()["test"]["personal"] == pytest.approx(
        alone.evaluate()["test"]["personal"], abs=1e-5
    )


def test_in_production_the_leader_alone_charges_draws_and_publishes(team_of_three):
    with Ledger.open(team_of_three / "ledger.db", write=False) as ledger:
        (run,) = ledger.runs()
        assert ledger.charged(run) == [0, 1, 2, 3]
        assert ledger.charged(run, "validation") == [2, 4]
    done = pmtl.load_run(team_of_three / "real")
    assert done.privacy.hardened
    assert len(done.released()) == 2
    # Everybody began from the leader's start: all personal models are near the shared one.
    gap = personal(done) - shared(done)
    assert float(gap.abs().max()) < 5


def test_who_does_not_lead_says_that_it_has_only_a_part(team_of_three):
    told = sorted(path.read_text() for path in team_of_three.glob("refused-*"))
    assert len(told) == 2
    assert "only a part" in told[0]


def test_a_process_that_dies_ends_the_job_which_then_goes_on_with_any_number(
    died_and_resumed, tmp_path
):
    folder, (status, said, state, checkpoint) = died_and_resumed
    assert status != 0
    assert "Another process of this job ended" in said
    assert (state, checkpoint) == ("running", 2)
    whole = pmtl.train(SPEC, out=tmp_path / "whole", **options("poisson"))
    again = pmtl.load_run(folder / "run")
    assert torch.allclose(shared(again), shared(whole), atol=1e-6)
    assert torch.allclose(personal(again), personal(whole), atol=1e-6)
    assert [line["round"] for line in again.metrics] == [1, 2, 3, 4]


# --- processes that differ ---


def save(path, owner):
    """Two organisations' files: the same clients and columns, other rows."""
    random = np.random.default_rng(owner)
    x = random.normal(size=(60, 3)).astype(np.float32)
    split = np.tile(["train", "train", "train", "validation", "test"], 12)
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(int), client=np.arange(60) // 5, split=split)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What both of two processes were told, whatever the second had otherwise."""
    folder = tmp_path_factory.mktemp("differing")
    for owner, name in enumerate(("even", "odd")):
        save(folder / f"{name}.npz", owner)
        (folder / name).mkdir()
        save(folder / name / "d.npz", owner)
    data = f"{folder}/even.npz"
    Ledger.create(folder / "ledger.db", pmtl.load(data).clients).close()
    real = {"mode": "production", "ledger": folder / "ledger.db"}
    with pytest.MonkeyPatch.context() as patch:
        keep = RunFolder.save_round

        def save_and_stop(self, line):
            keep(self, line)
            if line["round"] == 2:
                raise SystemError("power cut")

        patch.setattr(RunFolder, "save_round", save_and_stop)
        for name, mode in (("stopped", {}), ("stopped-real", real)):
            with pytest.raises(SystemError):
                pmtl.train(
                    data, out=folder / name, checkpoint_seconds=0.0, **mode, **options("pmtl")
                )
    before = content(folder)
    done = launch(2, folder, "differ")
    assert done.returncode == 0, done.stderr
    found = {
        name: [json.loads((folder / f"{name}-{rank}").read_text()) for rank in range(2)]
        for name in ("told", "told-command")
    }
    return folder, before, found


def content(folder):
    """All files but for what tests leave, by their bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "told" not in path.name and not path.name.endswith(".lock")
    }


@pytest.mark.parametrize(
    "what",
    [
        *("the data", "the settings", "the model", "the algorithm", "the sampling scheme"),
        *("the version of pmtl", "the version of Python or torch", "the data, in production"),
        *("stopped", "stopped-real"),
    ],
)
def test_every_process_refuses_a_team_that_differs_and_says_in_what(what, told):
    named = "the data" if "data" in what or "stopped" in what else what
    _, _, found = told
    for said in found["told"]:
        assert said[what] is not None, "trained"
        assert said[what].startswith(f"The processes of this job differ in {named}. Nothing was")
        assert "not for a federation between organisations" in said[what]


def test_the_command_line_leaves_with_status_two(told):
    _, _, found = told
    for status, words in found["told-command"]:
        assert status == 2
        assert "error: The processes of this job differ in the data. Nothing was" in words
        assert "Traceback" not in words


def test_nothing_was_trained_charged_or_written(told):
    folder, before, _ = told
    assert content(folder) == before
    assert not (folder / "new").exists()
    with Ledger.open(folder / "ledger.db", write=False) as ledger:
        (run,) = ledger.runs()
        assert ledger.charged(run) == [0, 1]
