"""Failure cases of whole runs: crashes, ledgers, caps, stopping, settings that promise nothing, and
data that only one client has. (`test_failure_cases.py` lists all cases.)"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from silent import GATES
from torch import nn

import pmtl
from pmtl.algorithms import build_algorithm
from pmtl.models import build_model
from pmtl.privacy.ledger import file as ledger_file
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.noise import seeded_source, system_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.sampler import Sampler
from pmtl.runs.budget import Budget
from pmtl.simulation import LocalTraining, noise_key, simulate

PLAN = {"epsilon": 2.0, "rounds": 5}


@pytest.fixture
def ledger(small, tmp_path):
    path = tmp_path / "ledger.db"
    Ledger.create(path, small.clients).close()
    return path


@pytest.fixture
def drawn(monkeypatch):
    """The rounds for which production noise was asked for."""
    seen = []

    def spy(round):
        seen.append(round)
        return system_source(round)

    monkeypatch.setattr(noise_key, "system_source", spy)
    return seen


def produce(data, ledger, **options):
    values = {"privacy": {**PLAN, "metrics": 0.0}, "local": {"steps": 1}, "evaluate_every": 0}
    return pmtl.train(data, **{**values, "mode": "production", "ledger": ledger, **options})


def charged(ledger, kind="training"):
    with Ledger.open(ledger, write=False) as opened:
        return [round for run in opened.runs() for round in opened.charged(run, kind)]


# --- death ---


@pytest.fixture(scope="module")
def deaths(tmp_path_factory):
    command = [sys.executable, str(Path(__file__).parents[1] / "programs/dying.py")]
    folder = tmp_path_factory.mktemp("deaths")
    done = subprocess.run(
        [*command, str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("instant", "at_death", "checkpoint", "in_the_end"),
    [
        ("after_charge_before_release", [0, 1, 2], 2, [0, 1, 2, 2]),
        ("after_release_before_checkpoint", [0, 1, 2], 2, [0, 1, 2, 2]),
        ("mid_checkpoint", [0, 1], 1, [0, 1, 1, 2]),
        ("after_checkpoint_before_its_mark", [0, 1], 2, [0, 1, 2, 3]),
    ],
)
def test_kill_9_after_charge_before_release_after_release_before_checkpoint_or_mid_checkpoint(
    instant, at_death, checkpoint, in_the_end, deaths
):
    """Of four rounds that were paid for, what was charged stays charged, a lost one counts, and a
    half-written checkpoint is none."""
    told = deaths[instant]
    assert told["died_of"] == 9
    assert told["charged_at_death"] == at_death
    assert told["checkpoint"] == checkpoint
    assert bool(told["left_behind"]) == (instant == "mid_checkpoint")
    assert told["resumed"] == 0
    assert told["charged"] == in_the_end
    assert 1.9 < told["epsilon"] <= 2.0


# --- the ledger ---


def edited(path):
    path.write_bytes(path.read_bytes().replace(b'"training"', b'"tra1ning"', 1))


def missing(path):
    path.unlink()


def rolled_back(path):
    shutil.copy(path.with_suffix(".before"), path)


@pytest.mark.parametrize("spoil", [edited, missing, rolled_back])
def test_a_ledger_edited_missing_or_rolled_back_is_refused_before_noise(
    spoil, small, ledger, tmp_path, drawn
):
    shutil.copy(ledger, ledger.with_suffix(".before"))
    produce(small, ledger)
    spoil(ledger)
    drawn.clear()
    with pytest.raises(pmtl.PmtlError, match=r"edited|missing|rolled back"):
        produce(small, ledger, out=tmp_path / "run")
    assert drawn == []
    assert not (tmp_path / "run").exists()


def test_a_ledger_unwritable_or_a_disk_full_refuses_before_noise(
    small, ledger, tmp_path, drawn, monkeypatch
):
    """SQLite finds no room for another charge in mid-run."""
    connect = ledger_file.connect

    def cramped(*how):
        database = connect(*how)
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages + 1}")
        return database

    options = {"privacy": {**PLAN, "rounds": 30, "metrics": 0.0}, "checkpoint_seconds": 1e9}
    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "connect", cramped)
        with pytest.raises(pmtl.PmtlError, match="disk is full"):
            produce(small, ledger, out=tmp_path / "run", **options)
    paid = charged(ledger)
    assert 0 < len(paid) < 30
    assert drawn == paid
    assert pmtl.resume(tmp_path / "run", data=small).privacy.rounds == 30
    assert sorted(drawn) == sorted(charged(ledger))


def test_a_round_that_would_pass_the_cap_stops_before_sampling_and_keeps_the_last_model(
    small, ledger, drawn, monkeypatch
):
    sampled, draw = [], Sampler.draw

    def spy(self, round):
        sampled.append(round)
        return draw(self, round)

    monkeypatch.setattr(Sampler, "draw", spy)
    # Somebody lowers the cap while the run is under way.
    monkeypatch.setattr(Budget, "refuse_unaffordable", lambda self: None)
    with Ledger.open(ledger) as opened:
        opened.cap(1.2)
    run = produce(small, ledger)
    assert 0 < len(sampled) < 5
    assert sampled == drawn == charged(ledger)
    assert "cap" in run.facts.stopped
    assert run.privacy.epsilon <= 1.2
    assert run.personal("site-03") is not None


# --- what promises nothing ---

NOTHING = [{"noise": 0.0}, {"noise": 0.1, "clip": math.inf}, {"epsilon": math.inf}]


def as_options(privacy):
    return [text for name, value in privacy.items() for text in (f"--{name}", str(value))]


@pytest.mark.parametrize("privacy", NOTHING, ids=str)
def test_sigma_zero_or_gamma_infinite_is_said_plainly_and_never_epsilon_zero(
    privacy, small, ledger, tmp_path, monkeypatch, pmtl_command
):
    monkeypatch.chdir(tmp_path)
    run = pmtl.train(small, privacy={**privacy, "rounds": 2}, local={"steps": 1})
    assert run.privacy.epsilon == math.inf
    assert "NOT PRIVATE" in str(run.privacy)
    real = produce(small, ledger, privacy={**privacy, "rounds": 2})
    assert real.privacy.population_epsilon == math.inf
    quick = ["--data", "synthetic:clients=12", "--rounds", 1, "--steps", 1]
    shown = pmtl_command("train", *quick, *as_options(privacy))
    assert "NOT PRIVATE" in shown.out, shown.err
    settings = "".join(f"{name} = {value}\n" for name, value in privacy.items())
    Path("c.toml").write_text(f"[privacy]\n{settings}")
    told = pmtl_command("train", "--config", "c.toml", *quick, "--json")
    assert json.loads(told.out)["epsilon"] == "inf", told.err
    if "noise" in privacy:
        told = pmtl_command(
            "privacy", "epsilon", "--clients", 12, "--rounds", 1, *as_options(privacy)
        )
        assert "nothing is guaranteed" in " ".join(told.out.split()), told.err
    with pytest.raises(pmtl.PmtlError, match="not private"):
        pmtl.train(small, privacy={**privacy, "hardened": True})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("noise", value) for value in (math.nan, -0.1, math.inf)),
        *(("clip", value) for value in (math.nan, -1.0, 0.0, -math.inf)),
        *(("epsilon", value) for value in (math.nan, -1.0, 0.0)),
        *(("delta", value) for value in (math.nan, -1.0, 0.0, 1.0)),
    ],
)
def test_negative_or_nan_settings_are_an_error_of_configuration(
    name, value, small, tmp_path, monkeypatch, pmtl_command
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pmtl.PmtlError, match=f"(?i){name}"):
        pmtl.train(small, privacy={name: value})
    Path("c.toml").write_text(f"[privacy]\n{name} = {value}\n")
    commands = [["train", f"--{name}", value], ["train", "--config", "c.toml"]]
    if name != "epsilon":
        noise = [] if name == "noise" else ["--noise", 0.1]
        commands.append(
            ["privacy", "epsilon", "--clients", 9, "--rounds", 2, *noise, f"--{name}", value]
        )
    for command in commands:
        refused = pmtl_command(*command)
        assert refused.status == 2, refused.out
        assert refused.out == ""
        assert name in refused.err.lower()
        assert "Traceback" not in refused.err
    assert [file.name for file in tmp_path.iterdir()] == ["c.toml"]


# --- stopping early ---


def test_early_stopping_on_private_validation_is_charged_or_refused(small, ledger, tmp_path):
    """Charged for the whole plan, where released metrics decide; refused where there are none."""
    patient = {"patience": 1, "evaluate_every": 1}
    plan = {**PLAN, "rounds": 20}
    run = produce(small, ledger, privacy={**plan, "metrics": 0.1}, **patient)
    assert "not lower" in run.facts.stopped
    assert run.metrics[-1]["round"] < 20
    assert charged(ledger) == list(range(20))
    assert len(charged(ledger, "validation")) == 20
    with pytest.raises(pmtl.PmtlError, match="depends on validation rows, which are private"):
        produce(small, ledger, privacy={**plan, "metrics": 0.0}, **patient)
    with pytest.raises(pmtl.PmtlError, match="depends on validation rows, which are private"):
        pmtl.train(small, privacy=plan, **patient)
    # Where nothing passes the gate, exact scores do not step in.
    for nothing in ({"privacy": {"noise": 0.0, "metrics": 0.1}}, {"algorithm": "local"}):
        with pytest.raises(pmtl.PmtlError, match="this run has none"):
            pmtl.train(small, **{"privacy": {**plan, "metrics": 0.1}, **nothing}, **patient)
    assert len(charged(ledger)) == 20


# --- exceptions that only occur with one client's data ---


class Codes(nn.Module):
    """Reads codes from 0 to 5, and raises for any other."""

    def __init__(self, outputs):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(6, outputs))

    def forward(self, x):
        return self.table[x.abs().long()].mean(dim=1)


ILL = 3


def coded(where=None):
    """Twelve clients; a row of one of them, of the split `where`, has a code that is none."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 6, (120, 3)).astype(np.float32), random.integers(0, 2, 120)
    client = np.repeat([f"site-{k:02d}" for k in range(12)], 10)
    split = np.tile(["train"] * 6 + ["validation"] * 2 + ["test"] * 2, 12)
    if where is not None:
        x[np.flatnonzero((client == f"site-{ILL:02d}") & (split == where))[0], 1] = 9
    return x, y, client, split


