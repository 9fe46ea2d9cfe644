"""The command line as its users meet it: what works, and one mistake in each input."""

from __future__ import annotations

import json

import numpy as np
import pytest

QUICK = ("--rounds", 2, "--steps", 2)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(path, rows=40, clients=8, header="client,a,b,target"):
    random = np.random.default_rng(0)
    lines = [header]
    for k in range(rows * clients // clients * clients):
        a, b = random.normal(size=2)
        lines.append(f"shop {k % clients},{a:.3f},{b:.3f},{'yes' if a > b else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def arrays(path, **changes):
    random = np.random.default_rng(1)
    values = {
        "x": random.normal(size=(60, 3)).astype(np.float32),
        "y": random.integers(0, 3, 60),
        "client": np.repeat([f"c{k}" for k in range(6)], 10),
    }
    np.savez(path, **{**values, **changes})
    return path


def test_no_arguments_at_all_train_on_the_embedded_federation(here, pmtl_command):
    done = pmtl_command("train", "--rounds", 2)
    assert done.status == 0, done.err
    assert "ε = 2" in done.out
    assert "runs/run-1" in done.out
    assert done.out.splitlines()[-1].startswith("Verdict: ")
    assert "500 clients" in (here / "runs/run-1/privacy.txt").read_text()


def test_a_csv_from_training_to_predictions(here, pmtl_command):
    table(here / "shops.csv")
    trained = pmtl_command("train", "--data", "shops.csv", "--out", "run", *QUICK, "--json")
    assert trained.status == 0, trained.err
    summary = json.loads(trained.out)
    assert summary["adjacency"] == "replace-one"
    assert summary["verdict"]["rows"] == "validation"
    assert summary["verdict"]["comparisons"][0]["clients"] == 8
    evaluated = pmtl_command("evaluate", "run", "--json")
    scores = json.loads(evaluated.out)
    personal = scores["test"]["personal"]
    assert personal == {**personal, **summary["test"]["personal"]}
    assert {"accuracy", "accuracy_mean", "accuracy_worst_decile", "loss"} == set(
        summary["test"]["personal"]
    )
    for ending in ("csv", "parquet", "npz", "npy"):
        out = f"answers.{ending}"
        told = pmtl_command("predict", "run", "--data", "shops.csv", "--out", out)
        assert told.status == 0, told.err
    head, *answers = (here / "answers.csv").read_text().splitlines()
    assert '"prediction","probability of no","probability of yes"' in head
    assert all(',"yes",' in line or ',"no",' in line for line in answers)
    assert len(answers) + 1 == len((here / "shops.csv").read_text().splitlines())
    assert (np.load(here / "answers.npy") == np.load(here / "answers.npz")["prediction"]).all()


def test_an_npz_with_other_columns_names_and_a_configuration_file(here, pmtl_command):
    arrays(here / "d.npz")
    (here / "c.toml").write_text('data = "d.npz"\nalgorithm = "ditto"\n[privacy]\nrounds = 9\n')
    done = pmtl_command("train", "--config", "c.toml", "--out", "run", "--rounds", 1)
    assert done.status == 0, done.err
    config = (here / "run/config.toml").read_text()
    assert 'algorithm = "ditto:lam=0.1"' in config
    assert "rounds = 1" in config
    again = pmtl_command("train", "--config", "run/config.toml", "--out", "again")
    assert again.status == 0, again.err
    same = ("personal.safetensors", "shared.safetensors", "metrics.jsonl")
    for name in same:
        assert (here / "run" / name).read_bytes() == (here / "again" / name).read_bytes()


def test_a_column_may_have_any_name(here, pmtl_command):
    table(here / "v.csv", header="hospital,a,b,outcome")
    done = pmtl_command(
        *("train", "--data", "v.csv", "--client-column", "hospital", "--target", "outcome"),
        *("--scale", "client", "--out", "run"),
        *QUICK,
    )
    assert done.status == 0, done.err
    assert (here / "run/scaling.safetensors").exists()


def test_evaluate_prints_a_table(here, pmtl_command):
    arrays(here / "d.npz")
    assert pmtl_command("train", "--data", "d.npz", "--out", "run", *QUICK).status == 0
    printed = pmtl_command("evaluate", "run").out
    for word in ("worst decile", "balanced accuracy", "calibration error", "auc"):
        assert word in printed


BAD_ARGUMENTS = [
    (["--algorithm", "fedvag"], ["no algorithm 'fedvag'", "Did you mean 'fedavg'"]),
    (["--algorithm", "pmtl:lambda=1"], ["lambda", "lam"]),
    (["--algorithm", "pmtl:lam=-1"], ["lam", "negative"]),
    (["--algorithm", "pmtl:lam=big"], ["lam", "a number", "'big'"]),
    (["--algorithm", "clustered"], ["needs the cluster of each client", "clusters=FILE"]),
    (["--algorithm", "clustered:clusters=none.json"], ["none.json", "cannot be read"]),
    (["--model", "cnn"], ["no model 'cnn'", "femnist_cnn"]),
    (["--model", "linear"], ["linear", "logistic"]),
    (["--model", "femnist_cnn"], ["28", "shape"]),
    (["--model", "no.such.module:make"], ["no.such.module", "imported"]),
    (["--model", "json:nothing"], ["json", "has no 'nothing'"]),
    (["--epsilon", 0], ["Epsilon", "greater than 0"]),
    (["--epsilon", -1], ["Epsilon", "greater than 0"]),
    (["--epsilon", "nan"], ["epsilon must be a number"]),
    (["--noise", -1], ["noise"]),
    (["--noise", 1, "--epsilon", 1], ["Both"]),
    (["--clip", 0], ["clip norm", "greater than 0"]),
    (["--delta", 2], ["Delta", "between 0 and 1"]),
    (["--cohort", 501], ["cohort of 501", "500 clients"]),
    (["--cohort", 0], ["cohort", "at least 1"]),
    (["--sampling", "possion"], ["no sampling scheme 'possion'", "poisson"]),
    (["--sampling", "full", "--cohort", 3], ["Full participation"]),
    (["--rounds", 0], ["rounds", "at least 1"]),
    (["--steps", 3, "--epochs", 3], ["Both steps"]),
    (["--lr", 0], ["lr"]),
    (["--batch", -1], ["batch"]),
    (["--seed", -4], ["seed"]),
    (["--device", "abacus"], ["abacus"]),
    (["--data", "nothing.npz"], ["nothing.npz"]),
    (["--data", "synthetic:colour=red"], ["colour"]),
    (["--data", "synthetic:clients=0"], ["clients", "at least 1"]),
    (["--config", "nothing.toml"], ["nothing.toml"]),
    (["--target", "y"], ["--data"]),
    (["--frobnicate", 1], ["no option --frobnicate"]),
    (["--rounds", "many"], ["--rounds", "whole number", "'many'"]),
    (["--device", "cuda:77"], ["cuda:77", "There is: cpu"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_ARGUMENTS, ids=lambda v: " ".join(map(str, v)))
def test_a_bad_argument_is_one_sentence_and_nothing_is_written(
    arguments, words, here, pmtl_command
):
    refused = pmtl_command("train", "--out", "run", *arguments)
    assert refused.status == 2
    assert refused.out == ""
    assert "Traceback" not in refused.err
    for word in words:
        assert word in " ".join(refused.err.split()), refused.err
    assert list(here.iterdir()) == []


BAD_DATA = {
    "no client column": ("d.csv", "who,a,target\nx,1,0\n", ["client", "'who'"]),
    "no target column": ("d.csv", "client,a,b\nx,1,0\n", ["target", "'a'"]),
    "text feature": ("d.csv", "client,a,target\nx,red,0\ny,2,1\n", ["'a'", "numbers", "'red'"]),
    "empty target": ("d.csv", "client,a,target\nx,1,0\nx,,\n", ["'target'", "missing"]),
    "ragged": ("d.csv", "client,a,target\nx,1\n", ["d.csv"]),
    "no rows": ("d.csv", "client,a,target\n", ["no rows"]),
    "leaf users missing": (
        "d.json",
        json.dumps(
            {
                "users": ["u", "v"],
                "num_samples": [1, 1],
                "user_data": {"u": {"x": [[1.0]], "y": [0]}},
            }
        ),
        ["'v'", "d.json"],
    ),
    "not json": ("d.json", "{", ["d.json"]),
    "unknown ending": ("d.xyz", "?", ["ending"]),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_a_bad_file_is_one_sentence(name, here, pmtl_command):
    file, text, words = BAD_DATA[name]
    (here / file).write_text(text)
    refused = pmtl_command("train", "--data", file, "--out", "run")
    assert refused.status == 2
    assert "Traceback" not in refused.err
    for word in words:
        assert word in refused.err
    assert not (here / "run").exists()


BAD_ARRAYS = {
    "lengths differ": ({"y": np.zeros(59, dtype=int)}, ["length", "59"]),
    "nan features": ({"x": np.full((60, 3), np.nan)}, ["NaN", "row 0"]),
    "negative label": ({"y": np.full(60, -1)}, ["-1"]),
    "no training rows": (
        {"split": np.array(["train"] * 50 + ["test"] * 10)},
        ["'c5'", "no training rows"],
    ),
    "objects": ({"y": np.array([None] * 60)}, ["objects"]),
    "unknown split": ({"split": np.array(["training-ish"] * 60)}, ["training-ish"]),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_a_bad_array_is_one_sentence(name, here, pmtl_command):
    changes, words = BAD_ARRAYS[name]
    arrays(here / "d.npz", **changes)
    refused = pmtl_command("train", "--data", "d.npz", "--out", "run")
    assert refused.status == 2
    assert "Traceback" not in refused.err
    for word in words:
        assert word in refused.err
    assert not (here / "run").exists()


def test_labels_out_of_a_stated_range_are_refused(here, pmtl_command):
    arrays(here / "d.npz")
    refused = pmtl_command("train", "--data", "d.npz:outputs=2", "--out", "run")
    assert refused.status == 2
    assert "2" in refused.err


def test_an_existing_run_is_refused(here, pmtl_command):
    arrays(here / "d.npz")
    assert pmtl_command("train", "--data", "d.npz", "--out", "run", *QUICK).status == 0
    before = {file.name: file.read_bytes() for file in (here / "run").iterdir()}
    refused = pmtl_command("train", "--data", "d.npz", "--out", "run", *QUICK)
    assert refused.status == 2
    assert "exists already" in refused.err
    assert before == {file.name: file.read_bytes() for file in (here / "run").iterdir()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "run", "--client", "zz", "--data", "d.npz", "--out", "o.csv"], ["'zz'"]),
        (["predict", "run", "--client", "c1", "--data", "no.csv", "--out", "o.csv"], ["no.csv"]),
        (["predict", "run", "--client", "c1", "--data", "d.npz", "--out", "o.doc"], ["o.doc"]),
        (["predict", "run", "--client", "c1", "--data", "w.npz", "--out", "o.csv"], ["shape"]),
        (["predict", "no", "--client", "c1", "--data", "d.npz", "--out", "o.csv"], ["no run"]),
        (["evaluate", "no"], ["no run"]),
        (["resume", "run"], ["complete"]),
        (["resume", "no"], ["no run"]),
    ],
    ids=lambda v: " ".join(map(str, v)),
)
def test_mistakes_with_a_run_are_sentences(arguments, words, here, pmtl_command):
    arrays(here / "d.npz")
    np.savez(here / "w.npz", x=np.zeros((3, 9), dtype=np.float32))
    assert pmtl_command("train", "--data", "d.npz", "--out", "run", *QUICK).status == 0
    refused = pmtl_command(*arguments)
    assert refused.status == 2
    assert "Traceback" not in refused.err
    for word in words:
        assert word in refused.err
    assert not (here / "o.csv").exists()


def test_changed_data_is_noticed_at_evaluation(here, pmtl_command):
    arrays(here / "d.npz")
    assert pmtl_command("train", "--data", "d.npz", "--out", "run", *QUICK).status == 0
    arrays(here / "d.npz", x=np.ones((60, 3), dtype=np.float32))
    refused = pmtl_command("evaluate", "run")
    assert refused.status == 2
    assert "fingerprint" in refused.err


def test_help_and_version(pmtl_command):
    shown = pmtl_command("--help")
    assert shown.status == 0
    for command in ("train", "resume", "evaluate", "predict", "compare", "data", "privacy"):
        assert command in shown.out
    assert pmtl_command("--version").out.startswith("pmtl ")
    assert "--epsilon" in pmtl_command("train", "--help").out


def test_an_interrupted_process_says_how_to_go_on(here):
    """Ctrl-C as a terminal sends it, to the real command."""
    import os
    import signal
    import subprocess
    import sys
    import time
    from pathlib import Path

    command = [sys.executable, "-m", "pmtl", "train", "--rounds", "5000", "--out", "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        metrics = Path("run/metrics.jsonl")
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "pmtl resume run" in errors
    assert "Traceback" not in errors
    assert (here / "run/checkpoint.safetensors").exists()


def test_odd_names_are_shown_as_they_are(here, pmtl_command):
    """A client that looks like markup, and columns with commas and colons."""
    lines = ['"out, come",hosp:id,a']
    lines += [f'{k % 2},"clinic, {k % 4} é:[/b]",{k % 7}' for k in range(40)]
    (here / "odd.csv").write_text("\n".join(lines) + "\n")
    done = pmtl_command(
        *("train", "--data", "odd.csv", "--client-column", "hosp:id", "--target", "out, come"),
        *("--out", "run", *QUICK),
    )
    assert done.status == 0, done.err
    assert "[/b]" in done.out
    assert pmtl_command("evaluate", "run", "--json").status == 0


def test_a_path_with_colons_and_equals_signs(here, pmtl_command):
    (here / "a:b=c").mkdir()
    arrays(here / "a:b=c" / "d.npz")
    done = pmtl_command("train", "--data", "a:b=c/d.npz", "--out", "run", *QUICK)
    assert done.status == 0, done.err


def test_columns_may_be_named_for_a_configuration_files_data(here, pmtl_command):
    table(here / "v.csv", header="hospital,a,b,outcome")
    (here / "c.toml").write_text('data = "v.csv"\n')
    done = pmtl_command(
        *("train", "--config", "c.toml", "--client-column", "hospital", "--target", "outcome"),
        *("--out", "run", *QUICK),
    )
    assert done.status == 0, done.err


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_other_tasks_from_training_to_predictions(task, here, pmtl_command):
    random = np.random.default_rng(4)
    x = random.normal(size=(120, 4)).astype(np.float32)
    y = (x[:, :3] > 0).astype(np.uint8) if task == "multilabel" else x[:, 0] * 2
    np.savez(here / "d.npz", x=x, y=y, client=np.arange(120) % 10)
    trained = pmtl_command("train", "--data", "d.npz", "--out", "run", "--json", *QUICK)
    assert trained.status == 0, trained.err
    metric = "recall_at_5" if task == "multilabel" else "rmse_worst_decile"
    assert metric in json.loads(trained.out)["test"]["personal"]
    np.save(here / "x.npy", x)
    asked = ("predict", "run", "--client", 3, "--data", "x.npy")
    told = pmtl_command(*asked, "--out", "o.csv", "--no-probabilities")
    assert told.status == 0, told.err
    width = 3 if task == "multilabel" else 1
    lines = (here / "o.csv").read_text().splitlines()
    assert {len(line.split(",")) for line in lines} == {width}
    told = pmtl_command(*asked, "--out", "p.csv", "--probabilities")
    if task == "regression":
        assert told.status == 2
        assert "no probabilities" in told.err
        assert not (here / "p.csv").exists()
        return
    head, *sure = (here / "p.csv").read_text().splitlines()
    assert head.startswith(f'{lines[0]},"probability of 0"')
    for line, marks in zip(sure, lines[1:], strict=True):
        values = [float(value) for value in line.split(",")[width:]]
        assert [str(int(value > 0.5)) for value in values] == marks.split(",")


def test_a_model_that_cannot_be_mapped_over_clients_is_refused_before_anything_is_written(
    here, pmtl_command
):
    (here / "branching_model.py").write_text(
        "import torch\n"
        "class Branching(torch.nn.Linear):\n"
        "    def __init__(self, input_shape, outputs):\n"
        "        super().__init__(input_shape[0], outputs)\n"
        "    def forward(self, x):\n"
        "        return super().forward(x if x.sum() > 0 else -x)\n"
        "def failing():\n    raise KeyError('weights')\n"
    )
    for factory, words in (("Branching", "many clients at once"), ("failing", "failed: KeyError")):
        refused = pmtl_command("train", "--model", f"branching_model:{factory}", "--out", "run")
        assert refused.status == 2
        assert words in refused.err
        assert not (here / "run").exists()


def test_a_vacuous_plan_is_refused_in_a_sentence(pmtl_command):
    refused = pmtl_command(
        *("privacy", "noise", "--clients", 50, "--cohort", 1, "--rounds", 1),
        *("--delta", 0.02, "--epsilon", 2),
    )
    assert refused.status == 2
    assert "says nothing" in refused.err
    done = pmtl_command("privacy", "epsilon", "--clients", 10, "--noise", 1e-40, "--rounds", 1)
    assert done.status == 0, done.err
