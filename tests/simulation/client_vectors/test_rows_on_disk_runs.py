"""Runs whose vectors do not fit in memory: same results, crash-safe, and damage is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import pmtl
from pmtl import storage as files
from pmtl.runs.folder import RunFolder

OPTIONS = {
    "privacy": {"epsilon": 3.0, "rounds": 9, "cohort": 4},
    "local": {"steps": 2, "batch": 4},
    "evaluate_every": 4,
    "seed": 2,
}
SAME = ("metrics.jsonl", "personal.safetensors", "shared.safetensors", "result.json")


@pytest.fixture(autouse=True)
def _no_memory(monkeypatch):
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "0")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SAME}


def cut(small, path, monkeypatch, after=5, **options):
    """A run that ended, as if the power went, after the metrics of a round."""
    save = RunFolder.save_round

    def save_and_die(self, line):
        save(self, line)
        if line["round"] == after:
            raise SystemError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", save_and_die)
        with pytest.raises(SystemError):
            pmtl.train(small, out=path, **OPTIONS, **{"checkpoint_seconds": 0.0, **options})
    return path


@pytest.mark.parametrize("algorithm", ["pmtl", "local"])
def test_where_vectors_lie_changes_no_byte(algorithm, small, tmp_path, monkeypatch):
    disk = pmtl.train(small, algorithm=algorithm, out=tmp_path / "disk", **OPTIONS)
    nameless = pmtl.train(small, algorithm=algorithm, **OPTIONS)
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "1000000")
    memory = pmtl.train(small, algorithm=algorithm, out=tmp_path / "memory", **OPTIONS)
    assert contents(tmp_path / "disk") == contents(tmp_path / "memory")
    places = [run.facts.memory["owned"]["in"] for run in (disk, nameless, memory)]
    assert places == ["disk", "disk", "memory"]
    assert nameless.evaluate() == memory.evaluate() == disk.evaluate()


@pytest.mark.parametrize(("after", "then"), [(1, "0"), (5, "0"), (5, "1000000")])
def test_a_resumed_run_equals_an_uninterrupted_one(after, then, small, tmp_path, monkeypatch):
    pmtl.train(small, out=tmp_path / "whole", **OPTIONS)
    path = cut(small, tmp_path / "cut", monkeypatch, after)
    if after > 1:  # Round 1 was not saved before it died.
        assert (path / "owned.rows").exists()
        assert "slots" in files.read_tensors(path / "checkpoint.safetensors")[0]
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", then)  # A larger machine goes on where this one ended.
    pmtl.resume(path, data=small)
    assert contents(tmp_path / "whole") == contents(path)


def test_what_began_in_memory_goes_on_on_disk(small, tmp_path, monkeypatch):
    pmtl.train(small, out=tmp_path / "whole", **OPTIONS)
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "1000000")
    path = cut(small, tmp_path / "cut", monkeypatch)
    assert not (path / "owned.rows").exists()
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "0")
    assert pmtl.resume(path, data=small).facts.memory["owned"]["in"] == "disk"
    assert contents(tmp_path / "whole") == contents(path)


@pytest.mark.thorough  # test_training_resume.py kills runs whose vectors are in memory.
def test_kill_9_at_any_moment_loses_nothing(tmp_path):
    """Some kills at seeded random instants, then the same bytes as without any."""
    script = Path(__file__).parents[2] / "programs/killed.py"
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "3", "3", "experiment", "60"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["killed"] >= 3
    assert report["killed_mid_run"] >= 2
    assert report["charged"] == list(range(60))
    assert contents(tmp_path / "whole") == contents(tmp_path / "killed")
    facts = RunFolder(tmp_path / "killed").facts()
    assert facts.memory["owned"]["in"] == "disk"


@pytest.mark.parametrize("file", ["owned.rows", "checkpoint.safetensors"])
@pytest.mark.parametrize("place", [0.2, 1.0])
def test_a_flipped_bit_is_refused(file, place, small, tmp_path, monkeypatch):
    path = cut(small, tmp_path / "cut", monkeypatch)
    # Every slot that the checkpoint names is looked at, so the bit is flipped in one of these.
    table, _ = files.read_tensors(path / "checkpoint.safetensors")
    raw = bytearray((path / file).read_bytes())
    at = int(place * (len(raw) - 1))
    if file == "owned.rows":
        slots, row = np.sort(table["slots"].numpy()), 40
        at = int(slots[int(place * (len(slots) - 1))]) * row + int(place * (row - 1))
    raw[at] ^= 0x08
    (path / file).write_bytes(raw)
    with pytest.raises(pmtl.PmtlError, match="damaged"):
        pmtl.resume(path, data=small)


def test_an_older_checkpoint_is_refused(small, tmp_path, monkeypatch):
    """Its slots may have been used again, and the digests tell."""
    older = []
    save = RunFolder.save_checkpoint

    def save_and_copy(self, progress, history):
        digest = save(self, progress, history)
        older.append(self.checkpoint_file.read_bytes())
        return digest

    monkeypatch.setattr(RunFolder, "save_checkpoint", save_and_copy)
    path = cut(small, tmp_path / "cut", monkeypatch, after=8)
    (path / "checkpoint.safetensors").write_bytes(older[0])
    with pytest.raises(pmtl.PmtlError, match="damaged: the vector"):
        pmtl.resume(path, data=small)


def test_a_finished_run_keeps_its_models_and_not_the_way_there(small, tmp_path):
    run = pmtl.train(small, out=tmp_path / "run", **OPTIONS)
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert "owned.rows" not in names
    assert "checkpoint.safetensors" not in names
    assert run.personal(small.clients[0])(torch.zeros(1, 4)).shape == (1, 2)  # still there
    again = pmtl.load_run(tmp_path / "run", data=small)
    assert again.evaluate() == run.evaluate()


def test_memory_is_reported_in_experiments_only(small, tmp_path):
    run = pmtl.train(small, out=tmp_path / "run", **OPTIONS)
    told = files.read_json(tmp_path / "run/run.json")["memory"]
    assert told == run.facts.memory
    assert 2**25 < told["peak_resident_bytes"] < 2**36
    seen = told["owned"]["clients"]
    assert 0 < seen <= small.m
    assert told["owned"] == {"clients": seen, "bytes": 40 * seen, "in": "disk"}


def test_production_does_not_tell_how_many_took_part(small, tmp_path):
    from pmtl.privacy.ledger.ledger import Ledger

    Ledger.create(tmp_path / "clients.db", small.clients).close()
    options = {**OPTIONS, "seed": None, "mode": "production", "ledger": tmp_path / "clients.db"}
    run = pmtl.train(small, out=tmp_path / "run", **options)
    assert run.facts.memory is None


RESIDENT = """
import numpy as np
from pathlib import Path
from scipy import sparse
import pmtl.engines.choose
from pmtl.algorithms import PMTL
from pmtl.data import FederatedData
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.engines.process import peak_resident_bytes
from pmtl.simulation import simulate, LocalTraining