def coded_federation(monkeypatch, where, hardened, seed=None):
    """In production, but for randomness that two federations have in common."""
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    monkeypatch.setattr(noise_key, "system_source", seeded_source(1))
    data = pmtl.FederatedData.from_arrays(*coded(where), outputs=2)
    model = build_model(Codes, data.input_shape, 2, data.task, 0)
    plan = PrivacyPlan(12, 12, "full", 0.5, 0.01, 3, 1e-2)
    local = LocalTraining(steps=3, batch=4)
    charges = []
    options = {"charge": charges.append, "hardened": hardened}
    federation = simulate(data, model, build_algorithm("pmtl"), plan, local, seed, **options)
    metrics = PrivacyPlan(12, 12, "full", 1.0, 0.01, 3, 1e-2)
    federation.prepare_metrics(metrics, charge=lambda round: charges.append(("metrics", round)))
    federation.dry_run()
    progress = federation.start()
    federation.advance(progress)
    return progress, federation.measure(progress), charges


@GATES
def test_exceptions_that_only_occur_with_one_clients_data_show_nowhere(hardened, monkeypatch):
    well, fine, charges = coded_federation(monkeypatch, None, hardened)
    ill, _, again = coded_federation(monkeypatch, "train", hardened)
    assert again == charges == [0, ("metrics", 1)]
    others = [k for k in range(12) if k != ILL]
    assert torch.equal(ill.store.vectors[others], well.store.vectors[others])
    assert not ill.store.vectors[ILL].any()  # the start
    gap = (well.shared.double() - ill.shared.double()).norm()
    upload = well.store.vectors[ILL].double().norm()
    # Its upload counts as zero, and the divisor stays q.
    assert float(gap) == pytest.approx(float(upload) / 12, rel=1e-3)
    ill, scores, again = coded_federation(monkeypatch, "validation", hardened)
    assert torch.equal(ill.shared, well.shared)
    assert torch.equal(ill.store.vectors, well.store.vectors)
    assert again == charges
    assert {view: set(values) for view, values in scores.items()} == {
        view: set(values) for view, values in fine.items()
    }
    for view, values in scores.items():
        assert 0 < abs(values["loss_mean"] - fine[view]["loss_mean"]) < 2 * math.log(2) / 12
    with pytest.raises(IndexError):
        coded_federation(monkeypatch, "train", hardened, seed=7)


