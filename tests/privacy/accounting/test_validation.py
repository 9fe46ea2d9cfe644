"""Metrics and training are paid for out of one ε."""

import math

import pytest
from scipy import stats

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import accountant, composition, gaussian
from pmtl.privacy.accounting.validation import KIND, evaluations, with_metrics
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import PrivacyRequest

M = 200


def together(plan, metrics):
    events = {GaussianEvent.of(plan): plan.rounds, GaussianEvent.of(metrics, KIND): metrics.rounds}
    return composition.epsilon(events, plan.delta)


@pytest.mark.parametrize(("rounds", "every", "times"), [(20, 10, 2), (25, 10, 3), (7, 0, 0)])
def test_evaluations_are_every_so_often_and_at_the_end(rounds, every, times):
    assert evaluations(rounds, every) == times


@pytest.mark.parametrize("sampling", ["full", "poisson", "fixed"])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_both_together_keep_the_epsilon_that_was_asked_for(sampling, share):
    cohort = M if sampling == "full" else 40
    request = PrivacyRequest(epsilon=2.0, sampling=sampling, cohort=cohort, metrics=share)
    plan, metrics = with_metrics(request, M, releases=4, values=2)
    assert 1.98 < together(plan, metrics) <= 2.0
    assert (
        plan.noise_std
        > PrivacyRequest(epsilon=2.0, sampling=sampling, cohort=cohort).resolve(M).noise_std
    )


def test_the_metrics_get_their_share_of_mu_squared():
    request = PrivacyRequest(epsilon=3.0, metrics=0.25)
    plan, metrics = with_metrics(request, M, releases=5, values=4)
    whole = gaussian.mu_for(3.0, plan.delta) ** 2
    assert 5 * (2 / metrics.noise_multiplier) ** 2 == pytest.approx(0.25 * whole)
    assert plan.rounds * (2 / plan.noise_multiplier) ** 2 == pytest.approx(0.75 * whole)


def test_the_noise_is_for_a_vector_of_that_many_values():
    """Each in [−½, ½]: all at one end against all at the other is 2 · √c/2 apart."""
    request = PrivacyRequest(epsilon=1.0, metrics=0.1)
    one, four = (with_metrics(request, M, 2, values)[1] for values in (1, 4))
    assert (one.clip_norm, four.clip_norm) == (0.5, 1.0)
    assert four.noise_std == pytest.approx(2 * one.noise_std)
    assert (one.sampling, one.cohort, one.clients) == ("full", M, M)


def test_a_given_noise_stays_and_the_metrics_come_on_top():
    request = PrivacyRequest(noise=0.02, metrics=0.1)
    plan, metrics = with_metrics(request, M, 2, 2)
    assert plan.noise_std == 0.02
    alone = gaussian.mu_for(accountant.epsilon(plan), plan.delta) ** 2
    assert 2 * (2 / metrics.noise_multiplier) ** 2 == pytest.approx(alone / 9, rel=1e-6)
    assert together(plan, metrics) > accountant.epsilon(plan)


@pytest.mark.parametrize(
    ("request_", "releases"),
    [
        (PrivacyRequest(), 2),
        (PrivacyRequest(metrics=0.0), 2),
        (PrivacyRequest(metrics=0.1), 0),
        (PrivacyRequest(metrics=0.1, epsilon=math.inf), 2),
        (PrivacyRequest(metrics=0.1, noise=0.0), 2),
    ],
)
def test_without_a_share_an_evaluation_or_privacy_there_is_no_plan_for_metrics(request_, releases):
    plan, metrics = with_metrics(request_, M, releases, 2)
    assert metrics is None
    assert plan == request_.resolve(M)


@pytest.mark.parametrize("share", [-0.1, 1.0, 7.0, math.nan])
def test_a_share_outside_the_budget_is_refused(share):
    with pytest.raises(PmtlError, match=r"at least 0 and less than 1|must be a number"):
        with_metrics(PrivacyRequest(metrics=share), M, 2, 2)


def test_other_releases_that_cost_too_much_alone_are_refused():
    dear = GaussianEvent("full", M, M, 1.0, 1e-4, KIND)
    with pytest.raises(PmtlError, match="alone cost more"):
        accountant.noise_for(PrivacyPlan(M, M, "full", 1.0, 0.0, 5, 1e-4), 1.0, {dear: 1})


def test_the_share_is_exact_where_everybody_takes_part():
    """Against the Gaussian's formula, written out."""
    plan, metrics = with_metrics(PrivacyRequest(epsilon=2.0, metrics=0.3), M, 3, 2)
    mu = math.sqrt(
        plan.rounds * (2 / plan.noise_multiplier) ** 2 + 3 * (2 / metrics.noise_multiplier) ** 2
    )
    spent = stats.norm.cdf(-2 / mu + mu / 2) - math.exp(2) * stats.norm.cdf(-2 / mu - mu / 2)
    assert spent == pytest.approx(plan.delta, rel=1e-6)


def test_too_little_noise_for_an_epsilon_is_said_plainly():
    with pytest.raises(PmtlError, match="too large to be computed"):
        with_metrics(PrivacyRequest(noise=1e-300, metrics=0.1, rounds=3), 10, 2, 4)
