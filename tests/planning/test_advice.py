"""`pmtl.plan`: what it advises, for federations whose outcome is known, and how it says so."""

from __future__ import annotations

import json
import math
import tomllib

import numpy as np
import pytest
import weights
from hypothesis import given, settings
from hypothesis import strategies as st

import pmtl
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.planning import payoff
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import read_config


def test_sixty_clients_should_train_alone():
    plan = pmtl.plan(60, 66, privacy=1.0)
    assert plan.advice == "alone"
    assert plan.recommendation.startswith(
        "With 60 clients and 66 shared numbers at ε = 1: expect training alone to be as good."
    )
    assert plan.noise == pytest.approx(math.sqrt(66) / payoff.reach(plan.privacy))


#: Clients, columns and rows a client of natural tables with a yes-or-no target, and the least ε of
#: 1 and 2 at which sharing should be advised; it was measured to win there (docs/utility.md).
TABLES = {
    "nlme/MathAchieve": (160, 5, 33, 1.0),
    "mlmRev/guImmun": (161, 16, 9, 1.0),
    "lme4/VerbAgg": (316, 7, 17, 1.0),
    "plm/Males": (429, 31, 5, 1.0),
    "mlmRev/Contraception": (60, 6, 24, 2.0),
}


@pytest.mark.parametrize("epsilon", [1.0, 2.0])
@pytest.mark.parametrize("name", TABLES)
def test_advice_agrees_with_what_was_measured(name, epsilon):
    clients, columns, rows, least = TABLES[name]
    plan = pmtl.plan(clients, columns=columns, classes=2, rows=rows, privacy=epsilon)
    assert (plan.advice != "alone") == (epsilon >= least), plan.recommendation


@pytest.mark.parametrize(
    ("clients", "numbers", "epsilon", "advice"),
    [
        (2410, 100, 1.0, "share"),
        (583, 7850, 1.0, "depends"),  # pixels of digits, which are much alike
        (583, 2890, 2.0, "share"),
        (205, 115_646, 2.0, "alone"),  # the paper's network
        (400, 491_491, 2.0, "alone"),  # words times tags
    ],
)
def test_other_federations(clients, numbers, epsilon, advice):
    assert pmtl.plan(clients, numbers, privacy=epsilon).advice == advice


def test_clients_with_many_rows_need_no_vote():
    few, many = (pmtl.plan(60, 5, privacy=1.0, rows=rows) for rows in (99, 100))
    assert (few.advice, many.advice) == ("alone", "share")
    assert few.vote == pytest.approx(payoff.vote_ratio(few.privacy, 1.0))
    assert many.vote is None
    assert many.to_win == pytest.approx(5 / 100)


def test_little_to_win_is_said():
    assert "little to win" in pmtl.plan(500, 5, privacy=2.0, rows=1000).recommendation
    assert "little to win" not in pmtl.plan(500, 5, privacy=2.0, rows=20).recommendation


@settings(max_examples=40)
@given(st.integers(2, 5000), st.integers(1, 10**5), st.floats(0.1, 10))
def test_what_is_needed_is_enough(clients, numbers, epsilon):
    plan = pmtl.plan(clients, numbers, privacy=epsilon)
    better = pmtl.plan(clients, numbers, privacy=plan.epsilon_needed * 1.001)
    assert better.advice == "share"
    assert pmtl.plan(plan.clients_needed, numbers, privacy=epsilon).advice == "share"
    # And not more than enough, unless two clients already are.
    if plan.clients_needed > payoff.MIN_CLIENTS:
        assert pmtl.plan(plan.clients_needed - 1, numbers, privacy=epsilon).advice != "share"


@settings(max_examples=40)
@given(st.integers(2, 10**5), st.floats(0.05, 20), st.floats(1.05, 20))
def test_more_numbers_pay_with_more_clients_and_a_larger_epsilon(clients, epsilon, times):
    here = pmtl.plan(clients, 100, privacy=epsilon).pays
    more = pmtl.plan(math.ceil(clients * times), 100, privacy=epsilon).pays
    looser = pmtl.plan(clients, 100, privacy=epsilon * times).pays
    assert all(here[rho] < more[rho] and here[rho] < looser[rho] for rho in here)
    assert list(here.values()) == sorted(here.values())


def test_noise_is_for_the_whole_run_however_many_rounds():
    once, often = (pmtl.plan(300, 50, privacy={"epsilon": 1, "rounds": t}) for t in (1, 64))
    assert once.noise == pytest.approx(often.noise)
    assert often.round_noise == pytest.approx(8 * often.noise)
    assert often.round_noise == pytest.approx(
        often.privacy.noise_std * math.sqrt(50) / often.privacy.clip_norm
    )


