"""The one door: specs, options, and paths that lead nowhere; arrays larger than memory."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from pmtl.data import describe, load
from pmtl.data.disk import ArrayBuilder
from pmtl.data.federated import SELECTED_BY_ROWS
from pmtl.errors import PmtlError

FEMNIST = Path(__file__).parents[3] / "shared" / "data" / "femnist" / "femnist.npz"


@pytest.fixture
def path(raw, tmp_path):
    np.savez(tmp_path / "data.npz", x=raw.x, y=raw.y, client=raw.client, split=raw.split)
    return tmp_path / "data.npz"


def test_options_in_the_spec_and_as_keywords(path):
    data = load(f"{path}:min_rows=10,task=regression", clients=1)
    assert data.clients == ("bob",)
    assert data.task == "regression"
    assert data.source == f"{path}:min_rows=10,task=regression,clients=1"
    assert load(data.source).fingerprint() == data.fingerprint()
    assert load(f"{path}:clients=2", clients=1).m == 1


def test_unknown_options_and_wrong_values(path):
    with pytest.raises(PmtlError, match=r"data.npz.*'client'.*'clients'.*min_rows"):
        load(f"{path}:client=who")
    with pytest.raises(PmtlError, match=r"min_rows of data.npz must be a whole number"):
        load(f"{path}:min_rows=few")
    with pytest.raises(PmtlError, match="no task 'classify'"):
        load(f"{path}:task=classify")


def test_paths_that_lead_nowhere(path, tmp_path, monkeypatch):
    with pytest.raises(PmtlError, match=r"Did you mean 'data\.npz'"):
        load(tmp_path / "dat.npz")
    with pytest.raises(PmtlError, match=r"folder .*nowhere does not exist"):
        load(tmp_path / "nowhere" / "data.npz")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PmtlError, match="Did you mean 'synthetic'"):
        load("synthetc:clients=4")
    (tmp_path / "data.feather").touch()
    with pytest.raises(PmtlError, match=r"No reader knows.*\.parquet"):
        load("data.feather")
    (tmp_path / "data.xlsx").touch()
    with pytest.raises(PmtlError, match="is a spreadsheet: save its sheet as CSV"):
        load("data.xlsx")


def test_a_file_that_may_not_be_read(path, monkeypatch):
    def forbidden(*_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("zipfile.ZipFile", forbidden)
    with pytest.raises(PmtlError, match=r"data\.npz cannot be read: Permission denied"):
        load(path)


@pytest.mark.parametrize("limit", [0, 100, 10**6])
def test_a_builder_gives_the_same_array_at_any_limit(monkeypatch, limit):
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", str(limit))
    builder = ArrayBuilder((2, 3), np.float32)
    chunks = [np.full((n, 2, 3), n, dtype=np.float64) for n in (1, 4, 0, 7)]
    for chunk in chunks:
        builder.append(chunk)
    array = builder.finish()
    assert (array == np.concatenate(chunks)).all()
    assert array.dtype == np.float32
    assert isinstance(array, np.memmap) == (limit < 10**6)


def test_disk_troubles_are_sentences(monkeypatch):
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "lots")
    with pytest.raises(PmtlError, match=r"number of bytes.*'lots'"):
        ArrayBuilder((1,), np.float32)

    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "0")
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(PmtlError, match=r"No space left.*TMPDIR"):
        ArrayBuilder((1,), np.float32).append(np.zeros((1, 1)))


@pytest.mark.skipif(not FEMNIST.exists(), reason="the real FEMNIST file is not on this machine")
def test_the_papers_femnist_federation():
    data = load(f"{FEMNIST}:min_rows=100,clients=205")
    assert data.m == 205
    assert data.outputs == 62
    assert data.input_shape == (28, 28)
    summary = describe(data)
    assert summary["samples_per_client"]["min"] >= 100
    assert summary["warnings"] == [SELECTED_BY_ROWS]
    raw = np.load(FEMNIST)
    counted = dict(zip(*np.unique(raw["client"], return_counts=True), strict=True))
    assert list(data.clients) == sorted(name for name, n in counted.items() if n >= 100)[:205]
    tests = set(np.flatnonzero(raw["split"] == "test"))
    assert set(data.rows("test").order) <= tests
    x, y = data.gather(data.rows("train").of(0)[:5])
    row = data.rows("train").of(0)[0]
    assert (x[0] == raw["x"][row].astype(np.float32) / 255).all()
    assert y[0] == raw["y"][row]
