"""The arithmetic of plans: closed forms, the accountant, and noise that is really drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pmtl
from pmtl.algorithms.default.exact import Sizes
from pmtl.algorithms.default.pooling import Pooling
from pmtl.planning import payoff
from pmtl.privacy.accounting import accountant, gaussian
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import PrivacyRequest
from pmtl.server.resolve import resolve_algorithm

CLIENTS = st.integers(2, 10**6)
EPSILONS = st.floats(0.05, 20)


@pytest.mark.parametrize("rounds", [1, 7, 400])
@pytest.mark.parametrize("clip", [0.1, 3.0])
def test_with_all_clients_the_reach_is_half_of_m_times_mu(rounds, clip):
    plan = PrivacyRequest(epsilon=1.5, rounds=rounds, clip=clip).resolve(205)
    assert payoff.reach(plan) == pytest.approx(205 * gaussian.mu_for(1.5, 1 / 2050) / 2, rel=1e-9)


def test_the_known_number_at_205_clients():
    """μ is about 0.82 at ε = 2 and δ = 1/205, so about 7,000·ρ² numbers pay."""
    plan = PrivacyRequest(epsilon=2, delta=1 / 205).resolve(205)
    assert payoff.max_shared_numbers(plan, 1.0) == pytest.approx(7014, abs=1)
    assert payoff.max_shared_numbers(plan, 0.5) == pytest.approx(7014 / 4, abs=1)


@pytest.mark.parametrize(("sampling", "cohort"), [("full", 200), ("poisson", 40), ("fixed", 40)])
def test_the_noise_is_the_accountants(sampling, cohort):
    request = PrivacyRequest(epsilon=1, sampling=sampling, cohort=cohort, rounds=30)
    plan = request.resolve(200)
    assert accountant.epsilon(plan) == pytest.approx(1, rel=5e-3)
    expected = plan.noise_std * math.sqrt(50) / (plan.clip_norm * math.sqrt(30))
    assert payoff.noise_ratio(plan, 50) == pytest.approx(expected, rel=1e-12)


def test_a_simulation_has_the_norms_that_are_predicted():
    """T rounds in which every client uploads one common vector of norm ργ."""
    rng = np.random.default_rng(0)
    numbers, agreement = 3000, 0.4
    plan = PrivacyRequest(epsilon=1, rounds=25, clip=0.7).resolve(150)
    common = np.zeros(numbers)
    common[0] = agreement * plan.clip_norm
    noise = rng.normal(0, plan.noise_std, (plan.rounds, numbers)).sum(axis=0)
    signal = plan.rounds * common
    ratio = np.linalg.norm(noise) / np.linalg.norm(signal)
    assert ratio == pytest.approx(payoff.noise_ratio(plan, numbers) / agreement, rel=0.05)
    # At d* they are equal.
    equal = int(payoff.max_shared_numbers(plan, agreement))
    few = np.linalg.norm(noise[:equal]) / np.linalg.norm(signal)
    assert few == pytest.approx(1, abs=0.15)


@given(CLIENTS, EPSILONS, st.floats(1.01, 10))
def test_more_clients_let_more_numbers_pay(clients, epsilon, times):
    few = PrivacyRequest(epsilon=epsilon).resolve(clients)
    many = PrivacyRequest(epsilon=epsilon).resolve(math.ceil(times * clients))
    assert payoff.max_shared_numbers(many, 0.3) > payoff.max_shared_numbers(few, 0.3)


@given(CLIENTS, EPSILONS, st.floats(1.01, 10))
def test_a_larger_epsilon_lets_more_numbers_pay(clients, epsilon, times):
    tight = PrivacyRequest(epsilon=epsilon).resolve(clients)
    loose = PrivacyRequest(epsilon=times * epsilon).resolve(clients)
    assert payoff.max_shared_numbers(loose, 0.3) > payoff.max_shared_numbers(tight, 0.3)
    assert payoff.vote_ratio(loose, times * epsilon) < payoff.vote_ratio(tight, epsilon)


def test_a_vote_is_one_release_of_its_share_of_the_budget():
    """As a plan of its own: K numbers, clip 1, and μ√s."""
    plan = PrivacyRequest(epsilon=1).resolve(160)
    ratio = payoff.vote_ratio(plan, 1.0)
    mu = gaussian.mu_for(1.0, 1 / 1600) * math.sqrt(payoff.VOTE_SHARE)
    release = PrivacyPlan(160, 160, "full", 1.0, 2 / (160 * mu), 1, 1 / 1600)
    assert ratio == pytest.approx(payoff.noise_ratio(release, payoff.CELLS), rel=1e-12)
    assert accountant.epsilon(release) < 1
    assert payoff.vote_epsilon(plan, ratio) == pytest.approx(1, rel=1e-6)
    assert payoff.vote_ratio(plan, math.inf) == 0


@pytest.mark.parametrize(("sampling", "cohort"), [(None, None), ("poisson", 50), ("fixed", 50)])
def test_the_epsilon_that_is_needed_gives_the_noise_that_was_asked_for(sampling, cohort):
    plan = PrivacyRequest(epsilon=1, sampling=sampling, cohort=cohort, rounds=10).resolve(200)
    needed = payoff.epsilon_for(plan, numbers=5000, ratio=0.5)
    noise = accountant.noise_for(plan, needed)
    assert payoff.noise_ratio(replace(plan, noise_std=noise), 5000) == pytest.approx(0.5, rel=2e-3)
    assert math.isinf(payoff.epsilon_for(replace(plan, clip_norm=math.inf), 5000, 0.5))


@pytest.mark.parametrize("sampling", ["full", "poisson", "fixed"])
@pytest.mark.parametrize("delta", [None, 1e-5])
@pytest.mark.parametrize("begin", [60, 4000])
def test_the_clients_that_are_needed_give_the_noise_that_was_asked_for(sampling, delta, begin):
    cohort = None if sampling == "full" else begin // 2
    request = PrivacyRequest(epsilon=1, sampling=sampling, cohort=cohort, delta=delta, rounds=10)
    plan = request.resolve(begin)
    excess = payoff.noise_ratio(plan, 500) / 0.3
    found = payoff.clients_for(plan, 1.0, excess, fixed=delta is not None)
    there = replace(request, cohort=None if cohort is None else round(found / 2)).resolve(found)
    assert payoff.noise_ratio(there, 500) == pytest.approx(0.3, rel=0.05)
    if sampling == "full":
        assert payoff.noise_ratio(there, 500) <= 0.3 * (1 + 1e-9)
        fewer = request.resolve(found - 1)
        assert payoff.noise_ratio(fewer, 500) > 0.3


def test_no_number_of_clients_may_be_enough():
    plan = PrivacyRequest(epsilon=1e-6, delta=1e-12).resolve(10)
    excess = payoff.noise_ratio(plan, 10**15)
    assert payoff.clients_for(plan, 1e-6, excess, fixed=True) is None
    assert payoff.clients_for(plan, 1e-6, 0.0, fixed=True) == payoff.MIN_CLIENTS
    assert payoff.clients_for(plan, math.inf, 0.0, fixed=False) == payoff.MIN_CLIENTS


def test_without_noise_every_number_pays():
    plan = PrivacyRequest(epsilon=math.inf).resolve(10)
    assert math.isinf(payoff.max_shared_numbers(plan, 0.1))
    assert payoff.noise_ratio(plan, 10**6) == 0


@pytest.mark.parametrize(
    ("noise", "vote", "advice"),
    [
        (0.1, 0.1, "share"),
        (payoff.MODERATE, payoff.READABLE_VOTE_NOISE, "share"),
        (0.5, 0.1, "depends"),
        (1.0, 0.0, "depends"),
        (1.01, 0.0, "alone"),
        (0.1, 0.51, "alone"),
    ],
)
def test_the_limits_of_advice(noise, vote, advice):
    assert payoff.advice(noise, vote) == advice


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("clients", [60, 120, 160, 400, 3000])
@pytest.mark.parametrize(("columns", "classes"), [(1000, 400), (128, 62), (20, 40), (5, 2)])
def test_pooling_shares_what_the_plan_says(columns, classes, clients, head):
    asked = PrivacyRequest(epsilon=2)
    sizes = Sizes("classification", classes, columns + 1, True, public_head=head)
    resolved = resolve_algorithm(Pooling(), asked, clients, sizes)
    plan = pmtl.plan(clients, columns=columns, classes=classes, privacy=2.0, public_head=head)
    assert plan.share == resolved.share
    if plan.in_use is not None:
        weights = next(r for r in range(resolved.releases) if resolved.stage(r) == "weights")
        assert plan.in_use == resolved.upload_size(weights)
    # Sensitivity 2 (replace-one), T releases: the noise is 2√T/(mμ).
    strength = 2 * math.sqrt(resolved.releases) / resolved.noise
    assert math.isclose(payoff.strength(plan.privacy, 2.0), strength)
