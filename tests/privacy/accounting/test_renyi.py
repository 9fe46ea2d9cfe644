"""Rényi divergences: against 40 digits, against sums over all cases, against sharper accounting."""

import logging
import math

import mpmath
import numpy as np
import pytest
from at_length import at_length
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pmtl.privacy.accounting import composition, gaussian, renyi
from pmtl.privacy.accounting.renyi import ORDERS
from pmtl.privacy.ledger.events import GaussianEvent


def event(sampling, z, cohort=50, clients=100):
    cohort = clients if sampling == "full" else cohort
    return GaussianEvent(sampling, clients, cohort, 1.0, z / cohort)


def precise_log_moment(order, z, rate, mirrored):
    """log ∫ P^λ Q^(1−λ) of the two mixtures, or with P and Q exchanged: a sum over points a
    fortieth of a deviation apart, in 40 digits."""
    with mpmath.workdps(40):
        step = mpmath.mpf(z) / 40

        def mixture(x, side):
            return (1 - rate) * mpmath.npdf(x, 0, z) + rate * mpmath.npdf(x, side, z)

        side = -1 if mirrored else 1
        points = (side * k * step for k in range(-480, int((2 * order + 12 * z) / step)))
        powers = (mixture(x, side) ** order * mixture(x, -side) ** (1 - order) for x in points)
        return float(mpmath.log(mpmath.fsum(powers) * step))


def log_moment(order, z, rate):
    """The same as `renyi` computes it."""
    return renyi.secret(z, rate, np.array([order]))[0] * (order - 1)


@pytest.mark.parametrize(
    ("order", "z", "rate"),
    at_length(
        [
            (1.01, 1.0, 0.1),
            (2.0, 0.5, 0.3),
            (5.5, 10.0, 0.5),
            (40.0, 10.0, 0.02),
            (30.0, 2.0, 0.99),
            (40.0, 0.5, 0.3),
            (64.0, 10.0, 0.95),
        ],
        lambda case: case[0] < 30,
    ),
)
def test_secret_coins_to_twelve_digits_and_never_too_little(order, z, rate):
    value = log_moment(order, z, rate)
    for mirrored in (False, True):
        exact = precise_log_moment(order, z, rate, mirrored)
        assert exact - 1e-16 <= value <= exact + 1e-12 * (1 + exact)


def test_known_coins_are_the_average_over_how_often_a_client_took_part():
    z, rate, rounds = 3.0, 0.3, 6
    times = np.arange(rounds + 1)
    chances = stats.binom(rounds, rate).pmf(times)
    curve = renyi.curve({event("fixed", z, 30): rounds})
    for order, value in list(zip(ORDERS, curve, strict=True))[150:330:20]:
        moment = chances @ np.exp((order - 1) * order * times * (2 / z) ** 2 / 2)
        assert value == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.floats(0.05, 1e5), st.integers(1, 99))
def test_secret_coins_cost_less_than_known_ones_and_those_less_than_being_in(z, cohort):
    secret, known = (renyi.curve({event(kind, z, cohort): 1}) for kind in ("poisson", "fixed"))
    certain = renyi.curve({event("full", z): 1})
    assert (secret >= 0).all()
    assert (secret <= known).all()
    # z is made of σ, q and γ, and may differ in its last digit between the events.
    assert (known <= certain * (1 + 1e-12)).all()
    assert certain == pytest.approx(ORDERS * (2 / z) ** 2 / 2)
    # Rényi divergences grow with the order; bounds that sag would betray a wrong one.
    assert (np.diff(secret) >= -1e-9 * secret[1:] - 1e-10).all()


def test_releases_add_up_and_nothing_hidden_is_infinite():
    groups = {event("full", 4.0): 3, event("poisson", 5.0): 2, event("fixed", 6.0): 1}
    parts = [count * renyi.curve({one: 1}) for one, count in groups.items()]
    assert renyi.curve(groups) == pytest.approx(sum(parts))
    assert not renyi.curve({}).any()
    assert np.isinf(renyi.curve({event("full", 4.0): 1, event("poisson", 0.0): 1})).all()


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_the_conversion_is_that_of_dp_accounting(delta):
    logging.getLogger("absl").setLevel(logging.ERROR)
    from dp_accounting import rdp

    curve = renyi.curve({event("full", 10.0): 30})
    expected, _ = rdp.compute_epsilon(ORDERS, curve, delta)
    assert renyi.epsilon(curve, delta) == pytest.approx(expected, rel=1e-6)
    # Back again, and never below the exact value, which Rényi cannot reach.
    assert math.exp(renyi.log_delta(curve, np.array([expected]))[0]) == pytest.approx(delta, 1e-6)
    exact = gaussian.epsilon(2 * math.sqrt(30) / 10, delta)
    assert exact < renyi.epsilon(curve, delta) < 1.3 * exact


def test_a_finer_list_of_orders_would_gain_next_to_nothing():
    orders = 1 + np.geomspace(1e-3, 1e6, 200_001)
    for mu in (0.05, 1.0, 6.0):
        lines = orders * mu**2 / 2 + np.log1p(-1 / orders)
        finest = (lines - (math.log(1e-5) + np.log(orders)) / (orders - 1)).min()
        assert renyi.epsilon(ORDERS * mu**2 / 2, 1e-5) == pytest.approx(finest, rel=2e-4)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize(("z", "rounds"), [(1.0, 3), (10.0, 100), (60.0, 1000)])
def test_epsilon_by_way_of_renyi_stays_above_the_sharper_accountant(sampling, z, rounds):
    events = {event(sampling, z, 20): rounds}
    sharp = composition.epsilon(events, 1e-5)
    assert sharp * (1 - 1e-3) < renyi.epsilon(renyi.curve(events), 1e-5) < 1.6 * sharp


@pytest.mark.parametrize(
    "z",
    [
        30.0,
        pytest.param(300.0, marks=pytest.mark.thorough),
        pytest.param(3000.0, marks=pytest.mark.thorough),
    ],
)
def test_it_is_never_too_little_where_rounding_is_all_there_is(z):
    """Moments so near 1 that their logarithms are the rounding of a sum."""
    for order in (1.001, 1.003, 1.01, 1.03):
        for rate in (0.003, 0.02, 0.1):
            value = log_moment(order, z, rate)
            assert value >= precise_log_moment(order, z, rate, mirrored=False)
