"""Settings that were chosen by looking at earlier releases: what ordinary composition misses, and
the filter that holds a cap all the same."""

import math
from pathlib import Path

import numpy as np
import pytest
from example_ledger import COINS, FULL
from scipy.optimize import brentq
from scipy.stats import norm

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import adaptive, composition, gaussian, renyi
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan, default_delta
from pmtl.privacy.request import PrivacyRequest

# --- the counterexample: a thousand clients, the default δ, a cap of ε = 2 ---

M, EPSILON = 1000, 2.0
DELTA = default_delta(M)
NAMES = [f"client-{k}" for k in range(M)]

# The loss of the first release is normal; the sums below are over 4001 of its values, up to 12
# standard deviations away, which is exact to far more digits than are compared.
STEPS = np.linspace(-12, 12, 4001)
WEIGHTS = norm.pdf(STEPS) / norm.pdf(STEPS).sum()


def full(mu):
    return GaussianEvent("full", M, M, 1.0, 2 / mu / M)


def coin(z):
    """One client in a thousand, by a coin of its own."""
    return GaussianEvent("poisson", M, 1, 1.0, z)


def delta_of_full(epsilons, mu):
    """The exact δ of a Gaussian release at each ε, negative ones included."""
    positive = np.exp(gaussian.log_delta(np.abs(epsilons), mu))
    return np.where(epsilons >= 0, positive, 1 - np.exp(epsilons) * (1 - positive))


def delta_of_coin(epsilons, z):
    """The same for one release with a secret coin. The privacy loss grows with the output x, so the
    best test is a threshold, and δ = P(x > t) − e^ε·Q(x > t)."""
    rate, absent = 1 / M, math.log1p(-1 / M)

    def loss(x):
        with_one = np.logaddexp(absent, math.log(rate) + (x - 0.5) / z**2)
        return with_one - np.logaddexp(absent, math.log(rate) - (x + 0.5) / z**2)

    low, high = np.full(len(epsilons), -500.0), np.full(len(epsilons), 500.0)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (
            np.where(loss(middle) < epsilons, middle, low),
            np.where(loss(middle) < epsilons, high, middle),
        )

    def beyond(shift):
        return (1 - rate) * norm.sf(low / z) + rate * norm.sf((low - shift) / z)

    return beyond(1) - np.exp(epsilons) * beyond(-1)


def true_delta(mu, *seconds):
    """The δ at EPSILON of a full release with μ, after which the one of `seconds` is made that is
    worst for the client: the expectation, over the loss L of the first, of δ_second(ε − L)."""
    left = EPSILON - (mu**2 / 2 + mu * STEPS)
    return float(WEIGHTS @ np.max([second(left) for second in seconds], axis=0))


@pytest.fixture(scope="module")
def strategy():
    """A first release, and two to choose from after looking at it. Both ways of going on cost
    ε = 2 by the accountant."""
    mu = gaussian.mu_for(EPSILON, DELTA)
    first, second = 0.8 * mu, 0.6 * mu * (1 - 1e-9)

    def excess(z):
        return composition.epsilon({full(first): 1, coin(z): 1}, DELTA) - EPSILON * (1 - 1e-6)

    return first, second, brentq(excess, 0.25, 0.6, xtol=1e-6)


def test_every_path_is_within_the_cap_and_the_whole_is_not(strategy):
    first, second, z = strategy
    for then in (full(second), coin(z)):
        assert composition.epsilon({full(first): 1, then: 1}, DELTA) <= EPSILON
    # Each way alone keeps the promise, so that the sums here agree with the accountant ...
    for alone in (lambda e: delta_of_full(e, second), lambda e: delta_of_coin(e, z)):
        assert 0.95 * DELTA < true_delta(first, alone) <= DELTA
    # ... and choosing between them breaks it.
    chosen = true_delta(first, lambda e: delta_of_full(e, second), lambda e: delta_of_coin(e, z))
    assert 1.8 * DELTA < chosen < 1.9 * DELTA