def words(text):
    """A text without what noise decides: numbers, the spaces that align them, and whether the
    verdict finds that a difference is larger than the noise."""
    text = re.sub(r"Verdict: .*?\bexplains\b", "Verdict", text, flags=re.DOTALL)
    return re.sub(r"[\s━─]+", " ", re.sub(r"-?[\d.]+(e[-+]\d+)?", "#", text))


def test_exceptions_that_only_occur_with_one_clients_data_have_the_same_public_behaviour(
    tmp_path, monkeypatch, pmtl_command
):
    """The same words, files and charges, but for the numbers."""
    (tmp_path / "codes_of_one_client.py").write_text(
        "import torch\nfrom torch import nn\n\n\n" + _source(Codes)
    )
    monkeypatch.syspath_prepend(tmp_path)
    seen = {}
    for where in (None, "train", "validation"):
        folder = tmp_path / str(where)
        folder.mkdir()
        monkeypatch.chdir(folder)
        x, y, client, split = coded(where)
        np.savez("d.npz", x=x, y=y, client=client, split=split)
        assert pmtl_command("ledger", "create", "l.db", "--data", "d.npz").status == 0
        done = pmtl_command(
            *("train", "--data", "d.npz", "--model", "codes_of_one_client:Codes", "--out", "run"),
            *("--mode", "production", "--ledger", "l.db", "--rounds", 3),
            *("--evaluate-every", 1, "--epsilon", 4),
        )
        lines = [
            json.loads(line) for line in Path("run/public/metrics.jsonl").read_text().splitlines()
        ]
        seen[where] = {
            "status": done.status,
            "out": words(done.out),
            "err": words(done.err),
            "files": sorted(str(file) for file in Path("run").rglob("*")),
            "shape": [{key: str(type(line[key])) for key in line} for line in lines],
            "statement": Path("run/public/privacy.txt").read_text(),
            "charged": (charged("l.db"), charged("l.db", "validation")),
        }
    assert seen[None]["status"] == 0
    assert seen[None]["charged"] == ([0, 1, 2], [1, 2, 3])
    assert seen["train"] == seen["validation"] == seen[None]


def _source(kind):
    import inspect

    return inspect.getsource(kind)


class OnlyTwo(nn.Linear):
    def __init__(self, input_shape, outputs):
        super().__init__(input_shape[0], outputs)

    def forward(self, x):
        if len(x) != 2:
            raise ValueError("two rows, please")
        return super().forward(x)


def test_what_fails_for_everybody_fails_before_anything_is_spent(small, ledger, tmp_path):
    with pytest.raises(ValueError, match="two rows"):
        produce(small, ledger, model=OnlyTwo, out=tmp_path / "run")
    assert charged(ledger) == []
    assert not (tmp_path / "run").exists()
