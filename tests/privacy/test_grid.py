"""The hardened gate: whole numbers between clip and release, and a true Gaussian all the same."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pmtl.errors import PmtlError
from pmtl.privacy.grid import Grid, GridNoise
from pmtl.privacy.noise import seeded_source, system_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release, clip

properties = settings(derandomize=True, deadline=None, max_examples=100)
numbers = st.one_of(
    st.sampled_from([float("nan"), float("inf"), 1e308, 5e-324, 0.0, -0.0]),
    st.floats(width=64),
    st.floats(-10, 10),
)
gammas = st.floats(1e-6, 1e6, exclude_min=True)
multipliers = st.floats(1e-3, 1e6)


def plan_for(z, gamma=1.0, clients=4, cohort=None, rounds=1000):
    cohort = cohort or clients
    sampling = "full" if cohort == clients else "poisson"
    return PrivacyPlan(clients, cohort, sampling, gamma, z * gamma / cohort, rounds, 1e-3)


def make_gate(plan, blocks=None, source=None, charge=None):
    blocks = np.zeros(plan.clients, dtype=np.int64) if blocks is None else np.array(blocks)
    return Release(plan, blocks, GridNoise(Grid.of(plan), source or seeded_source(3)), charge)


@properties
@given(multipliers, gammas)
def test_the_grid_follows_from_the_plan(z, gamma):
    grid = Grid.of(plan_for(z, gamma))
    assert 1 <= grid.bits <= 24
    assert grid.noise <= 2**26
    assert grid.step * grid.noise == pytest.approx(z * gamma, rel=1e-12)
    assert grid.step * 2**grid.bits == gamma


@properties
@given(
    arrays.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 8)), elements=numbers),
    multipliers,
    gammas,
)
def test_no_upload_on_the_grid_is_longer_than_the_clip_norm_in_exact_arithmetic(rows, z, gamma):
    grid = Grid.of(plan_for(z, gamma))
    steps = grid.snap(clip(torch.from_numpy(rows), gamma))
    assert steps.dtype == torch.int64
    for row in steps.tolist():
        assert sum(n * n for n in row) <= 4**grid.bits
        length = sum(Fraction(n) ** 2 for n in row) * Fraction(grid.step) ** 2
        assert length <= Fraction(gamma) ** 2


@properties
@given(
    arrays.arrays(np.float64, st.tuples(st.just(3), st.integers(1, 8)), elements=st.floats(-1, 1)),
    st.floats(0.01, 4),
)
def test_cutting_to_the_grid_moves_a_coordinate_by_less_than_a_step_towards_zero(rows, z):
    grid = Grid.of(plan_for(z))
    clipped = clip(torch.from_numpy(rows), 1.0)
    back = grid.snap(clipped) * grid.step
    assert ((clipped - back).abs() < grid.step * (1 + 1e-9)).all()
    assert (back.abs() <= clipped.abs() * (1 + 1e-12)).all()


def test_a_row_that_reaches_the_grid_too_long_counts_as_zero():
    grid = Grid.of(plan_for(1.0))
    steps = grid.snap(torch.tensor([[1.5, 0.0], [0.6, 0.8]], dtype=torch.float64))
    assert steps[0].tolist() == [0, 0]
    assert steps[1].any()


@pytest.mark.parametrize(
    "row",
    [
        [1e300, 0.0],
        [-1e300, 1e300],
        [float("nan"), 0.1],
        [float("inf"), 0.1],
        [2.0**40, 2.0**40],  # the squares' sum is a multiple of 2⁶⁴
        [1.0] * 2**16,  # and so it is here, though no single square is large
    ],
    ids=["huge", "opposite", "nan", "infinite", "long", "wide"],
)
def test_so_does_one_whose_whole_numbers_would_overflow(row):
    """The grid's own check does not lean on the clip before it."""
    grid = Grid.of(plan_for(1.0))
    assert grid.bits == 24
    assert not grid.snap(torch.tensor([row], dtype=torch.float64)).any()


