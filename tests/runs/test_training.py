"""A run from beginning to end, in memory and in its folder."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open

import pmtl
from pmtl.algorithms import ALGORITHMS, ClusteredPMTL, RelatedPMTL
from pmtl.jsontext import to_json

BRIEF = {"rounds": 4}
QUICK = {"steps": 2, "batch": 5}


def algorithm_for(name, data):
    if name == "clustered":
        return ClusteredPMTL(clusters={c: str(int(c[-1]) % 2) for c in data.clients})
    if name == "related":
        return RelatedPMTL(omega=np.diag([2.0, *[1.0] * (data.m - 1)]) - 1 / data.m)
    return name


def quick(data, algorithm="pmtl", privacy=BRIEF, **options):
    return pmtl.train(data, algorithm=algorithm, privacy=privacy, local=QUICK, **options)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_every_client_a_model_and_survives_its_folder(name, small, tmp_path):
    privacy = None if ALGORITHMS[name].exact else BRIEF  # Exact ones decide about rounds.
    run = quick(small, algorithm_for(name, small), privacy, out=tmp_path / "run")
    again = pmtl.load_run(tmp_path / "run", data=small)
    assert again.evaluate() == run.evaluate()
    for client in small.clients:
        mine, same = run.personal(client), again.personal(client)
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
        assert mine(x).shape == (3, 2)
        assert torch.equal(mine(x), same(x))


def test_the_folder_holds_what_the_documentation_lists(small, tmp_path):
    quick(small, out=tmp_path / "run")
    names = {file.name for file in (tmp_path / "run").iterdir()} - {".lock"}
    assert names == {
        "config.toml",
        "run.json",
        "metrics.jsonl",
        "metrics.csv",
        "checkpoint.safetensors",
        "personal.safetensors",
        "shared.safetensors",
        "privacy.txt",
        "privacy.json",
        "result.json",
    }
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]
    with safe_open(tmp_path / "run/personal.safetensors", "pt") as file:
        assert file.get_slice("weights").get_shape() == [small.m, 10]
        assert json.loads(file.metadata()["pmtl"])["clients"] == list(small.clients)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(small, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        quick(small, seed=seed, out=tmp_path / name)
    content = {n: (tmp_path / n / "personal.safetensors").read_bytes() for n in "abc"}
    assert content["a"] == content["b"]
    assert content["a"] != content["c"]


def test_evaluation_has_the_documented_shape(small):
    scores = quick(small).evaluate()
    assert set(scores) == {"test", "validation"}
    assert set(scores["test"]) == {"personal", "shared"}
    assert set(scores["test"]["personal"]) == {
        "loss",
        "accuracy",
        "accuracy_mean",
        "accuracy_worst_decile",
    }


def test_regression_reports_errors():
    data = pmtl.load("synthetic:task=regression,clients=20,samples=12")
    scores = quick(data).evaluate()
    assert {"rmse", "rmse_mean", "rmse_worst_decile", "loss"} <= set(scores["test"]["personal"])


def test_training_helps(small):
    """Ten rounds without noise must beat the start, which knows nothing."""
    run = pmtl.train(pmtl.load("synthetic:clients=60"), privacy={"epsilon": math.inf, "rounds": 10})
    assert run.evaluate()["test"]["personal"]["accuracy"] > 0.6


def test_local_training_costs_nothing_and_has_no_shared_view(small):
    run = quick(small, "local")
    assert run.privacy.epsilon == 0
    assert "shared" not in run.evaluate()["test"]
    assert run.metrics[-1]["cohort"] == small.m


def test_local_training_ignores_the_cohort(small):
    """Nobody has to be hidden, so the baseline is not made weaker by sampling."""
    run = quick(small, "local", privacy={"rounds": 3, "cohort": 4})
    assert [line["cohort"] for line in run.metrics] == [small.m] * 3


def test_the_statement_says_what_was_run(small):
    run = quick(small, privacy={"epsilon": 1.5, "rounds": 3, "cohort": 6})
    assert run.privacy.epsilon == pytest.approx(1.5, rel=5e-3)
    assert run.privacy.epsilon <= 1.5
    text = str(run.privacy)
    for words in ("each of the 12 clients", "all other clients together", "replace-one"):
        assert words in text
    for words in ("coin", "ε = 1.", "not covered", "seeded experiment", "trusted"):
        assert words in text


@pytest.mark.parametrize("privacy", [{"epsilon": math.inf}, {"noise": 0.0}, {"clip": math.inf}])
def test_no_noise_or_no_clip_is_called_not_private(privacy, small):
    if privacy == {"clip": math.inf}:
        privacy = {"clip": math.inf, "noise": 0.1}
    run = quick(small, privacy={**privacy, "rounds": 2})
    assert run.privacy.epsilon == math.inf
    assert "NOT PRIVATE" in str(run.privacy)
    assert json.loads(to_json(run.privacy.to_dict()))["epsilon"] == "inf"


def test_metrics_in_memory_and_on_disk_agree(small, tmp_path):
    quiet = quick(small)
    written = quick(small, out=tmp_path / "run")
    assert [line["train_loss"] for line in quiet.metrics] == [
        line["train_loss"] for line in written.metrics
    ]


def test_predictions_are_the_personal_models_answers(small):
    run = quick(small)
    x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    expected = run.personal("site-03")(torch.from_numpy(x)).argmax(-1).numpy()
    assert (run.predict("site-03", x) == expected).all()
    with pytest.raises(pmtl.PmtlError, match="rows of shape"):
        run.predict("site-03", x[:, :2])
    with pytest.raises(pmtl.PmtlError, match="no client 'nobody'"):
        run.personal("nobody")


def test_how_sure_a_personal_model_is(small):
    run = quick(small)
    x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    sure = run.predict_proba("site-03", x)
    expected = run.personal("site-03")(torch.from_numpy(x)).softmax(-1).detach().numpy()
    np.testing.assert_allclose(sure, expected, atol=1e-6)
    np.testing.assert_allclose(sure.sum(axis=1), 1, atol=1e-6)
    assert (sure.argmax(axis=1) == run.predict("site-03", x)).all()


def test_clustered_runs_publish_one_model_per_cluster(small):
    run = quick(small, algorithm_for("clustered", small))
    with pytest.raises(pmtl.PmtlError, match="have different shared models"):
        _ = run.shared
    x = torch.ones(1, 4)
    assert torch.equal(run.shared_for("site-00")(x), run.shared_for("site-02")(x))
    assert not torch.equal(run.shared_for("site-00")(x), run.shared_for("site-01")(x))


def test_each_client_scales_by_its_own_rows_and_predicts_on_raw_ones(tmp_path):
    random = np.random.default_rng(2)
    x = (random.normal(size=(200, 3)) * [1, 50, 1000] + [0, 300, -9]).astype(np.float32)
    y = (x[:, 1] > 300).astype(np.int64)
    client = np.repeat([f"c{k}" for k in range(10)], 20)
    data = pmtl.FederatedData.from_arrays(x, y, client, outputs=2, scale="client")
    train = data.rows("train")
    for k in range(data.m):
        rows = data.gather(train.of(k))[0]
        # The first column has a size near 1 and stays as it is.
        assert np.array_equal(rows[:, 0], x[train.of(k), 0])
        assert np.allclose(rows[:, 1:].mean(0), 0, atol=1e-4)
        # Of few rows a deviation is uncertain: it counts as larger.
        assert np.allclose(rows[:, 1:].std(0), 1 / (1 + 3 / len(rows)), atol=1e-3)
    run = pmtl.train(data, privacy={"rounds": 10, "epsilon": np.inf}, out=tmp_path / "run")
    raw = x[client == "c4"]
    assert (run.predict("c4", raw) == y[client == "c4"]).mean() > 0.8
    again = pmtl.load_run(tmp_path / "run", data=data)
    assert (again.predict("c4", raw) == run.predict("c4", raw)).all()
    with pytest.raises(pmtl.PmtlError, match="shared_for"):
        _ = run.shared


def test_a_drowning_plan_is_said_before_it_is_spent(small):
    told: list[str] = []
    quick(small, privacy={"epsilon": 0.1, "rounds": 2}, warn=told.append)
    assert any("drown" in sentence for sentence in told)
    told.clear()
    pmtl.train("synthetic", privacy={"epsilon": 8.0, "rounds": 1}, warn=told.append)
    assert not any("drown" in sentence for sentence in told)


def test_wrong_privacy_and_local_arguments_are_sentences(small):
    with pytest.raises(pmtl.PmtlError, match="epsilonn"):
        pmtl.train(small, privacy={"epsilonn": 3})
    with pytest.raises(pmtl.PmtlError, match="Both"):
        pmtl.train(small, local={"steps": 3, "epochs": 1})
    with pytest.raises(pmtl.PmtlError, match="mapping"):
        pmtl.train(small, local=[1, 2])
    with pytest.raises(pmtl.PmtlError, match="lr must be"):
        pmtl.train(small, local={"lr": -1.0})
    with pytest.raises(pmtl.PmtlError, match="device"):
        pmtl.train(small, device="abacus")