def test_the_ledger_refuses_one_of_the_paths(strategy, tmp_path):
    first, second, z = strategy
    with Ledger.create(tmp_path / "ledger", NAMES) as ledger:
        ledger.cap(EPSILON, DELTA)
        ledger.charge("a", 0, full(first))
        assert ledger.allows("b", {full(second): 1}) is None
        assert "cap" in ledger.allows("b", {coin(z): 1})
        # A plan does not help: it is put down after the first release was seen.
        assert "cap" in ledger.allows("b", {coin(z): 1}, {coin(z): 1})


def test_the_worst_choice_between_all_that_is_allowed_keeps_the_promise(tmp_path):
    """After a first release that leaves room for both: the loudest full release and the loudest
    release with a coin that the ledger allows."""
    mu = gaussian.mu_for(EPSILON, DELTA)
    first, second = 0.4 * mu, math.sqrt(1 - 0.4**2) * mu * (1 - 1e-9)

    def excess(z):
        return adaptive.by_orders({full(first): 1, coin(z): 1}, DELTA) - EPSILON

    least = brentq(excess, 0.1, 100.0, xtol=1e-9)
    with Ledger.create(tmp_path / "ledger", NAMES) as ledger:
        ledger.cap(EPSILON, DELTA)
        ledger.charge("a", 0, full(first))
        assert ledger.allows("b", {full(second): 1}) is None
        assert ledger.allows("b", {full(1.001 * second): 1}) is not None
        assert ledger.allows("b", {coin(1.001 * least): 1}) is None
        assert ledger.allows("b", {coin(0.999 * least): 1}) is not None
    seconds = (lambda e: delta_of_full(e, second), lambda e: delta_of_coin(e, least))
    assert 0.9 * DELTA < true_delta(first, *seconds) <= (1 + adaptive.EXTRA) * DELTA


def test_a_plan_with_both_kinds_does_not_open_both_rules(strategy, tmp_path):
    """A run plans a full release and then one with a coin. After the first, another run may not
    use the rule for full participation: the choice between the two is the counterexample."""
    first, second, z = strategy
    plan = {full(first): 1, coin(z): 1}
    with Ledger.create(tmp_path / "ledger", NAMES) as ledger:
        ledger.cap(EPSILON, DELTA)
        ledger.declare("a", plan)
        ledger.charge("a", 0, full(first))
        assert ledger.allows("a", {coin(z): 1}) is None
        assert "cap" in ledger.allows("b", {full(second): 1}, {full(second): 1})


# --- what a cap must admit ---


@pytest.mark.parametrize("sampling", ["full", "poisson", "fixed"])
def test_a_cap_admits_one_whole_run_that_was_made_for_it_and_no_more(sampling, tmp_path):
    names = NAMES[:50]
    asked = PrivacyRequest(
        epsilon=2.0, rounds=6, sampling=sampling, cohort=50 if sampling == "full" else 10
    )
    plan = asked.resolve(50)
    event = GaussianEvent.of(plan)
    with Ledger.create(tmp_path / "ledger", names) as ledger:
        ledger.cap(2.0)
        assert ledger.allows("a", {event: 6}, {event: 6}) is None
        ledger.declare("a", {event: 6})
        for round in range(3):
            ledger.charge("a", round, event)
    with Ledger.open(tmp_path / "ledger", names) as ledger:  # as a run that is resumed
        ledger.declare("a", {event: 6})
        assert ledger.allows("a", {event: 3}, {event: 6}) is None
        for round in range(3, 6):
            ledger.charge("a", round, event)
        assert ledger.filtered(plan.delta).epsilon == pytest.approx(2.0, rel=1e-3)
        assert "cap" in ledger.allows("a", {event: 1})
        assert "cap" in ledger.allows("b", {event: 1}, {event: 1})


def test_full_runs_add_up_exactly_and_a_second_run_with_coins_is_priced_by_orders(tmp_path):
    with Ledger.create(tmp_path / "ledger", [str(k) for k in range(10)]) as ledger:
        for run in ("a", "b"):
            ledger.declare(run, {FULL: 2})
            ledger.charge(run, 0, FULL)
        assert ledger.filtered(1e-5).epsilon == composition.epsilon({FULL: 2}, 1e-5)
        ledger.charge("c", 0, COINS)
        events = {FULL: 2, COINS: 1}
        assert ledger.filtered(1e-5).epsilon == adaptive.by_orders(events, 1e-5)
        assert ledger.filtered(1e-5).epsilon > ledger.spent(1e-5).epsilon


