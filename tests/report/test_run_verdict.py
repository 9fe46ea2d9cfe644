"""The verdict on runs and fine-tuned results."""

from __future__ import annotations

import numpy as np
import pytest

import pmtl
from pmtl.data import load
from pmtl.errors import PmtlError
from pmtl.personalize.finetuning import finetune
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.report.run_verdict import verdict
from pmtl.runs.training import train

SPEC = "synthetic:clients=20,samples=20"


def trained(**settings):
    given = {"privacy": {"epsilon": 2.0, "rounds": 2}, "evaluate_every": 0, **settings}
    return train(given.pop("data", SPEC), **given)


def test_a_run_is_judged_by_its_clients_losses():
    run = trained()
    told = verdict(run)
    losses, counts = run.client_losses("validation"), run.data.rows("validation").counts
    here = counts > 0
    gains = (losses["shared"] - losses["personal"])[here]
    assert told.rows == "validation"
    assert told.comparisons[0].gain == pytest.approx(gains.mean())
    assert told.comparisons[0].error == pytest.approx(gains.std(ddof=1) / np.sqrt(here.sum()))
    assert "Training alone was not measured here" in told.sentence
    assert "no ε covers a decision" in told.cost
    assert pmtl.verdict(run) == told


def test_losses_of_clients_are_those_of_the_evaluation():
    run = trained()
    counts = run.data.rows("test").counts
    for view, losses in run.client_losses("test").items():
        assert np.isnan(losses[counts == 0]).all()
        mean = np.nansum(losses * counts) / counts.sum()
        assert mean == pytest.approx(run.evaluate()["test"][view]["loss"])


def test_training_alone_is_compared_where_the_run_has_it(monkeypatch):
    """A run whose algorithm also gives the models of training alone says so in its views."""
    run = trained()
    own = trained(algorithm="local", local={"steps": 200, "lr": 0.05}).views()["personal"]
    views = run.views()
    monkeypatch.setattr(run, "views", lambda: {**views, "alone": own})
    told = verdict(run)
    assert told.comparisons[0].other == "alone"
    assert {paired.other for paired in told.comparisons} == {"alone", "shared"}
    assert told.advice == "alone"
    assert "was not measured" not in told.sentence


def test_training_alone_has_nothing_to_be_compared_with():
    told = verdict(trained(algorithm="local"))
    assert told.advice == "unknown"
    assert "nothing to compare training alone with" in told.sentence


def test_one_shared_model_is_one_view():
    told = verdict(trained(algorithm="fedavg"))
    assert told.comparisons == ()
    assert "nothing to compare the shared model with" in told.sentence


def test_test_rows_are_used_where_there_are_no_validation_rows():
    assert verdict(trained(data=f"{SPEC},validation=0")).rows == "test"
    told = verdict(trained(data=f"{SPEC},validation=0,test=0"))
    assert told.advice == "unknown"
    assert "no validation or test rows" in told.sentence


def test_rows_that_decided_when_to_stop_are_marked():
    privacy = {"epsilon": 2.0, "rounds": 30, "metrics": 0.5}
    run = trained(privacy=privacy, evaluate_every=1, patience=1)
    assert run.facts.stopped
    told = verdict(run)
    assert told.chosen
    assert "These rows also decided when to stop." in told.sentence


def test_choosing_is_judged_on_test_rows():
    told = verdict(finetune(trained(), "select", steps=2))
    assert told.rows == "test"
    assert not told.chosen
    assert {paired.other for paired in told.comparisons} == {"personal", "shared"}
    assert "Validation rows did the choosing; their own scores are optimistic." in told.sentence
    assert " of 20 clients chose training alone." in told.sentence
    assert "Each client chose by itself, which cost nothing" in told.cost


def test_without_test_rows_the_scores_that_chose_are_marked():
    told = verdict(finetune(trained(data=f"{SPEC},test=0"), "select", steps=2))
    assert told.rows == "validation"
    assert told.chosen
    assert "Clients chose by these very rows" in told.sentence
    assert "So these scores are optimistic." in told.sentence


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "the.ledger"
    Ledger.create(path, load(SPEC).clients).close()
    return path


def test_production_compares_released_averages(ledger):
    run = trained(mode="production", ledger=ledger, evaluate_every=1)
    with pytest.raises(PmtlError, match="withholds"):
        run.client_losses("validation")
    told = verdict(run)
    last = run.released()[-1]
    paired = told.comparisons[0]
    assert paired.gain == pytest.approx(last["shared"]["loss_mean"] - last["personal"]["loss_mean"])
    assert paired.error == pytest.approx(np.sqrt(2) * last["noise"]["loss_mean"])
    assert f"ε = {run.facts.metrics_plan.epsilon():.2g} by themselves" in told.cost
    assert "luck with clients is not counted" in told.sentence
    tuned = verdict(finetune(run, "select", steps=2))
    assert tuned.advice == "unknown"
    assert "its scores were not released" in tuned.sentence


def test_production_without_metrics_looked_at_nothing(ledger):
    privacy = {"epsilon": 2.0, "rounds": 2, "metrics": 0.0}
    told = verdict(trained(mode="production", ledger=ledger, privacy=privacy))
    assert told.advice == "unknown"
    assert "no metrics were released, so scores cost nothing" in told.sentence
    assert told.comparisons == ()


def test_a_difference_within_the_noise_of_released_averages_is_none(ledger, monkeypatch):
    run = trained(mode="production", ledger=ledger, evaluate_every=1)

    def told(gap, noise):
        views = {"personal": {"loss_mean": 0.5}, "shared": {"loss_mean": 0.5 + gap}}
        line = {"round": 2, **views, "noise": {"loss_mean": noise}}
        monkeypatch.setattr(run, "released", lambda: [line])
        return verdict(run)

    assert told(0.2, 0.1).advice == "either"
    assert told(0.2, 0.05).advice == "personal"
    assert told(-0.2, 0.05).advice == "shared"
    words = "more than twice the standard deviation of the difference's noise, 0.071"
    assert words in told(-0.2, 0.05).sentence