def test_a_run_has_the_noise_that_was_planned():
    """One round with noise and the same round without differ by the noise of the gate."""
    spec = "synthetic:clients=40,features=60,classes=5"
    settings = {"algorithm": "fedavg", "evaluate_every": 0}
    plan = pmtl.plan(40, columns=60, classes=5, privacy={"epsilon": 3.0, "rounds": 1})
    noisy, quiet = (
        weights.shared(pmtl.train(spec, privacy={"epsilon": epsilon, "rounds": 1}, **settings))[0]
        for epsilon in (3.0, math.inf)
    )
    assert noisy.shape == (plan.numbers,)
    norm = float((noisy - quiet).norm())
    # A norm of 305 normal numbers has a relative deviation of 1/√610 = 4%.
    assert norm == pytest.approx(plan.round_noise * plan.privacy.clip_norm, rel=0.16)


def test_fewer_numbers_are_offered_where_they_help():
    plan = pmtl.plan(205, model="femnist_cnn", columns=784, classes=62, privacy=2.0)
    sizes = {offer.name: offer.numbers for offer in plan.offers}
    fits = int(payoff.max_shared_numbers(plan.privacy, payoff.MODERATE))
    assert sizes == {"all": 115_646, "head": 63_550, "biases": 158, f"subspace:k={fits}": fits}
    assert f"share fewer numbers: subspace:k={fits}" in plan.recommendation
    # Where the vote drowns, sharing less does not help.
    assert "fewer" not in pmtl.plan(60, 66, privacy=1.0).recommendation


def test_noise_may_be_given_instead_of_epsilon():
    asked = pmtl.plan(200, 40, privacy=1.0)
    again = pmtl.plan(200, 40, privacy=PrivacyRequest(noise=asked.privacy.noise_std))
    assert again.epsilon == pytest.approx(1.0, rel=1e-6)
    assert again.advice == asked.advice
    assert again.clients_needed == asked.clients_needed


@pytest.mark.parametrize(
    "privacy", [1.0, math.inf, {"epsilon": 2.0, "cohort": 30, "rounds": 7, "delta": 1e-4}]
)
@pytest.mark.parametrize("size", [{"parameters": 66}, {"columns": 9, "model": "mlp:hidden=4"}])
def test_the_settings_are_a_configuration(privacy, size, tmp_path):
    plan = pmtl.plan(120, **size, privacy=privacy)
    (tmp_path / "plan.toml").write_text(plan.toml)
    config = read_config(tmp_path / "plan.toml")
    usual = "pmtl" if isinstance(privacy, dict) else "auto"
    assert config.algorithm == ("local" if plan.advice == "alone" else usual)
    assert config.model == size.get("model", "auto")
    assert config.privacy.resolve(120) == plan.privacy
    assert plan.toml.startswith("# With 120 clients and ")


def test_the_settings_are_those_that_were_advised():
    assert tomllib.loads(pmtl.plan(60, 66, privacy=1.0).toml)["algorithm"] == "local"
    assert "algorithm" not in tomllib.loads(pmtl.plan(900, 66, privacy=1.0).toml)
    asked = {"epsilon": 1.0, "rounds": 5}
    assert tomllib.loads(pmtl.plan(900, 66, privacy=asked).toml)["algorithm"] == "pmtl"


@pytest.mark.parametrize("asked", [{}, {"rounds": 4}])
@pytest.mark.parametrize("clients", [60, 900])
def test_training_accepts_the_settings(clients, asked, tmp_path, pmtl_command):
    """Rounds and clip as they were planned, or pooling's own if none were asked for."""
    data = f"synthetic:clients={clients},features=3,classes=2,samples=10"
    plan = pmtl.plan(clients, columns=3, classes=2, privacy={"epsilon": 1.0, **asked})
    (tmp_path / "plan.toml").write_text(plan.toml)
    done = pmtl_command(
        *("train", "--config", tmp_path / "plan.toml", "--data", data),
        *("--out", tmp_path / "run", "--evaluate-every", 0),
    )
    assert done.status == 0, done.err
    run = pmtl.load_run(tmp_path / "run")
    algorithm = run.facts.algorithm.partition(":")[0]
    if plan.advice == "alone":
        assert algorithm == "local"
    else:
        assert algorithm == ("pmtl" if asked else "pooling")
        assert run.privacy.epsilon == pytest.approx(1.0, rel=1e-3)
    if algorithm != "pooling":
        assert run.facts.plan == plan.privacy


def test_training_on_a_raw_table_with_the_settings_does_not_diverge(tmp_path, pmtl_command):
    random = np.random.default_rng(0)
    lines = ["site,age,y"]
    for row in range(3000):
        age = 50 + 15 * random.normal()
        lines.append(f"{row % 300},{age:.1f},{age / 10 + random.normal():.2f}")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    (tmp_path / "plan.toml").write_text(pmtl.plan(300, columns=1, privacy=2.0).toml)
    done = pmtl_command(
        *("train", "--config", tmp_path / "plan.toml", "--data", tmp_path / "rows.csv"),
        *("--client-column", "site", "--target", "y", "--out", tmp_path / "run"),
    )
    assert done.status == 0, done.err