pmtl.engines.choose.SPARSE_FLOATS = 2**22
random = np.random.default_rng(0)


def train(m):
    words, bounds = random.integers(0, 20_000, 40 * m), np.arange(0, 40 * m + 1, 20)
    x = sparse.csr_matrix((np.ones(40 * m), words, bounds), shape=(2 * m, 20_000))
    y, owner = random.integers(0, 20, 2 * m), np.repeat(np.arange(m), 2)
    data = FederatedData.from_arrays(x, y, owner, np.full(2 * m, "train"), outputs=20)
    plan = PrivacyPlan(m, m, "full", 1.0, 0.1, 1, 1e-3)
    model = build_model("logistic", data.input_shape, 20, data.task, 0)
    made = simulate(data, model, PMTL(), plan, LocalTraining(steps=2), 0)
    progress = made.start()
    made.advance(progress)
    return len(progress.store.seen) * progress.store.start.nbytes


train(5)
Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
before = peak_resident_bytes()
owned = train(50)
print(owned, peak_resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are forgotten on Linux only")
def test_resident_memory_does_not_grow_with_the_vectors():
    # What is freed is given back at once, so that the peak is what was held and not what the
    # allocator had lying about.
    settings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=settings,
    )
    assert done.returncode == 0, done.stderr
    owned, grown = map(int, done.stdout.split())
    assert owned == 50 * 4 * 20 * 20_001
    assert grown < owned / 2
