"""`pmtl finetune`, and what `pmtl evaluate` and `pmtl predict` make of its folder."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pmtl
from pmtl import storage as files
from pmtl.privacy.ledger.ledger import Ledger

PLAN = {"epsilon": 8.0, "rounds": 2}


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    pmtl.train("synthetic:clients=12,samples=12", privacy=PLAN, local={"steps": 2}, out=path)
    return path


def test_all_methods_in_one_table(run, pmtl_command):
    done = pmtl_command("finetune", run, "--method", "all", "--steps", 2, "--json")
    assert done.status == 0, done.err
    report = json.loads(done.out)
    names = [f"{method}-personal" for method in ("vanilla", "mean", "kl", "ewc")]
    assert list(report["test"]) == ["shared", "personal", *names]
    assert len({report["test"][name]["loss"] for name in names}) == 4
    assert "verdict" not in report  # Nothing was chosen.
    assert report["finetuned"] == [str(run / "finetuned" / name) for name in names]
    evaluated = json.loads(pmtl_command("evaluate", run / "finetuned/ewc-personal", "--json").out)
    for view, name in (("finetuned", "ewc-personal"), ("shared", "shared")):
        found = evaluated["test"][view]
        assert found == {**found, **report["test"][name]}


def test_all_methods_go_on_where_some_are_done(run, pmtl_command):
    assert pmtl_command("finetune", run, "--steps", 1).status == 0
    kept = run / "finetuned/vanilla-personal"
    before = (kept / "personal.safetensors").read_bytes()
    done = pmtl_command("finetune", run, "--method", "all", "--steps", 3, "--json")
    assert done.status == 0, done.err
    assert f"{kept} exists already and is kept as it is: vanilla is not done again" in done.err
    names = [f"{method}-personal" for method in ("mean", "kl", "ewc")]
    report = json.loads(done.out)
    assert report["finetuned"] == [str(run / "finetuned" / name) for name in names]
    assert (kept / "personal.safetensors").read_bytes() == before


def test_all_methods_may_be_tried_again_under_another_name(run, pmtl_command):
    assert pmtl_command("finetune", run, "--method", "all", "--steps", 1).status == 0
    refused = pmtl_command("finetune", run, "--method", "all", "--steps", 1)
    assert refused.status == 2
    assert "choose another --name" in refused.err
    done = pmtl_command("finetune", run, "--method", "all", "--steps", 1, "--name", "again")
    assert done.status == 0, done.err
    assert (run / "finetuned/again-ewc").is_dir()


def test_stopping_says_what_is_kept(run, pmtl_command, monkeypatch):
    import pmtl.personalize.finetuning as module

    real = module.finetune

    def stopped(run, method, *args, **options):
        if method == "kl":
            raise KeyboardInterrupt
        return real(run, method, *args, **options)

    monkeypatch.setattr(module, "finetune", stopped)
    done = pmtl_command("finetune", run, "--method", "all", "--steps", 1)
    assert done.status == 130
    assert "Finished and kept: " in done.err
    assert [*run.glob("finetuned/*")] != []
    assert not (run / "finetuned/kl-personal").exists()


def test_tables_in_a_pipe_are_not_cut(run, pmtl_command, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    done = pmtl_command("finetune", run, "--steps", 1, "--name", "a-name-that-takes-much-room")
    assert "…" not in done.out
    assert "accuracy_worst_decile" in done.out.replace(" ", "_")


def test_models_that_diverged_are_named_and_refuse_to_predict(run, tmp_path, pmtl_command):
    options = ("--method", "mean", "--lam", 1e30, "--steps", 9, "--name", "far")
    done = pmtl_command("finetune", run, *options)
    assert done.status == 0, done.err
    assert "Careful: mean-personal diverged" in done.out
    assert "Careful" not in pmtl_command("finetune", run, "--steps", 1).out
    np.save(tmp_path / "new.npy", np.zeros((3, 10), dtype=np.float32))
    options = ("--client", "4", "--data", tmp_path / "new.npy", "--out", tmp_path / "answers.npy")
    refused = pmtl_command("predict", run / "finetuned/far", *options)
    assert refused.status == 2
    assert "diverged" in refused.err
    assert not (tmp_path / "answers.npy").exists()


def test_select_shows_what_was_chosen_and_the_folder_predicts(run, tmp_path, pmtl_command):
    fewer = ("--steps", 1, "--start", "shared", "--lam", 1, "--name", "mine")
    done = pmtl_command("finetune", run, "--method", "select", *fewer)
    assert done.status == 0, done.err
    assert "chosen by clients" in done.out
    assert "inside a client: free" in done.out
    last = done.out.splitlines()[-1]
    assert last.startswith("Verdict: ")
    assert "Validation rows did the choosing" in last
    np.save(tmp_path / "new.npy", np.zeros((3, 10), dtype=np.float32))
    options = ("--client", "4", "--data", tmp_path / "new.npy", "--out", tmp_path / "answers.npy")
    answered = pmtl_command("predict", run / "finetuned/mine", *options)
    assert answered.status == 0, answered.err
    expected = pmtl.load_finetuned(run / "finetuned/mine").predict("4", np.zeros((3, 10)))
    assert np.load(tmp_path / "answers.npy").tolist() == expected.tolist()


def test_production_prints_no_metrics_and_no_choices(tmp_path, pmtl_command):
    data = "synthetic:clients=12,samples=12"
    Ledger.create(tmp_path / "ledger.db", pmtl.load(data).clients).close()
    pmtl.train(
        data,
        privacy=PLAN,
        mode="production",
        ledger=tmp_path / "ledger.db",
        out=tmp_path / "run",
    )
    fewer = ("--steps", 1, "--lam", 1, "--name", "select", "--json")
    done = pmtl_command("finetune", tmp_path / "run", "--method", "select", *fewer)
    assert done.status == 0, done.err
    answer = json.loads(done.out)
    assert set(answer) == {"finetuned", "epsilon", "delta", "verdict"}
    assert "its scores were not released" in answer["verdict"]["sentence"]
    refused = pmtl_command("evaluate", tmp_path / "run/private/finetuned/select")
    assert refused.status == 2
    assert "withholds" in refused.err


def test_mistakes_are_sentences_and_leave_nothing_behind(run, tmp_path, pmtl_command):
    for options, sentence in (
        (("--method", "evc"), "Did you mean 'ewc'"),
        (("--method", "bogus"), "Known: all, ewc, kl, mean, select, vanilla"),
        (("--method", "all", "--out", "x"), "use --name, not --out"),
        (("--name", "x", "--out", "y"), "give one of them"),
        (("--method", "mean", "--lam", "-1"), "not negative"),
        (("--method", "all", "--lam", "-1"), "not negative"),
        (("--name", "a/b"), "without slashes"),
        (("--start", "global"), "no start 'global'"),
    ):
        done = pmtl_command("finetune", run, *options)
        assert done.status == 2
        assert sentence in done.err
    assert not (run / "finetuned").exists()
    facts = run / "run.json"
    files.write_json(facts, {**files.read_json(facts), "state": "running"})
    done = pmtl_command("finetune", run)
    assert done.status == 2
    assert "pmtl resume" in done.err
