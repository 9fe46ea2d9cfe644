"""One round's losses, all points at once, are those that dp-accounting computes one by one."""

from __future__ import annotations

import math

import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution

from pmtl.privacy.accounting import poisson

KINDS = {1: NeighboringRelation.ADD_OR_REMOVE_ONE, 2: NeighboringRelation.REPLACE_ONE}


@pytest.mark.parametrize("sensitivity", [1, 2])
@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("z", [0.3, 1.0, 30.0])
def test_the_grid_is_that_of_the_library(z, rate, sensitivity):
    tail, delta = poisson.log_tail(1e-5, 50), 1e-5
    width = 2 * poisson.reach(z, rate, tail, sensitivity) / 2000
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        z,
        value_discretization_interval=width,
        log_mass_truncation_bound=tail,
        sampling_prob=rate,
        neighboring_relation=KINDS[sensitivity],
    )
    ours = poisson.one_round(z, rate, width, tail, sensitivity)
    for epsilon in (0.0, width / 3, 0.1, 1.0, 5.0, math.inf):
        wanted = theirs.get_delta_for_epsilon(epsilon)
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(wanted, rel=1e-9, abs=1e-13)
    together = [losses.self_compose(50).get_epsilon_for_delta(delta) for losses in (ours, theirs)]
    assert together[0] == pytest.approx(together[1], rel=1e-7)


def test_a_million_rounds_need_no_number_of_a_million_digits():
    """A small grid that is kept as a dictionary would be raised to that power first."""
    assert type(poisson.dense(0.1, -1, 1, [0.2, 0.1, 0.05])).__name__ == "DensePLDPmf"
