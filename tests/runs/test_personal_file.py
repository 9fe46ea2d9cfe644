"""The file of personal models: any program reads it, nobody has to read all of it, damage shows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from weights import personal as weights_of

import pmtl
from pmtl import storage as files
from pmtl.runs import personal_file
from pmtl.runs.personal_file import Personal, PersonalFile, write_personal

P, BLOCKS = 5, np.array([0, 1, 0, 1, 0, 0])
SEEN = np.array([1, 2, 4])


def weights(clients):
    return torch.tensor(clients, dtype=torch.float32)[:, None] + torch.arange(P) / 10


def write(path, **changes):
    unseen = torch.stack([torch.full((P,), -1.0), torch.full((P,), -2.0)])
    write_personal(path, Personal(SEEN, unseen, weights, **changes), {"clients": ["b", "c", "é"]})
    return path


@pytest.mark.parametrize("chunk", [1, 64 * 2**20])
def test_every_client_gets_its_own_weights_or_those_of_a_newcomer(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(personal_file, "CHUNK", chunk)
    file = PersonalFile(write(tmp_path / "p.safetensors"), BLOCKS)
    asked = np.array([4, 0, 1, 3, 2])
    found = file(asked)
    assert torch.equal(found[[0, 2, 4]], weights([4, 1, 2]))
    assert found[1].tolist() == [-1.0] * P
    assert found[3].tolist() == [-2.0] * P
    assert torch.equal(file(np.array([3, 0]))[:, 0], torch.tensor([-2.0, -1.0]))


def test_it_is_an_ordinary_safetensors_file_that_only_its_owner_reads(tmp_path):
    path = write(tmp_path / "p.safetensors")
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("weights"), weights(SEEN))
        assert file.get_tensor("clients").tolist() == SEEN.tolist()
        assert file.get_tensor("unseen").shape == (2, P)
        assert json.loads(file.metadata()["pmtl"])["clients"] == ["b", "c", "é"]
    assert path.stat().st_mode & 0o077 == 0


def test_it_is_written_a_few_rows_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(personal_file, "CHUNK", 2 * P * 4)
    asked = []
    remembered = Personal(
        np.arange(5),
        torch.zeros(1, P),
        lambda clients: asked.append(len(clients)) or weights(clients),
    )
    write_personal(tmp_path / "p", remembered, {})
    assert asked == [2, 2, 1]
    assert torch.equal(
        PersonalFile(tmp_path / "p", np.zeros(5, int))(np.arange(5)), weights(range(5))
    )


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = write(tmp_path / "p.safetensors")
    before = path.read_bytes()

    def broken(clients):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        write_personal(path, Personal(SEEN, torch.zeros(1, P), broken), {})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_flipped_bit_is_noticed_by_who_would_have_been_answered_wrongly(tmp_path):
    path = write(tmp_path / "p.safetensors")
    raw = bytearray(path.read_bytes())
    place = raw.index(weights([2])[0].numpy().tobytes())
    raw[place + 3] ^= 0x01
    path.write_bytes(raw)
    file = PersonalFile(path, BLOCKS)
    assert torch.equal(file(np.array([1, 4])), weights([1, 4]))
    with pytest.raises(pmtl.PmtlError, match="damaged"):
        file(np.array([1, 2]))


@pytest.mark.parametrize("part", ["header", "clients", "unseen", "digests"])
def test_damage_to_anything_else_is_noticed_at_once(part, tmp_path):
    path = write(tmp_path / "p.safetensors")
    raw = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(raw[:8], "little")
    place = {"header": 9, "clients": begin, "unseen": begin + 24, "digests": len(raw) - 1}[part]
    raw[place] ^= 0x01
    path.write_bytes(raw)
    with pytest.raises(pmtl.PmtlError, match="damaged"):
        PersonalFile(path, BLOCKS)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(pmtl.PmtlError, match="damaged"):
        PersonalFile(path, BLOCKS)
    path.unlink()
    with pytest.raises(pmtl.PmtlError, match="missing"):
        PersonalFile(path, BLOCKS)


@pytest.mark.parametrize("algorithm", ["pmtl", "ppsgd"])
def test_a_run_keeps_the_models_of_those_who_took_part(algorithm, small, tmp_path):
    options = {"privacy": {"noise": 0.1, "rounds": 2, "cohort": 3}, "seed": 4}
    run = pmtl.train(small, algorithm=algorithm, out=tmp_path / "run", **options)
    with safe_open(tmp_path / "run/personal.safetensors", "pt") as file:
        clients = file.get_tensor("clients")
        about = json.loads(file.metadata()["pmtl"])
    names = about["clients"]
    assert about["blocks"] == [0] * len(names)
    assert 0 < len(clients) < small.m
    assert names == [small.clients[k] for k in clients]
    again = pmtl.load_run(tmp_path / "run", data=small)
    assert torch.equal(weights_of(again), weights_of(run))
    stranger = next(client for client in small.clients if client not in names)
    start = files.read_tensors(tmp_path / "run/shared.safetensors")[0]["weights"][0]
    newcomer = torch.cat([p.reshape(-1) for p in again.personal(stranger).parameters()])
    # PMTL's newcomers answer with the common start, which is zero; PP-SGD's with what is shared.
    assert torch.equal(newcomer, start if algorithm == "ppsgd" else torch.zeros_like(start))
