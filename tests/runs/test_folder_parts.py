"""The two parts of a production run's folder: what anybody may read, and what its owner can."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from weights import personal, shared

import pmtl
from pmtl import storage as files
from pmtl.errors import PmtlWarning
from pmtl.personalize.finetuning import folder_of
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.statement.text import PRODUCTION
from pmtl.runs.facts import versions
from pmtl.runs.folder import RunFolder

PUBLIC = {
    "metrics.csv",
    "metrics.jsonl",
    "plan.json",
    "privacy.json",
    "privacy.txt",
    "shared.safetensors",
}
OPTIONS = {
    "privacy": {"epsilon": 2.0, "rounds": 4, "cohort": 6},
    "local": {"steps": 1},
    "mode": "production",
    "checkpoint_seconds": 0.0,
}
UNKNOWN = 6


def rows(labels=None):
    """Twelve clients with scaled features; `labels` replaces the last client's last six."""
    random = np.random.default_rng(4)
    x = random.normal(size=(12 * 14, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    if labels is not None:
        y[-UNKNOWN:] = labels
    client = np.repeat([f"site-{k:02d}" for k in range(12)], 14)
    return pmtl.FederatedData.from_arrays(x, y, client, outputs=2, scale="client")


SECRET = (1, 0, 0, 1, 1, 0)


def produce(data, folder, **options):
    if not (folder / "ledger.db").exists():
        Ledger.create(folder / "ledger.db", data.clients).close()
    values = {**OPTIONS, "ledger": folder / "ledger.db", "out": folder / "run", **options}
    return pmtl.train(data, **values)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run with a fine-tuned result, written under the most generous umask."""
    folder = tmp_path_factory.mktemp("parts")
    before = os.umask(0)
    try:
        run = produce(rows(SECRET), folder)
        pmtl.finetune(run, "mean", steps=1, out=folder_of(run, "mean", None))
    finally:
        os.umask(before)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def readable_by_others(root: Path) -> dict[str, bytes]:
    """The files below `root` that somebody else on the machine could read."""
    found = {}
    for path in root.rglob("*"):
        above = [path, *(folder for folder in path.parents if folder.is_relative_to(root))][:-1]
        if path.is_file() and mode(path) & 0o004 and all(mode(p) & 0o001 for p in above[1:]):
            found[str(path.relative_to(root))] = path.read_bytes()
    return found


def digests_in(content: bytes) -> set[bytes]:
    """Everything in a file that may be a digest of at least 16 bytes."""
    found = {bytes.fromhex(h.decode()) for h in re.findall(rb"(?:[0-9a-fA-F]{2}){16,}", content)}
    for text in re.findall(rb"[A-Za-z0-9+/_-]{22,}={0,2}", content):
        plain = text.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
        if len(plain) % 4 != 1:
            found.add(base64.b64decode(plain + b"=" * (-len(plain) % 4)))
    return found


def guesses(data) -> set[bytes]:
    """The digests without a key that a file may hold of such data."""
    print_of = data.fingerprint()
    canonical = [data.y.tobytes(), data.x.tobytes(), data.x.tobytes() + data.y.tobytes()]
    texts = [print_of.encode(), bytes.fromhex(print_of), json.dumps(print_of).encode(), *canonical]
    made = {bytes.fromhex(print_of)}
    for text in texts:
        made.add(hashlib.sha256(text).digest())
        made |= {hashlib.blake2b(text, digest_size=size).digest() for size in (16, 32, 64)}
    return made


def labels_that_fit(root: Path) -> list[tuple[int, ...]]:
    """The colluders' attack: they know every row but six labels, and read whatever they can."""
    known = set().union(*map(digests_in, readable_by_others(root).values()))
    return [
        labels
        for labels in itertools.product((0, 1), repeat=UNKNOWN)
        if guesses(rows(labels)) & known
    ]


def test_colluders_who_know_all_but_six_labels_find_nothing_to_try_them_on(finished):
    assert {"run/public/plan.json", "ledger.db"} <= set(readable_by_others(finished))
    assert labels_that_fit(finished) == []


def test_the_same_attack_finds_the_labels_where_a_digest_without_a_key_lies_open(
    finished, tmp_path
):
    """So the attack above can succeed: this is what version 0.1 wrote into `run.json`."""
    shutil.copytree(finished, tmp_path / "run")
    for name in ("run.json", "elsewhere.txt"):
        (tmp_path / name).write_text(f'{{"fingerprint": "{rows(SECRET).fingerprint()}"}}')
        (tmp_path / name).chmod(0o644)
        assert labels_that_fit(tmp_path) == [SECRET]
        (tmp_path / name).unlink()


def test_digests_in_the_ledger_and_in_private_files_are_keyed(finished):
    """The ledger can be read by everybody, so its marks must be of no use without the key."""
    folder = RunFolder(finished / "run")
    tensors, metadata = files.read_tensors(folder.checkpoint_file, key=folder.key)
    with Ledger.open(finished / "ledger.db", write=False) as ledger:
        marks = [entry.values["digest"] for entry in ledger.entries() if entry.kind == "mark"]
    assert marks[-1] == files.digest(tensors, metadata, folder.key)
    assert marks[-1] != files.digest(tensors, metadata)
    assert metadata["metrics"] != files.digest_of_text(folder.metrics_file.read_text())
    facts = folder.facts()
    data = rows(SECRET)
    assert facts.fingerprint == files.digest_of_text(data.fingerprint(), folder.key)
    scaling, about = files.read_tensors(folder.scaling_file, key=folder.key)
    assert facts.written["scaling"] == files.digest(scaling, about, folder.key)
    assert facts.written["scaling"] != files.digest(scaling, about)
    tuned = files.read_json(folder.finetuned / "mean-personal/finetuned.json")
    for file, written in (
        (folder.personal_file, facts.written["personal"]),
        (folder.finetuned / "mean-personal/personal.safetensors", tuned["written"]["personal"]),
    ):
        with safe_open(file, "pt") as opened:
            about = json.loads(opened.metadata()["pmtl"])
            small = {name: opened.get_tensor(name) for name in ("clients", "digests", "unseen")}
        assert about.pop("digest") == written == files.digest(small, about, folder.key)
        assert written != files.digest(small, about)


def test_every_run_has_a_key_of_its_own(finished, tmp_path):
    produce(rows(SECRET), tmp_path)
    one, two = (RunFolder(root / "run") for root in (finished, tmp_path))
    assert len(one.key) == len(two.key) == 32
    assert one.key != two.key
    assert one.facts().fingerprint != two.facts().fingerprint


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_private_is_the_owners_alone_whatever_the_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        run = produce(rows(), tmp_path)
        tuned = pmtl.finetune(run, steps=1, out=tmp_path / "elsewhere/tuned")
    finally:
        os.umask(before)
    folder = RunFolder(tmp_path / "run")
    for private in (folder.private, tuned.path):
        assert mode(private) == 0o700
        inside = list(private.rglob("*"))
        assert len(inside) >= 4
        assert {mode(path) for path in inside} == {0o600}
    assert mode(folder.path) == mode(folder.public) == 0o755 & ~umask
    assert {mode(path) for path in folder.public.iterdir()} == {0o644 & ~umask}


def test_no_private_file_is_readable_by_others_even_for_a_moment(tmp_path):
    command = [
        sys.executable,
        str(Path(__file__).parents[1] / "programs/watched.py"),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["seen"] == []
    assert told["looks"] > 50


def test_the_public_part_holds_what_the_statement_lists_and_nothing_else(finished):
    folder = RunFolder(finished / "run")
    assert {file.name for file in folder.path.iterdir()} == {"public", "private"}
    assert {file.name for file in folder.public.iterdir()} == PUBLIC
    public, _, private = PRODUCTION.partition("Nothing of private/ may")
    assert set(re.findall(r"[\w.]+\.(?:txt|csv|jsonl?|safetensors)", public)) == PUBLIC
    assert "own models" in private
    assert "Each client gets its own model" in private
    said = " ".join(folder.statement_file.read_text().split())
    assert PRODUCTION in said


def test_plan_and_shared_model_say_nothing_that_depends_on_rows(finished):
    folder = RunFolder(finished / "run")
    plan = files.read_json(folder.plan_file)
    settings = {"local", "evaluate_every", "patience", "hardened", "plan", "metrics_plan"}
    data = {"task", "outputs", "input_shape", "labels", "feature_names", "text", "disclosed"}
    kind = {"id", "mode", "model", "algorithm", "shares", "personal", "relations", "parameters"}
    rest = {"pixels", "clients", "blocks", "initialisation"}
    rest |= {"frozen", "share", "shared_numbers", "public_files", "bounds", "schema"}
    assert set(plan) == settings | data | kind | rest | set(versions())
    assert plan["plan"]["cohort"] == 6
    with safe_open(folder.shared_file, "pt") as opened:
        assert list(opened.keys()) == ["weights"]
        assert set(json.loads(opened.metadata()["pmtl"])) == {"model", "digest"}
    lines = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
    assert [set(line) - {"validation", "noise"} for line in lines] == [{"round"}] * 4


def test_how_many_clients_were_ever_sampled_shows_in_no_public_file(tmp_path, monkeypatch):
    """With one round and a rate of a half, cohorts differ; names and sizes of files do not."""
    sizes, seen = set(), set()
    monkeypatch.setattr("uuid.uuid4", lambda: type("Id", (), {"hex": "0" * 32}))
    for attempt in range(4):
        here = tmp_path / str(attempt)
        here.mkdir()
        privacy = {**OPTIONS["privacy"], "rounds": 1, "metrics": 0.0}
        produce(rows(), here, privacy=privacy)
        folder = RunFolder(here / "run")
        with safe_open(folder.personal_file, "pt") as opened:
            seen.add(len(opened.get_tensor("clients")))
        plan = files.read_json(folder.plan_file)
        del plan["initialisation"]
        public = {file.name: file.stat().st_size for file in folder.public.iterdir()}
        del public["plan.json"]
        sizes.add(json.dumps([plan, sorted(public.items())]))
    assert len(seen) > 1
    assert len(sizes) == 1


# --- both layouts do what a run's folder is for ---


def test_a_divided_folder_is_resumed_read_asked_and_tuned(tmp_path, monkeypatch, pmtl_command):
    data, save = rows(), RunFolder.save_round

    def save_and_stop(self, line):
        save(self, line)
        if line["round"] == 2:
            raise SystemError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", save_and_stop)
        with pytest.raises(SystemError):
            produce(data, tmp_path)
    assert {file.name for file in (tmp_path / "run/public").iterdir()} == {
        "plan.json",
        "metrics.jsonl",
    }
    run = pmtl.resume(tmp_path / "run", data=data)
    again = pmtl.load_run(tmp_path / "run", data=data)
    assert torch.equal(personal(again), personal(run))
    assert torch.equal(shared(again), shared(run))
    assert again.metrics == run.metrics
    assert again.privacy == run.privacy
    assert again.data is data
    assert "key" not in again.facts.to_dict()
    np.save(tmp_path / "x.npy", data.x[:3])
    options = ("--client", "site-03", "--data", tmp_path / "x.npy", "--out", tmp_path / "y.csv")
    assert pmtl_command("predict", tmp_path / "run", *options).status == 0
    tuned = pmtl.finetune(again, "mean", steps=1, out=folder_of(again, "mean", None))
    assert tuned.path == tmp_path / "run/private/finetuned/mean-personal"
    assert pmtl_command("predict", tuned.path, *options).status == 0
    other = rows([1] * UNKNOWN)
    with pytest.raises(pmtl.PmtlError, match="fingerprint differs"):
        pmtl.load_run(tmp_path / "run", data=other).data  # noqa: B018


def test_an_experiment_stays_flat_and_its_digests_are_plain(tmp_path):
    data = rows()
    pmtl.train(data, privacy={"rounds": 1}, out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert not folder.divided
    assert not folder.key_file.exists()
    assert folder.key == b""
    assert folder.facts().fingerprint == data.fingerprint()
    assert all(file.is_file() for file in folder.path.iterdir())


def test_train_ends_by_saying_what_may_be_handed_out(tmp_path, monkeypatch, pmtl_command):
    monkeypatch.chdir(tmp_path)
    data = ("--data", "synthetic:clients=12,samples=8")
    assert pmtl_command("ledger", "create", "l.db", *data).status == 0
    options = ("--rounds", 1, "--steps", 1, "--mode", "production", "--ledger", "l.db")
    done = pmtl_command("train", *data, *options, "--out", "run")
    assert done.status == 0, done.err
    assert "Public: run/public (" in done.out
    assert "Private: run/private. Only you can open it." in done.out
    plain = pmtl_command("train", *data, "--rounds", 1, "--steps", 1, "--out", "flat")
    assert "Everything is in flat; the whole statement in flat/privacy.txt." in plain.out
    assert "Private:" not in plain.out


class Fixed(nn.Module):
    """A head on random features that are not trained."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        self.features = nn.Linear(input_shape[0], 5).requires_grad_(False)
        self.head = nn.Linear(5, outputs)

    def forward(self, x):
        return self.head(torch.relu(self.features(x)))


def test_layers_that_are_not_trained_come_back_in_production(tmp_path):
    """They are in no published vector; they follow from the public initialisation."""
    data = rows()
    run = produce(data, tmp_path, model=Fixed)
    again = pmtl.load_run(tmp_path / "run", data=data, model=Fixed)
    one, two = (list(found.personal("site-03").parameters()) for found in (run, again))
    assert len(one) == len(two) == 4
    assert all(map(torch.equal, one, two))


# --- one mistake ---


def copied(finished: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(finished / "run", tmp_path / "run")
    return RunFolder(tmp_path / "run")


def test_a_missing_short_or_foreign_key_is_told(finished, tmp_path):
    folder = copied(finished, tmp_path)
    folder.key_file.unlink()
    with pytest.raises(pmtl.PmtlError, match=r"private/key cannot be read .*Put it back"):
        pmtl.load_run(folder.path)
    folder.key_file.write_bytes(b"short")
    with pytest.raises(pmtl.PmtlError, match="private/key is damaged"):
        pmtl.load_run(folder.path)
    folder.key_file.write_bytes(b"x" * 32)
    with pytest.raises(pmtl.PmtlError, match="damaged"):
        pmtl.load_run(folder.path)


def test_a_private_part_that_others_can_open_is_refused(finished, tmp_path):
    """As `cp -r` leaves it."""
    folder = copied(finished, tmp_path)
    folder.private.chmod(0o755)
    with pytest.raises(pmtl.PmtlError, match="chmod -R go="):
        pmtl.load_run(folder.path)
    folder.private.chmod(0o700)
    assert pmtl.load_run(folder.path).clients[0] == "site-00"


def test_somebody_else_is_told_whose_it_is(finished, monkeypatch):
    there = Path.exists

    def refuse(self):
        if self.parent.name == "private":
            raise PermissionError(13, "Permission denied")
        return there(self)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", refuse)
        with pytest.raises(pmtl.PmtlError, match="Only its owner can open"):
            RunFolder.open(finished / "run")
    for part in ("public", "private"):
        with pytest.raises(pmtl.PmtlError, match=f"only the {part} part .* the folder above"):
            pmtl.load_run(finished / "run" / part)


def test_a_file_system_without_permissions_is_refused_and_nothing_is_left(tmp_path, monkeypatch):
    data = rows()
    Ledger.create(tmp_path / "ledger.db", data.clients).close()
    made = Path.mkdir

    def generous(self, mode=0o777, **options):
        made(self, mode, **options)
        if self.name == "private":
            self.chmod(0o755)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", generous)
        with pytest.raises(pmtl.PmtlError, match="file system without private files"):
            produce(data, tmp_path)
    assert not any("run" in file.name for file in tmp_path.iterdir())
    with Ledger.open(tmp_path / "ledger.db", write=False) as ledger:
        assert ledger.runs() == []


# --- version 0.1 ---


def as_version_01(folder: RunFolder, state: str = "complete") -> None:
    """Lay a production run out as version 0.1 did: flat, with digests without a key."""
    facts, key = files.read_json(folder.facts_file), folder.key
    for part in (folder.public, folder.private):
        for file in part.iterdir():
            shutil.move(file, folder.path / file.name)
        part.rmdir()
    old = RunFolder(folder.path)
    written = dict(facts["written"])
    written["metrics"] = files.digest_of_text(old.metrics_file.read_text())
    for name, file in (("scaling", old.scaling_file), ("checkpoint", old.checkpoint_file)):
        tensors, metadata = files.read_tensors(file, key=key)
        written[name] = files.write_tensors(file, tensors, metadata)
    with safe_open(old.personal_file, "pt") as opened:
        about = json.loads(opened.metadata()["pmtl"])
        small = {name: opened.get_tensor(name) for name in ("clients", "digests", "unseen")}
    keyed = about.pop("digest")
    written["personal"] = files.digest(small, about)
    content = old.personal_file.read_bytes()
    old.personal_file.write_bytes(content.replace(keyed.encode(), written["personal"].encode()))
    for name in ("format", "initialisation"):
        del facts[name]
    old.plan_file.unlink()
    fingerprint = rows(SECRET).fingerprint()
    files.write_json(
        old.facts_file,
        {**facts, "written": written, "fingerprint": fingerprint, "state": state, "pmtl": "0.1.0"},
    )
    (old.path / "key").unlink()
    shutil.rmtree(old.finetuned)


def test_a_run_of_version_01_is_read_with_a_warning_and_not_continued(
    finished, tmp_path, pmtl_command
):
    expected = personal(pmtl.load_run(finished / "run"))
    as_version_01(copied(finished, tmp_path))
    with pytest.warns(PmtlWarning, match="Publish none of its files except"):
        run = pmtl.load_run(tmp_path / "run", data=rows(SECRET))
    assert torch.equal(personal(run), expected)
    assert run.data is not None
    np.save(tmp_path / "x.npy", rows().x[:3])
    options = ("--client", "site-03", "--data", tmp_path / "x.npy", "--out", tmp_path / "y.csv")
    done = pmtl_command("predict", tmp_path / "run", *options)
    assert done.status == 0
    assert done.err.startswith("warning: The run at")
    assert "results.py" not in done.err
    tuned = pmtl.finetune(run, steps=1, out=folder_of(run, "vanilla", None))
    assert mode(tuned.path) == 0o700
    folder = RunFolder(tmp_path / "run")
    folder.save_facts(replace(folder.facts(), state="running"))
    with pytest.raises(pmtl.PmtlError, match=r"earlier version of pmtl.*start a new run"):
        pmtl.resume(tmp_path / "run", data=rows(SECRET))


def test_other_runs_are_read_without_a_warning(finished, tmp_path):
    pmtl.train(rows(), privacy={"rounds": 1}, out=tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pmtl.load_run(finished / "run")
        pmtl.load_run(tmp_path / "run")