def test_a_plan_comes_before_the_first_charge_and_is_never_changed(tmp_path):
    with Ledger.create(tmp_path / "ledger", [str(k) for k in range(10)]) as ledger:
        ledger.charge("a", 0, COINS)
        ledger.declare("b", {COINS: 5})
        ledger.declare("b", {COINS: 5})  # says nothing new, and is no entry
        for run, plan in (("a", {COINS: 5}), ("b", {COINS: 6})):
            with pytest.raises(PmtlError, match="plan"):
                ledger.declare(run, plan)
        assert ledger.plan("b") == {COINS: 5}
        assert ledger.verify() == 3


@pytest.mark.parametrize(("cohort", "fixed", "any_settings"), [(500, 3.01, 3.01), (50, 2.95, 4.91)])
def test_the_prices_of_a_second_run_in_the_documentation(cohort, fixed, any_settings):
    plan = PrivacyRequest(epsilon=2.0, rounds=20, cohort=cohort).resolve(500)
    events = {GaussianEvent.of(plan): 40}
    assert composition.epsilon(events, plan.delta) == pytest.approx(fixed, abs=0.005)
    cap = adaptive.by_orders(events, plan.delta)
    if adaptive.all_full(events):
        cap = min(cap, composition.epsilon(events, plan.delta))
    assert cap == pytest.approx(any_settings, abs=0.005)
    page = (Path(__file__).parents[3] / "docs/privacy.md").read_text(encoding="utf-8")
    for number in (fixed, any_settings):
        assert str(number) in page


# --- the Rényi filter's own arithmetic ---


@pytest.mark.parametrize("event", [FULL, COINS, GaussianEvent("fixed", 10, 4, 1.0, 1.0)], ids=str)
def test_the_filters_number_is_what_one_order_of_the_list_gives(event):
    """By hand: the least over the list of D + log(1 − 1/α) − log(δ'·α)/(α − 1)."""
    delta, times = 1e-4, 7
    share = 0.01 * delta / 12
    assert len(adaptive.ORDERS) == 12
    values = []
    for order in adaptive.ORDERS:
        (divergence,) = times * renyi.curve({event: 1}, np.array([order]))
        values.append(divergence + math.log(1 - 1 / order) - math.log(share * order) / (order - 1))
    assert adaptive.by_orders({event: times}, delta) == pytest.approx(min(values), rel=1e-9)
    assert adaptive.by_orders({event: times}, delta) >= composition.epsilon({event: times}, delta)


def test_the_orders_are_near_the_best_wherever_a_cap_is_likely():
    """Within 6% of a filter that could choose its order freely, from ε = 0.1 to 20."""
    for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0):
        plan = PrivacyPlan(
            1000, 1000, "full", 1.0, 2 / 1000 / gaussian.mu_for(epsilon, 1e-4), 1, 0.1
        )
        event = GaussianEvent.of(plan)
        freely = renyi.epsilon(renyi.curve({event: 1}), 0.01 * 1e-4 / 12)
        assert freely <= adaptive.by_orders({event: 1}, 1e-4) <= 1.06 * freely


def test_nothing_costs_nothing_and_no_noise_costs_everything():
    assert adaptive.by_orders({}, 1e-5) == 0
    assert adaptive.by_orders({FULL: 0}, 1e-5) == 0
    bare = GaussianEvent("full", 10, 10, 1.0, 0.0)
    assert adaptive.by_orders({bare: 1, FULL: 1}, 1e-5) == math.inf


def test_a_plan_beyond_the_cap_leaves_no_choice_between_its_parts(strategy, tmp_path):
    """One run whose plan has both continuations: each of them fits the cap with the first release,
    but which one comes may be decided by looking, so the whole plan has to fit."""
    first, second, z = strategy
    plan = {full(first): 1, full(second): 1, coin(z): 1}
    assert composition.epsilon(plan, DELTA) > EPSILON
    with Ledger.create(tmp_path / "ledger", NAMES) as ledger:
        ledger.cap(EPSILON, DELTA)
        ledger.declare("a", plan)
        for part in (full(second), coin(z)):
            assert composition.epsilon({full(first): 1, part: 1}, DELTA) <= EPSILON
            assert "cap" in ledger.allows("a", {full(first): 1, part: 1})