@pytest.mark.parametrize("plan", [plan_for(0.0), PrivacyPlan(4, 4, "full", math.inf, 1.0, 5, 0.1)])
def test_a_plan_without_privacy_cannot_be_hardened(plan):
    with pytest.raises(PmtlError, match="not private"):
        Grid.of(plan)


def test_a_plan_that_is_all_noise_is_refused():
    with pytest.raises(PmtlError, match="nothing would be learned"):
        Grid.of(plan_for(1e9))


class TestGate:
    def test_the_variance_of_what_is_published_is_the_plans_within_one_percent(self):
        for blocks, cohort in ([0] * 50, 50), ([0] * 50, 5), ([0] * 30 + [1] * 20, 5):
            plan = plan_for(2.0, 3.0, 50, cohort)
            gate = make_gate(plan, blocks)
            shared = torch.zeros(gate.billboard.size, 1_000_000, dtype=torch.float64)
            noise = gate.publish(gate.open(0, shared), shared)
            for block, row in enumerate(noise):
                share = blocks.count(block) / 50
                expected = (plan.noise_std / share) ** 2
                assert float((row**2).mean()) == pytest.approx(expected, rel=0.01)

    def test_it_publishes_what_the_ordinary_gate_would_but_for_the_noise(self):
        rows = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
        plan = plan_for(1e-3)
        shared = torch.ones(1, 50, dtype=torch.float64)
        gate = make_gate(plan)
        tally = gate.open(0, shared)
        gate.add(tally, np.arange(4), rows)
        expected = 1 + clip(rows, 1.0).mean(dim=0)
        assert torch.allclose(gate.publish(tally, shared)[0], expected, atol=3e-3)
        assert torch.allclose(gate.average(tally)[0], expected - 1, atol=1e-6)
        half = make_gate(plan)
        tally = half.open(0, shared)
        half.add(tally, np.arange(4), rows)
        assert torch.allclose(
            half.publish(tally, shared, lambda w, u: w + 0.5 * u)[0], (expected + 1) / 2, atol=3e-3
        )

    def test_everything_published_lies_on_one_grid_whatever_went_in(self):
        """The floating-point channel is that the set of possible outputs depends on the inputs.
        Here every output is a whole number of steps over the divisor."""
        plan = plan_for(3.0, 0.7, 4)
        grid = Grid.of(plan)
        for seed in range(3):
            rows = torch.randn(4, 200, generator=torch.Generator().manual_seed(seed))
            gate = make_gate(plan, source=system_source)
            shared = torch.zeros(1, 200, dtype=torch.float64)
            tally = gate.open(0, shared)
            gate.add(tally, np.arange(4), rows)
            assert tally.sum.dtype == torch.int64
            steps = gate.publish(tally, shared) * 4 / grid.step
            assert float((steps - steps.round()).abs().max()) < 1e-3  # of some 10⁷

    def test_noise_made_for_another_plan_is_refused(self):
        noise = GridNoise(Grid.of(plan_for(3.0)), seeded_source(0))
        with pytest.raises(PmtlError, match="another plan"):
            Release(plan_for(2.0), np.zeros(4, dtype=np.int64), noise)


def test_a_row_a_little_too_long_counts_as_zero():
    """Nothing but whole numbers of a length that was checked in whole numbers may be summed."""
    grid = Grid.of(plan_for(1.0))
    rows = [[1.0000001, 0.0], [1.2, 0.0], [0.8, 0.8], [1.0, 0.0], [1 / 3, 0.2]]
    steps = grid.snap(torch.tensor(rows, dtype=torch.float64))
    assert steps.dtype == torch.int64
    assert not steps[:3].any()
    assert steps[3].tolist() == [2**24, 0]
    assert steps[4].tolist() == [2**24 // 3, int(0.2 * 2**24)]
