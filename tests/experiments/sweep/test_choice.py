"""A private choice: exactly the protocol that is priced, and nothing left of the other runs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from pmtl.data import load
from pmtl.errors import Interrupted, PmtlError
from pmtl.experiments.sweep import choice
from pmtl.experiments.sweep.choice import noisy_score, resume_selection, select
from pmtl.experiments.sweep.grid import Cell, Grid, config_of
from pmtl.experiments.sweep.terms import terms_of
from pmtl.privacy.accounting import selection
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig
from pmtl.runs.missing_charges import charge_missing
from pmtl.runs.result import load_run, statement_of
from pmtl.runs.training import start
from pmtl.simulation import LocalTraining, metric_bounds
from pmtl.streams import subseed

SPEC = "synthetic:clients=20,samples=20"
BASE = TrainConfig(
    data=SPEC, privacy=PrivacyRequest(rounds=2), local=LocalTraining(steps=2), evaluate_every=0
)
AXES = {"lr": (0.05, 0.5), "rounds": (1, 3)}


def grid(**changes):
    values = {"algorithms": ("pmtl",), "epsilons": (4.0,), "seeds": (0,), "base": BASE}
    return Grid(**{**values, "axes": AXES, **changes})


@pytest.fixture(scope="module")
def data():
    return load(SPEC)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    out = tmp_path_factory.mktemp("choice") / "out"
    return select(grid(), out), out


def test_the_run_with_the_best_noisy_score_is_kept(chosen, data):
    """The tries, made again one by one."""
    results, out = chosen
    terms = terms_of(grid(), data)
    drawn = choice.draw_candidates(grid().candidates(), terms.shape, 0)
    assert len(drawn) > 2
    tries = []
    for number, candidate in enumerate(drawn):
        cell = Cell(candidate, terms.epsilon, subseed(0, "try", number))
        run = start(config_of(BASE, cell), data=data)
        tries.append((noisy_score(run, data, terms.score), number, run))
    score, number, run = max(tries)
    assert results["score"] == score
    assert results["chosen"] == str(drawn[number])
    kept = load_run(out / "best", data)
    client = kept.clients[0]
    x = np.eye(10, dtype=np.float32)
    assert (kept.predict_proba(client, x) == run.predict_proba(client, x)).all()
    # Tries of one setting are independent: each has a seed, and so noise, of its own.
    assert len({run.facts.seed for _, _, run in tries}) == len(tries)
    assert len({score for score, _, _ in tries}) == len(tries)


def test_nothing_is_left_of_the_others_or_of_their_number(chosen):
    results, out = chosen
    assert {path.name for path in out.iterdir()} == {"best", "selection.json", "choice.json"}
    written = (out / "choice.json").read_text() + (out / "selection.json").read_text()
    drawn = choice.draw_candidates(grid().candidates(), terms_of(grid(), load(SPEC)).shape, 0)
    assert f": {len(drawn)}," not in written
    assert set(results) == {
        *("candidates", "chosen", "score", "score_noise", "run", "epsilon", "delta"),
        *("one_run", "runs_drawn", "chance_of_no_choice", "protocol", "test", "validation"),
    }


def test_the_epsilon_that_is_asked_for_covers_the_choice(chosen, data):
    results, out = chosen
    assert 0.995 * 4 < results["epsilon"] <= 4
    assert results["one_run"] < 3
    plans = {
        PrivacyRequest(epsilon=results["one_run"], rounds=rounds).resolve(20): 2
        for rounds in (1, 3)
    }
    report = selection.report(plans)
    assert report["publish_best"] == pytest.approx(results["epsilon"])
    assert report["candidates"] == len(results["candidates"]) == 4
    run = load_run(out / "best", data)
    assert run.privacy.epsilon == results["epsilon"]
    assert "How it was chosen: this run is the best of a random number" in str(run.privacy).replace(
        "\n", " "
    )
    written = json.loads((out / "best/privacy.json").read_text())
    assert written["epsilon"] == results["epsilon"]
    # The attacker's bound follows from the choice's ε, too, and is worse than the run's alone.
    alone = replace(run.facts, choice=None)
    assert run.privacy.attacker_right > statement_of(alone).attacker_right
    deltas = [guarantee.delta for guarantee in run.privacy.guarantees]
    epsilons = [guarantee.epsilon for guarantee in run.privacy.guarantees]
    assert deltas == sorted(deltas, reverse=True)
    assert epsilons == sorted(epsilons)


def test_a_score_is_the_average_of_what_clients_measure_in_bounds(data):
    run = start(replace(BASE, seed=3), data=data)
    quiet = replace(terms_of(grid(), data).score, noise_std=0.0)
    bound = metric_bounds("classification", data.outputs, None)["loss"]
    losses = run.client_losses("validation")["personal"]
    own = np.where(np.isfinite(losses), 1 - np.clip(losses, 0, bound) / bound, 0.5)
    assert noisy_score(run, data, quiet) == pytest.approx(own.mean(), abs=1e-9)
    assert noisy_score(run, data, quiet, loss_bound=1e-9) == pytest.approx(
        np.where(np.isfinite(losses), 0.0, 0.5).mean(), abs=1e-9
    )


def test_one_client_moves_a_score_by_at_most_one_mth(data, monkeypatch):
    """Whatever a client measures, NaN and infinities included: as much as the noise is made for."""
    run = start(replace(BASE, seed=3), data=data)
    plan = terms_of(grid(), data).score
    quiet = replace(plan, noise_std=0.0)
    usual = run.client_losses("validation")["personal"]
    client = int(np.flatnonzero(np.isfinite(usual))[0])
    scores = []
    for value in (0.0, 1e9, -1e9, np.nan, np.inf):
        losses = usual.copy()
        losses[client] = value
        monkeypatch.setattr(type(run), "client_losses", lambda *_, v=losses: {"personal": v})
        scores.append(noisy_score(run, data, quiet))
    assert max(scores) - min(scores) == pytest.approx(1 / 20)
    assert scores[3] == scores[1]  # What diverged is worst.
    # Sensitivity 1/m over the noise of the average: the μ of the release that is priced.
    assert (1 / 20) / plan.noise_std == pytest.approx(2 / plan.noise_multiplier)


def test_if_no_run_is_drawn_nothing_is_published(tmp_path, data, pmtl_command):
    two = {"lr": (0.05, 0.5)}
    shape = terms_of(grid(axes=two), data).shape
    assert shape == selection.POISSON
    candidates = grid(axes=two).candidates()
    seed = next(s for s in range(100) if not choice.draw_candidates(candidates, shape, s))
    done = pmtl_command(
        *("compare", "--data", SPEC, "--rounds", 2, "--steps", 2, "--algorithm", "pmtl"),
        *("--grid", "lr=0.05,0.5", "--epsilon", 4, "--seed", seed, "--select"),
        *("--out", tmp_path / "out"),
    )
    assert done.status == 0, done.err
    assert "No run was drawn, so nothing was chosen" in done.out
    assert "drawing again with another seed costs it again" in done.out
    assert not (tmp_path / "out/best").exists()


def test_a_choice_that_was_stopped_keeps_nothing_and_begins_again(
    chosen, tmp_path, monkeypatch, pmtl_command
):
    results, _ = chosen
    calls = []
    real = choice.try_candidate

    def stop_at_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise Interrupted("in the middle")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(choice, "try_candidate", stop_at_second)
        with pytest.raises(Interrupted, match="all runs are deleted"):
            select(grid(), tmp_path / "cut")
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["selection.json"]
    done = pmtl_command("resume", tmp_path / "cut", "--json")
    assert done.status == 0, done.err
    again = json.loads(done.out)
    assert again.pop("folder") == str(tmp_path / "cut")
    assert again == json.loads(json.dumps(results))
    with pytest.raises(PmtlError, match="is complete"):
        resume_selection(tmp_path / "cut")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilons": (1.0, 2.0)}, "at one ε"),
        ({"seeds": (0, 1)}, "with one seed"),
        ({"epsilons": (float("inf"),)}, "Without privacy a choice costs nothing"),
        ({"axes": {}}, "only one candidate"),
        ({"algorithms": ("auto",), "axes": {}}, "only one candidate"),
        ({"algorithms": ("pmtl", "local")}, "local, lr=0.05, rounds=1 shares nothing"),
        ({"base": replace(BASE, ledger="l.db")}, "A ledger would record every run"),
        ({"base": replace(BASE, privacy=PrivacyRequest(metrics=0.1))}, "no other metrics"),
        ({"base": replace(BASE, data=f"{SPEC},validation=0")}, "no validation rows"),
        ({"axes": {"cohort": (5, 21)}}, "cohort of 21"),
        ({"epsilons": (1e-9,)}, "costs as little as ε = 1e-09"),
    ],
)
def test_what_the_protocol_does_not_allow_is_refused_before_anything(changes, words, tmp_path):
    with pytest.raises(PmtlError) as refused:
        select(grid(**changes), tmp_path / "out")
    assert words in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_chosen_run_is_not_charged_as_if_it_were_the_only_one(chosen, data, tmp_path):
    _, out = chosen
    Ledger.create(tmp_path / "ledger.db", data.clients).close()
    with pytest.raises(PmtlError, match="the best of a secret number of runs"):
        charge_missing(tmp_path / "ledger.db", out / "best")
    with Ledger.open(tmp_path / "ledger.db", write=False) as ledger:
        assert not ledger.events()


def test_a_choice_between_methods_of_other_plans_is_priced_by_what_they_run(data, tmp_path):
    """Pooling decides its releases itself: the price is that of the releases that are made."""
    between = grid(algorithms=("pmtl", "pooling"), axes={"rounds": (1, 3)}, epsilons=(8.0,))
    terms = terms_of(between, data)
    assert len(terms.plans) == len(set(terms.plans.values())) == 3
    results = select(between, tmp_path / "out")
    run = load_run(tmp_path / "out/best", data)
    chosen = next(c for c in terms.plans if str(c) == results["chosen"])
    assert run.facts.plan == terms.plans[chosen]


def test_a_run_with_releases_that_were_not_priced_is_not_published(data, tmp_path, monkeypatch):
    def with_less_noise(config, **options):
        return start(replace(config, privacy=replace(config.privacy, epsilon=9.0)), **options)

    monkeypatch.setattr(choice, "start", with_less_noise)
    with pytest.raises(PmtlError, match="other releases than were priced"):
        select(grid(), tmp_path / "out")
    assert not (tmp_path / "out/best").exists()


def test_production_is_refused():
    with pytest.raises(PmtlError, match="no entry for a private choice"):
        grid(base=replace(BASE, mode="production", ledger="l.db"))
