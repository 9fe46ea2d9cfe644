"""Runs with a public start, frozen parts and a shared part: from the first check to fine-tuning."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from weights import personal, shared

import pmtl
from pmtl.experiments.compare import Grid, compare
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig, read_config
from pmtl.runs.folder import RunFolder
from pmtl.runs.training import with_absolute_paths

MODEL = "mlp:hidden=5"
SIZE, HEAD = 4 * 5 + 5 + 5 * 2 + 2, 5 * 2 + 2
OPTIONS = {
    "model": MODEL,
    "privacy": {"epsilon": 3.0, "rounds": 6, "cohort": 5},
    "local": {"steps": 2, "batch": 4},
    "evaluate_every": 3,
    "seed": 2,
}
FILES = (
    *("checkpoint.safetensors", "personal.safetensors", "shared.safetensors", "start.safetensors"),
    *("result.json", "privacy.json", "metrics.jsonl", "config.toml"),
)


@pytest.fixture
def start(tmp_path):
    torch.manual_seed(1)
    path = tmp_path / "weights.safetensors"
    save_file({"1.weight": torch.randn(5, 4), "1.bias": torch.randn(5)}, path)
    return path


@pytest.fixture
def basis(tmp_path):
    torch.manual_seed(2)
    path = tmp_path / "basis.safetensors"
    save_file({"basis": torch.randn(6, SIZE)}, path)
    return path


def cases(start, basis):
    return {
        "start": {"init": start},
        "head": {"init": start, "frozen": "1.*"},
        "names": {"init": start, "share": "3.*"},
        "names, nothing owned": {"share": "biases", "algorithm": "fedavg"},
        "subspace": {"init": start, "share": "subspace:k=9", "algorithm": "ditto"},
        "basis": {"share": f"basis:file={basis}", "algorithm": "fedadam"},
        "low rank": {"share": "lowrank:rank=2", "frozen": "*.bias"},
    }


NUMBERS = {
    "start": SIZE,
    "head": HEAD,
    "names": HEAD,
    "names, nothing owned": 7,
    "subspace": 9,
    "basis": 6,
    "low rank": 2 * (5 + 2),
}


def stop_after(monkeypatch, rounds):
    """Make the run end, as if the power went, right after it wrote the metrics of a round."""
    save = RunFolder.save_round

    def save_and_die(self, line):
        save(self, line)
        if line["round"] == rounds:
            raise SystemError("power cut")

    monkeypatch.setattr(RunFolder, "save_round", save_and_die)


@pytest.mark.parametrize("case", NUMBERS)
def test_a_run_needs_its_public_files_no_more(case, small, start, basis, tmp_path, monkeypatch):
    """It is stopped, the files are deleted, and it goes on to the same bytes; then it is read."""
    options = {**OPTIONS, **cases(start, basis)[case]}
    whole = pmtl.train(small, out=tmp_path / "whole", checkpoint_seconds=0.0, **options)
    stop_after(monkeypatch, 3)
    with pytest.raises(SystemError, match="power cut"):
        pmtl.train(small, out=tmp_path / "run", checkpoint_seconds=0.0, **options)
    monkeypatch.undo()
    start.unlink()
    basis.unlink()
    resumed = pmtl.resume(tmp_path / "run", data=small)
    for name in FILES:
        first, second = tmp_path / "whole" / name, tmp_path / "run" / name
        assert first.exists() == second.exists(), name
        if first.exists():
            assert first.read_bytes() == second.read_bytes(), name
    board = load_file(tmp_path / "run/shared.safetensors")["weights"]
    assert board.shape == (1, NUMBERS[case])
    assert load_file(tmp_path / "run/checkpoint.safetensors")["shared"].shape == board.shape
    read = pmtl.load_run(tmp_path / "run", small)
    for other in (resumed, read):
        assert torch.equal(personal(other), personal(whole))
        assert torch.equal(shared(other), shared(whole))
        assert str(other.privacy) == str(whole.privacy)
        assert other.evaluate() == whole.evaluate()
    client = small.clients[3]
    assert np.array_equal(read.predict(client, small.x), whole.predict(client, small.x))
    tuned = pmtl.finetune(read, steps=2)
    after = tuned.views()["finetuned"](np.arange(small.m))
    assert after.shape == personal(whole).shape
    assert not torch.equal(after, personal(whole))


def test_the_start_is_where_training_begins_and_frozen_weights_stay_there(small, start):
    given = load_file(start)
    told: list[str] = []
    run = pmtl.train(small, init=start, frozen="1.*", warn=told.append, **OPTIONS)
    module = run.personal(small.clients[0])
    assert torch.equal(module[1].weight, given["1.weight"])
    assert torch.equal(run.shared[1].bias, given["1.bias"])
    assert run.facts.parameters == HEAD
    assert any(
        "nothing for 2 of the 4 tensors of the model: '3.weight', '3.bias'" in t for t in told
    )
    plain = pmtl.train(small, **OPTIONS)
    assert plain.facts.noise_key != run.facts.noise_key


def test_shared_names_are_the_billboard_and_the_rest_differs_between_clients(small, start):
    run = pmtl.train(small, init=start, share="3.*", algorithm="fedavg", **OPTIONS)
    own, read = personal(run), shared(run)
    assert torch.equal(own[:, 25:], read[:, 25:])
    assert len(torch.unique(own[:, :25], dim=0)) > 1
    begun = torch.cat([part.flatten() for part in load_file(start).values()])
    assert sorted(read[0, :25].tolist()) == sorted(begun.tolist())
    assert run.facts.personal
    assert run.facts.shared_numbers == HEAD


def test_the_statement_says_what_is_public_by_the_users_word(small, start, basis, tmp_path):
    run = pmtl.train(
        small, init=start, share=f"basis:file={basis}", out=tmp_path / "run", **OPTIONS
    )
    said = " ".join((tmp_path / "run/privacy.txt").read_text().split())
    for file in (start, basis):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert f"(file {file.name}, SHA-256 {digest}): treated as public." in said
    assert said.count("The person who started the run states that they were made without") == 2
    part = f"(basis:file=basis.safetensors: 6 numbers, of {SIZE} weights that are trained)"
    assert f"Which part of the model is shared {part}: treated as public" in said
    assert str(tmp_path) not in said
    plain = str(pmtl.train(small, **OPTIONS).privacy)
    assert "SHA-256" not in plain
    assert "Which part of the model is shared" not in plain
    assert run.facts.public_files["init"]["sha256"] in json.dumps(run.privacy.to_dict())


def test_the_noise_is_compared_with_the_numbers_that_are_shared(small):
    def drowned(**options):
        told: list[str] = []
        values = {**OPTIONS, "privacy": {"epsilon": 0.1, "rounds": 2}, "model": "mlp:hidden=400"}
        pmtl.train(small, warn=told.append, **{**values, **options})
        return [sentence for sentence in told if "drown" in sentence]

    assert "2,802 shared parameters" in drowned()[0]
    assert drowned(share="subspace:k=1") == []


def test_in_production_a_part_is_shared_and_what_is_public_is_public(small, start, tmp_path):
    Ledger.create(tmp_path / "ledger.db", small.clients).close()
    options = {**OPTIONS, "seed": None, "mode": "production", "ledger": tmp_path / "ledger.db"}
    run = pmtl.train(small, init=start, share="3.*", out=tmp_path / "run", **options)
    assert run.privacy.hardened
    public = tmp_path / "run/public"
    assert load_file(public / "shared.safetensors")["weights"].shape == (1, HEAD)
    kept = load_file(public / "start.safetensors")
    assert set(kept) == {"start.1.weight", "start.1.bias"}
    plan = json.loads((public / "plan.json").read_text())
    assert (plan["share"], plan["shared_numbers"], plan["parameters"]) == ("3.*", HEAD, SIZE)
    assert plan["public_files"]["init"]["file"] == "weights.safetensors"
    for file in public.iterdir():
        assert str(tmp_path).encode() not in file.read_bytes(), file.name
    start.unlink()
    read = pmtl.load_run(tmp_path / "run", small)
    assert torch.equal(personal(read), personal(run))
    with Ledger.open(tmp_path / "ledger.db", write=False) as ledger:
        assert ledger.charged(run.facts.id) == list(range(6))
    # A file of the private part is not public, whatever the user says.
    for name in ("personal.safetensors", "checkpoint.safetensors"):
        with pytest.raises(pmtl.PmtlError, match="so it is private"):
            pmtl.train(small, init=tmp_path / "run/private" / name, **OPTIONS)


def test_in_production_too_a_stopped_run_goes_on(small, start, tmp_path, monkeypatch):
    Ledger.create(tmp_path / "ledger.db", small.clients).close()
    options = {**OPTIONS, "seed": None, "mode": "production", "ledger": tmp_path / "ledger.db"}
    options |= {"init": start, "share": "subspace:k=9", "checkpoint_seconds": 0.0}
    stop_after(monkeypatch, 3)
    with pytest.raises(SystemError, match="power cut"):
        pmtl.train(small, out=tmp_path / "run", **options)
    monkeypatch.undo()
    start.unlink()
    run = pmtl.resume(tmp_path / "run", data=small)
    assert load_file(tmp_path / "run/public/shared.safetensors")["weights"].shape == (1, 9)
    assert personal(run).isfinite().all()
    # All personal models lie in the subspace around the start: 9 directions of change.
    changes = personal(run) - run.flat_model.start()
    assert torch.linalg.matrix_rank(changes, rtol=1e-4) <= 9


def test_a_changed_copy_is_refused(small, start, tmp_path):
    pmtl.train(small, init=start, out=tmp_path / "run", **OPTIONS)
    copy = tmp_path / "run/start.safetensors"
    content = bytearray(copy.read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    with pytest.raises(pmtl.PmtlError, match=r"start\.safetensors is damaged"):
        pmtl.load_run(tmp_path / "run")
    copy.unlink()
    with pytest.raises(pmtl.PmtlError, match=r"start\.safetensors is missing"):
        pmtl.load_run(tmp_path / "run")


def test_settings_that_are_not_given_are_not_written():
    text = TrainConfig().to_toml()
    assert not any(name in text for name in ("init", "frozen", "share"))


def test_the_command_line_and_a_file_have_them(small, start, tmp_path, pmtl_command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=small.x, y=small.y, client=np.repeat(small.clients, 14))
    given = ["--data", "data.npz", "--model", MODEL, "--rounds", "3", "--epsilon", "3"]
    part = ["--init", start.name, "--frozen", "1.bias", "--share", "3.*"]
    done = pmtl_command("train", *given, *part, "--out", "run", "--json")
    assert done.status == 0, done.err
    assert "warning: The start has nothing for 2 of the 4 tensors" in done.err
    config = read_config("run/config.toml")
    assert (config.init, config.frozen, config.share) == (str(start), "1.bias", "3.*")
    again = pmtl_command("train", "--config", "run/config.toml", "--out", "again", "--json")
    assert again.status == 0, again.err
    for name in ("shared.safetensors", "personal.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    answered = pmtl_command(
        *("predict", "run", "--client", small.clients[0]),
        "--any-client",
        "--data",
        "data.npz",
        "--out",
        "a.csv",
    )
    assert answered.status == 0, answered.err


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--init", "nowhere.safetensors"], "could not be read"),
        (["--init", "data.npz"], "not a safetensors file"),
        (["--init", "other.safetensors"], "none of its tensors has the name"),
        (["--init", "wide.safetensors"], "has the shape"),
        (["--init", "nan.safetensors"], "is not finite"),
        (["--frozen", "encoder.*"], "There is no parameter 'encoder.*'"),
        (["--frozen", "*"], "nothing to train"),
        (["--share", "head.*"], "There is no trained parameter 'head.*'"),
        (["--share", "3.*", "--frozen", "3.*"], "There is no trained parameter '3.*'"),
        (["--share", "from-data"], "There is no trained parameter 'from-data'"),
        (["--share", "subspace:k=0"], "needs a k from 1"),
        (["--share", "basis:file=nowhere.safetensors"], "could not be read"),
        (["--share", "basis"], "read from a file"),
        (["--share", "basis:file=wide.safetensors,k=3"], "read from a file"),
        (["--share", "basis:file=wide.safetensors"], "does not fit the model"),
        (["--share", "basis:file=flat.safetensors"], "full rank"),
        (["--share", "3.*", "--algorithm", "naive_joint"], "cannot share a part of a model"),
    ],
)
def test_a_mistake_is_a_sentence_and_spends_nothing(
    wrong, words, small, tmp_path, pmtl_command, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=small.x, y=small.y, client=np.repeat(small.clients, 14))
    save_file({"weight": torch.zeros(3)}, "other.safetensors")
    save_file({"1.bias": torch.zeros(9)}, "wide.safetensors")
    save_file({"1.bias": torch.full((5,), torch.nan)}, "nan.safetensors")
    save_file({"basis": torch.ones(2, SIZE)}, "flat.safetensors")
    Ledger.create(tmp_path / "ledger.db", small.clients).close()
    before = (tmp_path / "ledger.db").read_bytes()
    done = pmtl_command(
        *("train", "--data", "data.npz", "--model", MODEL, "--rounds", "3", "--epsilon", "3"),
        *("--mode", "production", "--ledger", "ledger.db", "--out", "run", *wrong),
    )
    assert done.status == 2
    assert words in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "ledger.db").read_bytes() == before


def test_training_alone_from_a_public_start(small, start):
    run = pmtl.train(small, init=start, share="subspace:k=9", algorithm="local", **OPTIONS)
    assert run.privacy.epsilon == 0
    assert "SHA-256" in str(run.privacy)
    assert "Which part of the model is shared" not in str(run.privacy)


def test_a_comparison_from_a_public_start(small, start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = TrainConfig(
        model=MODEL, init=start.name, share="3.*", privacy=PrivacyRequest(rounds=2), seed=0
    )
    grid = Grid(("fedavg", "local"), (2.0,), (0,), base)
    results = compare(grid, "out", small)
    assert [row["algorithm"] for row in results["runs"]] == ["fedavg", "local"]
    assert read_config("out/runs/local-seed0/config.toml").init == str(start)
    refused = replace(grid, algorithms=("fedavg", "naive_joint"))
    with pytest.raises(pmtl.PmtlError, match="cannot share a part of a model"):
        compare(refused, "other", small)
    assert not (tmp_path / "other").exists()


def test_files_of_a_run_may_be_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = with_absolute_paths(TrainConfig(init="~/start.safetensors", ledger="~/clients.db"))
    assert config.init == str(tmp_path / "start.safetensors")
    assert config.ledger == str(tmp_path / "clients.db")
