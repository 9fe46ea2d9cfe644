"""Files are whole or not there, whatever the disk does."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

import pmtl
from pmtl import storage as files
from pmtl.runs.config import TrainConfig
from pmtl.runs.folder import RunFolder


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "value.json"
    files.write_json(path, {"round": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(pmtl.PmtlError, match="disk is full"):
        files.write_json(path, {"round": 2})
    assert files.read_json(path) == {"round": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]


def test_a_folder_is_no_file_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (Path(), tmp_path):
        with pytest.raises(pmtl.PmtlError, match="could not be written"):
            files.write_text(path, "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(errno.EDQUOT, "Disk quota exceeded"),
            "The disk is full: a file could not be kept (Disk quota exceeded). Make room.",
        ),
        (
            OSError(errno.EACCES, "Permission denied"),
            "a file could not be kept: Permission denied.",
        ),
        (
            SafetensorError("I/O error (os error 28)"),
            "The disk is full: a file could not be kept (I/O error (os error 28)). Make room.",
        ),
        (SafetensorError("odd"), "a file could not be kept: odd."),
    ],
)
def test_errors_of_the_disk_are_sentences(error, sentence):
    with (
        pytest.raises(pmtl.PmtlError) as refused,
        files.disk_errors("a file", "kept", "Make room."),
    ):
        raise error
    assert str(refused.value) == sentence


def test_a_lock_is_held_until_its_handle_is_closed(tmp_path):
    handle = files.take_lock(tmp_path / "lock", "It is in use.")
    with pytest.raises(pmtl.PmtlError, match=r"It is in use\."):
        files.take_lock(tmp_path / "lock", "It is in use.")
    os.close(handle)
    os.close(files.take_lock(tmp_path / "lock", "It is in use."))
    with pytest.raises(pmtl.PmtlError, match="could not be written"):
        files.take_lock(tmp_path / "nowhere" / "lock", "It is in use.")


def test_a_run_that_cannot_be_created_leaves_nothing(small, tmp_path, monkeypatch):
    facts = pmtl.train(small, privacy={"rounds": 1}).facts

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(pmtl.PmtlError, match="disk is full"):
        RunFolder.create(tmp_path / "run", TrainConfig(), facts)
    assert list(tmp_path.iterdir()) == []


def test_a_really_full_disk_is_told_and_the_run_can_go_on(tmp_path):
    """A limit on file sizes stands for a full disk: the system's own refusal, on the real path."""
    script = f"""
import resource, sys
import pmtl
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
sys.argv = ["pmtl", "train", "--rounds", "3", "--out", {str(tmp_path / "run")!r}]
from pmtl.cli.app import main
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 2, result.stderr
    assert "disk is full" in result.stderr
    assert "Traceback" not in result.stderr
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert not [name for name in names if "partial" in name]
    assert pmtl.resume(tmp_path / "run").evaluate()["test"] is not None
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 40_000


def test_tensors_come_back_with_their_metadata(tmp_path):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(0, 4)}
    files.write_tensors(tmp_path / "t.safetensors", tensors, {"round": 3, "names": ["x", "é"]})
    again, metadata = files.read_tensors(tmp_path / "t.safetensors")
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)
    assert metadata == {"round": 3, "names": ["x", "é"]}


def test_a_folder_that_cannot_be_written_is_a_sentence(small, tmp_path):
    facts = pmtl.train(small, privacy={"rounds": 1}).facts
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    with pytest.raises(pmtl.PmtlError, match="could not be written"):
        RunFolder.create(blocker / "run", TrainConfig(), facts)


def test_an_existing_folder_is_refused_and_left_alone(small, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    with pytest.raises(pmtl.PmtlError, match="exists already"):
        pmtl.train(small, out=tmp_path / "run", privacy={"rounds": 1})
    assert [file.name for file in Path(tmp_path / "run").iterdir()] == ["thesis.txt"]


def test_the_first_number_that_is_free_is_taken(tmp_path):
    for number in (1, 3):
        (tmp_path / f"run-{number}").mkdir()
    assert files.next_numbered(tmp_path / "run") == tmp_path / "run-2"


def test_a_path_that_a_user_wrote(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.as_path("~/run", "out") == tmp_path / "run"
    for wrong in ("a\0b", "~nobody-at-all/run"):
        with pytest.raises(pmtl.PmtlError, match=r"out .* is not a path"):
            files.as_path(wrong, "out")
    with pytest.raises(pmtl.PmtlError, match="out must be a path, but 3 was given"):
        files.as_path(3, "out")
