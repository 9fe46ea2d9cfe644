"""Files that the user says are public."""

from __future__ import annotations

import hashlib

import pytest
import torch
from safetensors.torch import save_file

from pmtl.errors import PmtlError
from pmtl.models import read_public


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.arange(3.0)}, path)
    return path


def test_name_digest_and_tensors(good):
    file = read_public(good, "start")
    assert file.about() == {
        "file": "w.safetensors",
        "sha256": hashlib.sha256(good.read_bytes()).hexdigest(),
    }
    assert torch.equal(file.tensors["a"], torch.arange(3.0))


def test_what_is_not_there_or_not_safetensors_is_a_sentence(tmp_path):
    with pytest.raises(
        PmtlError, match=r"The start .*nowhere\.safetensors could not be read: No such file"
    ):
        read_public(tmp_path / "nowhere.safetensors", "start")
    with pytest.raises(PmtlError, match="could not be read: Is a directory"):
        read_public(tmp_path, "start")
    with pytest.raises(PmtlError, match="is not a path"):
        read_public("a\0b", "start")
    (tmp_path / "w.bin").write_bytes(b"not one")
    with pytest.raises(PmtlError, match=r"The basis .*w\.bin is not a safetensors file"):
        read_public(tmp_path / "w.bin", "basis")


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_it_is_finite(tmp_path, wrong):
    save_file({"a": torch.tensor([1.0, wrong])}, tmp_path / "w.safetensors")
    with pytest.raises(PmtlError, match="is not finite: 'a'"):
        read_public(tmp_path / "w.safetensors", "start")


@pytest.mark.parametrize("mark", ["run.json", "finetuned.json"])
def test_what_a_run_made_from_its_clients_data_is_refused(good, tmp_path, mark):
    inside = tmp_path / "run/private/deeper"
    inside.mkdir(parents=True)
    (tmp_path / "run/private" / mark).write_text("{}")
    private = good.rename(inside / "w.safetensors")
    link = tmp_path / "innocent.safetensors"
    link.symlink_to(private)
    for path in (private, link):
        with pytest.raises(PmtlError, match="made from its clients' data, so it is private"):
            read_public(path, "start")
    other = private.rename(tmp_path / "run/private/personal.safetensors")
    with pytest.raises(PmtlError, match="so it is private"):
        read_public(other, "start")
    public = tmp_path / "run/public"
    public.mkdir()
    assert read_public(other.rename(public / "shared.safetensors"), "start").tensors
