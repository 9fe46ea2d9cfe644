"""What a person is told: of models that are not finite, and of public numbers in production."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import pmtl
from pmtl.data import Bounds
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.request import DEFAULT_CLIP, PrivacyRequest
from pmtl.runs.config import TrainConfig

DIVERGES = {"local": {"steps": 50, "batch": 0, "lr": 100.0}, "evaluate_every": 0}


def large(clients=6, broken=None):
    """Features so large that steps overflow: of everybody, or of one client only."""
    random = np.random.default_rng(1)
    x = random.normal(size=(clients * 8, 3)).astype(np.float32)
    owner = np.repeat([f"site-{k}" for k in range(clients)], 8)
    x[(owner == broken) if broken else slice(None)] *= 1e18
    y = np.where(x[:, :1] > 0, 1.0, -1.0).astype(np.float32)
    return pmtl.FederatedData.from_arrays(x, y, owner, task="regression")


def write(path, data):
    np.savez(
        path,
        x=data.x,
        y=data.y,
        client=np.array(data.clients)[
            np.repeat(np.arange(data.m), np.bincount(_owners(data), minlength=data.m))
        ],
    )


def _owners(data):
    owner = np.empty(len(data.x), dtype=np.int64)
    for split in ("train", "validation", "test"):
        rows = data.rows(split)
        owner[rows.order] = np.repeat(np.arange(data.m), rows.counts)
    return owner


class TestExperiment:
    def test_python_is_warned_after_everything_was_saved(self, tmp_path):
        with pytest.warns(RuntimeWarning, match=r"Training diverged: \d of 6 personal") as told:
            run = pmtl.train(large(), privacy={"rounds": 2}, out=tmp_path / "run", **DIVERGES)
        assert {Path(one.filename).name for one in told} == {Path(__file__).name}
        assert "smaller step (--lr)" in run.not_finite
        again = pmtl.load_run(tmp_path / "run")
        assert again.not_finite == run.not_finite
        assert json.loads((tmp_path / "run/run.json").read_text())["state"] == "complete"
        assert again.privacy.epsilon == run.privacy.epsilon > 0

    def test_one_personal_model_counts(self):
        with pytest.warns(RuntimeWarning, match="1 of 6 personal models are not finite"):
            pmtl.train(large(broken="site-3"), privacy={"rounds": 2}, local={"lr": 0.01})

    def test_finite_models_are_not_spoken_of(self, small):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            run = pmtl.train(small, privacy={"rounds": 2}, local={"steps": 1})
        assert run.not_finite is None

    def test_the_command_ends_with_a_sentence_and_status_2(
        self, pmtl_command, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "d.npz", large())
        words = ["--data", "d.npz:task=regression", "--rounds", 2, "--lr", 100, "--steps", 50]
        done = pmtl_command("train", *words, "--batch", 0, "--out", "run", "--json")
        assert done.status == 2
        assert json.loads(done.out)["not_finite"] in done.err
        assert "error: Training diverged" in done.err
        assert pmtl_command("evaluate", "run").status == 0
        more = ["--algorithm", "pmtl", "--epsilon", 2, "--seeds", 2, "--batch", 0, "--out", "cmp"]
        done = pmtl_command("compare", *words, *more)
        assert done.status == 2
        assert "Training diverged in 2 of 2 runs" in done.err
        assert (tmp_path / "cmp/table.md").exists()


class TestProduction:
    @pytest.fixture
    def ledger(self, tmp_path):
        path = tmp_path / "ledger.db"

        def make(data):
            Ledger.create(path, data.clients).close()
            return path

        return make

    def test_a_personal_model_is_its_clients_own_affair(self, ledger, tmp_path, monkeypatch):
        data = large(broken="site-3")
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            run = pmtl.train(
                data,
                privacy={"rounds": 2},
                mode="production",
                ledger=ledger(data),
                local={"lr": 0.01},
            )
        assert run.not_finite is None
        assert torch.isfinite(next(run.personal("site-2").parameters())).all()
        assert not torch.isfinite(next(run.personal("site-3").parameters())).all()

    def test_a_shared_model_that_is_not_finite_is_told_and_stays_charged(self, ledger, tmp_path):
        """Noise beyond float32 makes the published model infinite: a public fact."""
        data = large(broken="site-3")
        path = ledger(data)
        privacy = {"noise": 1e39, "rounds": 2, "hardened": False, "metrics": 0.0}
        with pytest.warns(RuntimeWarning, match="the shared model is not finite"):
            run = pmtl.train(data, privacy=privacy, mode="production", ledger=path, **DIVERGES)
        assert "personal" not in run.not_finite
        assert sum(run.facts.charged.values()) == 2

    def test_every_warning_that_rests_on_public_numbers_is_given(self, ledger, small):
        told = []
        privacy = {"noise": 5.0, "rounds": 2, "cohort": 1, "delta": 0.1}
        pmtl.train(
            small, privacy=privacy, mode="production", ledger=ledger(small), warn=told.append
        )
        said = " ".join(told)
        assert "With only 12 clients" in said
        assert "The noise is likely to drown the shared model" in said
        assert "Delta is 0.1" in said
        assert "of the rounds draw no client at all" in said
        assert "The released metrics will say little" in said

    def test_no_warning_rests_on_rows(self, ledger):
        """Rows a thousand times as large, and one class only: the same words."""
        random = np.random.default_rng(0)
        owner = np.repeat([f"site-{k}" for k in range(5)], 9)
        y = random.integers(0, 2, size=45)
        said = []
        for scale, classes in ((1.0, y), (1e3, np.zeros_like(y))):
            x = (scale * random.normal(size=(45, 3))).astype(np.float32)
            data = pmtl.FederatedData.from_arrays(x, classes, owner, outputs=2)
            told = []
            path = ledger(data) if not said else said[0][0]
            options = {"privacy": {"rounds": 1}, "local": {"steps": 1}, "warn": told.append}
            pmtl.train(data, mode="production", ledger=path, **options)
            said.append((path, told))
        assert said[0][1] == said[1][1] != []


def test_commands_agree_on_the_default_clip(pmtl_command):
    words = ["--clients", 50, "--noise", 0.1, "--rounds", 3, "--json"]
    answer = json.loads(pmtl_command("privacy", "epsilon", *words).out)
    plan = PrivacyRequest(noise=0.1, rounds=3).resolve(50)
    assert answer["clip"] == plan.clip_norm == DEFAULT_CLIP
    assert TrainConfig().privacy.resolve(50).clip_norm == DEFAULT_CLIP
    assert answer["epsilon"] == plan.epsilon()
    assert f"{DEFAULT_CLIP:g} unless" in pmtl_command("privacy", "epsilon", "--help").out


def test_a_run_says_why_its_algorithm_is_the_papers(small):
    def told(**given):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = pmtl.train(small, privacy={"noise": 1.0, **given.pop("more", {})}, **given)
        return run.facts.algorithm, [w for w in map(str, caught) if "The algorithm is pmtl" in w]

    name, sentences = told(more={"rounds": 1})
    assert name.startswith("pmtl")
    assert len(sentences) == 1
    assert not told()[1]
    assert not told(algorithm="pmtl", more={"rounds": 1})[1]


def test_the_released_loss_of_numbers_is_bounded_by_their_public_bounds():
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(200, 2)), np.repeat(np.arange(20), 10)
    data = pmtl.FederatedData.from_arrays(x, 30.0 * rng.normal(size=200), client)
    bounded = data.bounded(Bounds(target=(-30.0, 30.0)))
    privacy = {"epsilon": 1e6, "metrics": 0.5, "rounds": 1}
    given = {"algorithm": "pmtl", "privacy": privacy, "local": {"steps": 1, "lr": 1e-6}}
    # The errors are near 900: far above 1, the bound without public bounds, and in part above 600.
    (plain,), (wide,) = (pmtl.train(one, **given).released() for one in (data, bounded))
    assert 0.8 < plain["personal"]["loss_mean"] < 1.01
    assert 100 < wide["personal"]["loss_mean"] <= 600