@pytest.mark.parametrize(
    ("model", "method"),
    [
        *(("auto", "pooling"), ("logistic", "pooling"), ("hog:cells=2", "pooling")),
        ("mlp:hidden=2", "anchored"),
    ],
)
def test_it_is_told_that_the_default_needs_no_settings(model, method):
    plan = pmtl.plan(2000, columns=16, model=model, privacy=2.0)
    assert plan.advice == "share"
    assert f"The default method ({method}) needs neither rounds" in plan.recommendation


@pytest.mark.parametrize("size", [{"parameters": 17}, {"clients": 60, "columns": 16}])
def test_nothing_is_told_of_a_default_for_unknown_numbers_or_where_it_hardly_helps(size):
    plan = pmtl.plan(**{"clients": 2000, **size}, privacy=1.0)
    assert "The default method" not in plan.recommendation


def test_without_privacy_there_is_no_noise():
    plan = pmtl.plan(5, 66, privacy=math.inf)
    assert (plan.noise, plan.vote, plan.advice) == (0, 0, "share")
    assert "no privacy" in plan.recommendation
    assert json.loads(to_json(plan.to_dict()))["pays"]["0.1"] == "inf"


def test_a_plan_is_frozen_and_its_text_has_its_numbers():
    plan = pmtl.plan(160, columns=5, classes=2, privacy=1.0)
    with pytest.raises(AttributeError):
        plan.advice = "share"  # type: ignore[misc]
    text = str(plan)
    assert text.startswith(plan.recommendation)
    for number in (f"{plan.noise:.3g}", f"{plan.vote:.3g}", "second moments"):
        assert number in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "--parameters, or --columns"),
        ({"parameters": 3, "columns": 3}, "give one of them"),
        ({"parameters": 0}, "parameters must be a whole number"),
        ({"parameters": 10**16}, "parameters must be a whole number"),
        ({"parameters": True}, "parameters must be a whole number"),
        ({"parameters": 3, "rows": 0}, "rows must be a whole number"),
        ({"parameters": 3, "privacy": -1.0}, "greater than 0"),
        ({"parameters": 3, "public_head": True}, "needs --columns and --classes"),
        ({"columns": 3, "public_head": True}, "needs --columns and --classes"),
        ({"parameters": 3, "privacy": "two"}, "privacy must be"),
        ({"parameters": 3, "privacy": {"clip": math.inf}}, "Without clipping"),
        ({"parameters": 3, "privacy": {"cohort": 99}}, "cohort of 99"),
        ({"parameters": 3, "privacy": {"epsilon": 1, "noise": 1}}, "give one of them"),
    ],
)
def test_mistakes_are_sentences(arguments, words):
    with pytest.raises(PmtlError, match=words):
        pmtl.plan(50, **arguments)


def test_of_far_too_many_numbers_the_default_method_shares_some():
    wide = pmtl.plan(400, columns=1000, classes=476, privacy=2.0)
    assert wide.advice == payoff.DEPENDS
    assert (
        f"shares {wide.in_use:,} of them, the weights of the columns and classes in most use"
        in str(wide)
    )
    assert "algorithm" not in wide.toml
    network = pmtl.plan(400, model="mlp", columns=1000, classes=476, privacy=2.0)
    assert network.in_use is None
    assert network.advice == payoff.ALONE
    few = pmtl.plan(60, columns=1000, classes=476, privacy=2.0)
    assert (few.in_use, few.advice) == (None, payoff.ALONE)


def test_of_a_public_head_with_too_many_weights_a_map_of_the_answers_is_shared():
    """FEMNIST with the paper's network, of which only the head is trained."""
    sizes = {"model": "femnist_cnn", "columns": 784, "classes": 62}
    head = pmtl.plan(205, **sizes, privacy=2.0, public_head=True)
    assert (head.numbers, head.in_use, head.advice) == (1025 * 62, 63 * 62, payoff.DEPENDS)
    assert "a map of the public head's answers instead, 3,906 numbers" in head.recommendation
    assert head.to_dict()["share"] == "answers"
    assert "algorithm" not in head.toml
    assert pmtl.plan(205, **sizes, privacy=2.0).advice == payoff.ALONE
    assert "\n# Add the public weights and what is frozen: init" in head.toml
    rounds = pmtl.plan(205, **sizes, privacy={"epsilon": 2, "rounds": 9}, public_head=True)
    assert (rounds.share, rounds.in_use) == (None, None), "Algorithm 1 shares all"
    few = pmtl.plan(60, columns=19, classes=40, privacy=2.0, public_head=True)
    assert (few.share, few.advice) == ("all", payoff.DEPENDS)
    assert "algorithm" not in few.toml
    assert "shares all of them. That pays if the public head has the same" in few.recommendation
    many = pmtl.plan(800, **sizes, privacy=2.0, public_head=True)
    assert (many.advice, many.in_use) == (payoff.SHARE, 63 * 62)


def test_where_only_intercepts_would_be_shared_training_alone_is_as_good():
    plan = pmtl.plan(30, columns=1, classes=400, privacy=8.0)
    assert (plan.share, plan.advice) == ("intercepts", payoff.ALONE)
    assert "would share the intercepts only" in plan.recommendation
