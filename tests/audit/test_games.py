"""The games on the pipeline as it is: below every claim, near it where the theory is tight."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from at_length import at_length

from pmtl.algorithms import PMTL
from pmtl.audit import billboard, canaries, gate, metrics, sampler
from pmtl.audit.estimators import threshold_bound
from pmtl.audit.games import GAMES, audit, chosen
from pmtl.audit.setup import AuditSetup
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.privacy import grid, release
from pmtl.privacy.accounting import gaussian
from pmtl.privacy.accounting.validation import metrics_plan
from pmtl.privacy.noise import real, rounded, system_source
from pmtl.simulation import noise_key
from pmtl.streams import name_keys

SMALL = AuditSetup(trials=400, clients=8)


@pytest.mark.parametrize("hardened", [False, True], ids=["ordinary", "hardened"])
def test_the_gate_is_as_private_as_claimed_and_hardly_more(hardened):
    """Full participation, 99.9% confidence, 4000 trials: 0.3 of the claim at least."""
    setup = AuditSetup(epsilon=2.0, clients=20, seed=3)
    plan = setup.plan(1)
    bits = np.arange(setup.trials) % 2 == 1
    scores = gate.play(plan, gate.SCENARIOS[0], bits, setup.seed, hardened)
    bound = threshold_bound(scores, bits, plan.delta, 0.999, curve=True)
    assert 0.3 * setup.epsilon <= bound.epsilon <= setup.epsilon
    # The scores are the mechanism's: ±γ/q, and noise of standard deviation σ around it.
    reach = setup.clip / plan.cohort
    deviation = plan.noise_std / np.sqrt(len(bits) / 2)
    assert scores[bits].mean() == pytest.approx(reach, abs=4 * deviation)
    assert scores[~bits].mean() == pytest.approx(-reach, abs=4 * deviation)
    assert scores[bits].std() == pytest.approx(plan.noise_std, rel=0.07)


#: Games that run whole federations.
LONG = ("billboard", "default")


@pytest.mark.parametrize(
    ("game", "sampling"),
    [
        *at_length(
            ((game, {"sampling": "poisson", "cohort": 3}) for game in GAMES),
            lambda case: case[0] not in LONG,
        ),
        *at_length(
            ((game, {"sampling": "fixed", "cohort": 4}) for game in GAMES),
            lambda case: case[0] in ("one-round", "sampler"),
        ),
    ],
)
def test_sampled_cohorts_are_consistent_too(game, sampling):
    result = GAMES[game](replace(SMALL, **sampling))
    assert result.passed, str(result)


#: The system's noise is another one each time. A game is then wrong about correct code with
#: probability 1 − confidence at most, so that the games below are, together, wrong once in
#: 100,000 runs.
PRODUCTION = replace(SMALL, mode="production", confidence=1 - 1e-6)


@pytest.mark.parametrize(
    "game",
    at_length(
        [game for game in GAMES if game not in ("sampler", "server")],
        lambda game: game not in LONG,
    ),
)
@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (SMALL, {"real"}),
        pytest.param(replace(SMALL, hardened=True), {"grid"}, marks=pytest.mark.thorough),
        pytest.param(
            replace(PRODUCTION, hardened=False), {"system", "real"}, marks=pytest.mark.thorough
        ),
        (PRODUCTION, {"system", "grid"}),
    ],
    ids=["experiment", "experiment, hardened", "production, ordinary", "production"],
)
def test_every_source_of_noise_and_either_gate_are_consistent(game, setup, words, monkeypatch):
    """And each game draws what it says it draws; production is hardened, as it is in training."""
    drawn = set()
    for module in (gate, noise_key):
        monkeypatch.setattr(module, "system_source", spy(drawn, "system", system_source))
    monkeypatch.setattr(grid, "rounded", spy(drawn, "grid", rounded))
    monkeypatch.setattr(release, "real", spy(drawn, "real", real))
    result = GAMES[game](setup)
    assert result.passed, str(result)
    assert drawn == words
    assert result.detail["mode"] == setup.mode
    assert result.detail["hardened"] is ("grid" in words)


def spy(seen, name, function):
    def spying(*arguments):
        seen.add(name)
        return function(*arguments)

    return spying


def test_a_result_is_plain_and_says_what_it_means():
    (result,) = audit(SMALL, "canaries")
    assert result.passed
    assert result.trials == result.detail["canaries"] == 1500
    assert f"the attack proves ε ≥ {result.lower_bound:.3g}; the claim is 2" in str(result)
    text = to_json(result.to_dict())
    for word in ("claim_epsilon", "lower_bound", "confidence", "trials", "delta", "scenarios"):
        assert word in text


@pytest.mark.parametrize(
    "game",
    at_length(GAMES, lambda game: game in ("canaries", "sampler")),
)
def test_the_same_seed_plays_the_same_game(game):
    assert GAMES[game](SMALL) == GAMES[game](SMALL)


def test_another_seed_plays_another_game():
    assert canaries.canaries(SMALL) != canaries.canaries(replace(SMALL, seed=9))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"epsilon": float("inf")}, "finite epsilon"),
        ({"epsilon": -1.0}, "greater than 0"),
        ({"trials": 10}, "prove almost nothing"),
        ({"clients": 1}, "at least 2 clients"),
        ({"confidence": 1.0}, "below 1"),
        ({"sampling": "random"}, "There is no sampling scheme 'random'"),
        ({"mode": "prodution"}, "no mode 'prodution'.*production"),
        ({"cohort": 99}, "cannot be drawn"),
        ({"rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_mistakes_are_answered_in_sentences(changes, sentence):
    with pytest.raises(PmtlError, match=sentence):
        replace(SMALL, **changes)


def test_an_unknown_game_is_named():
    with pytest.raises(PmtlError, match=r"no game 'canary'.*mean 'canaries'"):
        chosen("canary")


class TestCanary:
    def test_an_ordinary_client_does_what_it_would_do(self):
        wrapped, inner = canaries.Canary(lam=0.3), PMTL(lam=0.3)
        shared, weights = torch.randn(3), torch.randn(3)
        own, plain = wrapped.start(shared), inner.start(shared)
        state, inside = wrapped.begin(own, shared), inner.begin(plain, shared)
        state = wrapped.step(state, shared, lambda w: w - weights, 0.1)
        inside = inner.step(inside, shared, lambda w: w - weights, 0.1)
        assert torch.equal(wrapped.upload(state, own, shared), inner.upload(inside, plain, shared))
        assert torch.equal(wrapped.keep(state)[:-3], inner.keep(inside))
        assert torch.equal(
            wrapped.predict(wrapped.keep(state), shared), inner.predict(inner.keep(inside), shared)
        )

    def test_a_canary_sends_its_message_round_after_round(self):
        wrapped = canaries.Canary()
        shared, message = torch.randn(3), torch.tensor([0.0, 2.0, 0.0])
        own = torch.cat([shared, message])
        for _ in range(2):
            state = wrapped.step(wrapped.begin(own, shared), shared, torch.ones_like, 0.1)
            assert torch.equal(wrapped.upload(state, own, shared), message)
            own = wrapped.keep(state)

    def test_scores_carry_the_coins_at_the_claimed_strength(self):
        """T rounds of ±γ/q along each direction, and noise of variance Tσ²."""
        setup = AuditSetup(epsilon=8.0)
        plan = setup.plan(3, clients=500, delta=1e-6)
        random = np.random.default_rng(0)
        coins = random.random(400) < 0.5
        directions = np.linalg.qr(random.normal(size=(400, 400)))[0]
        scores = (canaries.play(plan, coins, directions, 0) @ directions.T)[0]
        signs = np.where(coins, 1, -1)
        reach, spread = 3 * plan.clip_norm / plan.cohort, np.sqrt(3) * plan.noise_std
        assert (signs * scores).mean() == pytest.approx(reach, abs=4 * spread / 20)
        assert (signs * scores).std() == pytest.approx(spread, rel=0.15)

    def test_the_surest_guesses_are_counted_at_both_ends(self):
        scores, coins = np.array([-2.0, -1, 0, 1, 2]), np.array([False, True, True, False, True])
        assert canaries.correct_guesses(scores, coins, 2) == 2
        assert canaries.correct_guesses(scores, coins, 5) == 3

    @pytest.mark.parametrize(
        ("mode", "epsilon"),
        at_length(
            product(["experiment", "production"], [1.0, 2.0, 4.0]), ("experiment", 2.0).__eq__
        ),
    )
    def test_they_prove_at_least_three_tenths_of_the_claim(self, epsilon, mode):
        """At the default length. Production is not repeatable: a confidence of 1 − 10⁻⁶ makes a
        false alarm as rare as that. An experiment proves it also without granting anything about
        guesses."""
        setup = AuditSetup(epsilon=epsilon, mode=mode)
        if mode == "production":
            setup = replace(setup, confidence=1 - 1e-6)
        result = canaries.canaries(setup)
        assert 0.3 * epsilon <= result.lower_bound <= epsilon
        proved = {finding["scenario"]: finding["lower_bound"] for finding in scenarios(result)}
        if mode == "experiment":
            assert result.confidence == 0.999
            assert proved["the surest tenth guessed in one run"] >= 0.3 * epsilon

    def test_blocks_are_federations_of_their_own(self):
        """Without noise every block moves as it would alone."""
        plan = replace(SMALL.plan(2, clients=6), noise_std=0.0)
        directions = np.eye(6)  # All are canaries, so rows play no part.
        coins = np.array([1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1], dtype=bool)
        both = canaries.play(plan, coins, directions, 5)
        for block in range(2):
            alone = canaries.play(plan, coins[6 * block : 6 * block + 6], directions, 5)
            np.testing.assert_allclose(both[block], alone[0], atol=1e-6)


def scenarios(result):
    return result.detail["scenarios"]


class TestMetrics:
    @pytest.mark.parametrize(
        "hardened", at_length([False, True], bool), ids=["ordinary", "hardened"]
    )
    def test_the_scores_are_the_mechanisms(self, hardened):
        """Four values that move by 1/m each, and four noises of standard deviation σ."""
        setup = AuditSetup(seed=4)
        mu = gaussian.mu_for(2.0, setup.claimed_delta)
        plan = metrics_plan(20, 1, 4, mu * mu, setup.claimed_delta)
        bits = np.arange(2000) % 2 == 1
        for scenario in metrics.SCENARIOS[:2]:
            scores = metrics.play(plan, scenario, bits, setup.seed, hardened)
            spread = 2 * plan.noise_std
            gap = scores[bits].mean() - scores[~bits].mean()
            assert gap == pytest.approx(4 / 20, abs=5 * spread * 2 / 2000**0.5)
            assert scores[bits].std() == pytest.approx(spread, rel=0.1)

    @pytest.mark.parametrize(
        "mode", ["experiment", pytest.param("production", marks=pytest.mark.thorough)]
    )
    def test_they_are_as_private_as_claimed_and_hardly_more(self, mode):
        setup = AuditSetup(mode=mode)
        if mode == "production":
            setup = replace(setup, confidence=1 - 1e-6)
        result = metrics.metrics(setup)
        assert result.lower_bound <= 2.0
        assert result.lower_bound >= 0.3 * 2.0 or mode == "production"
        assert result.lower_bound > 0.1


class TestSampler:
    @pytest.mark.parametrize("mode", ["experiment", "production"])
    def test_coins_tell_nothing_and_a_fixed_draw_everything(self, mode):
        confidence = 1 - 1e-6
        coins = sampler.sampler(AuditSetup(cohort=6, mode=mode, confidence=confidence))
        assert coins.passed
        assert coins.claim_epsilon == coins.lower_bound == 0
        fixed = AuditSetup(cohort=6, sampling="fixed", mode=mode, confidence=confidence)
        result = sampler.sampler(fixed)
        assert result.passed, str(result)
        assert result.detail["granted_to_colluders"]["how many others were drawn"] > 3

    def test_with_full_participation_coins_are_attacked_too(self):
        result = sampler.sampler(SMALL)
        assert result.detail["sampling"] == "poisson"
        assert result.trials >= 399


class TestBillboard:
    def test_blocks_are_federations_of_their_own(self):
        """A trial among other trials is the same run, except for its noise."""
        plan = replace(SMALL.plan(3, clients=4), noise_std=0.0)
        scenario = billboard.SCENARIOS[2]
        many = billboard.play(plan, scenario, np.array([True, False, True]), 5)
        for trial, bit in enumerate([True, False, True]):
            alone = billboard.play(plan, scenario, np.array([bit]), 5)
            np.testing.assert_allclose(many[trial], alone[0], rtol=1e-6)

    def test_a_block_has_the_noise_of_the_plan(self):
        plan = SMALL.plan(1, clients=4)
        views = billboard.play(plan, billboard.SCENARIOS[0], np.ones(2000, dtype=bool), 5)
        np.testing.assert_allclose(views[:, -3:].std(axis=0), plan.noise_std, rtol=0.07)

    def test_client_k_is_clipped_in_every_round_and_not_in_the_view(self):
        plan = replace(SMALL.plan(3, clients=4), noise_std=0.0)
        views = billboard.play(plan, billboard.SCENARIOS[0], np.array([True, False]), 5)
        assert views.shape == (2, 3 * 3 + 3 * 3)  # three others and three rounds, P = 3
        first = views[:, 9:12]
        np.testing.assert_allclose(np.linalg.norm(first, axis=1), plan.clip_norm / 4, rtol=1e-5)
        np.testing.assert_allclose(first[0], -first[1], rtol=1e-5)
        assert np.linalg.norm(views[0, 15:18]) > 2.8 * plan.clip_norm / 4

    def test_where_k_is_to_be_alone_all_others_stay_away(self):
        crowd = AuditSetup(clients=12, cohort=11).plan(1)
        together = 0
        for seed in range(40):
            names = billboard._absent(crowd, seed)
            assert len(set(names)) == 12
            assert names == tuple(sorted(names))
            drawn = crowd.sampler(seed, name_keys(names)).draw(0).tolist()
            assert drawn in ([], [11])
            together += len(drawn)
        assert together > 30  # k's own coin is as it was: 11 of 12
