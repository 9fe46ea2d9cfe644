"""A path grows while moves point along it, and not by luck, nor past where they lead."""

from __future__ import annotations

import pytest
import torch

from pmtl.models.linear.step_size import WeightPath


def begin(step=0.1, numbers=6):
    zero = torch.zeros(1, dtype=torch.float64)
    return WeightPath(torch.zeros(1, numbers).double(), zero + step, zero, zero)


def walk(goal, rounds, step=0.1, noise=0.0, seed=0):
    """One client that moves to its goal, at most a step at a time."""
    random = torch.Generator().manual_seed(seed)
    path = begin(step, goal.shape[1])
    for round in range(rounds):
        move = (goal - path.weights) / path.step
        move = move / move.norm().clamp(min=1)
        move = move + noise * torch.randn(move.shape, generator=random, dtype=torch.float64)
        path = path.advance(move, move.numel(), noise, step, round == rounds - 1)
    return path


@pytest.mark.parametrize("size", [0.05, 1.0, 5.0, 20.0])
def test_it_gets_to_a_goal_that_is_far_beyond_its_first_steps(size):
    goal = torch.ones(1, 6).double() * size / 6**0.5
    path = walk(goal, 12)
    assert (path.weights - goal).norm() < 0.25 * size
    assert (float(path.length) > 1.3) == (size > 0.1), "it grows only where it has to"


def test_noise_alone_does_not_make_it_grow():
    """By luck one of seven later moves is along the path by two deviations about once in six."""
    zero = torch.zeros(1, 10).double()
    steps = [float(walk(zero, 8, noise=1.0, seed=seed).length) / 0.8 for seed in range(200)]
    assert sum(step > 1.01 for step in steps) < 60
    assert sum(step > 2.5 for step in steps) < 10


def test_it_doubles_where_moves_still_add_seven_tenths():
    one = torch.zeros(1, 6).double()
    one[0, 0] = 1.0
    path = begin().advance(one, 6, 0.0, 0.1, False)
    assert float(path.weights[0, 0]) == pytest.approx(0.1), "the first move has nothing before it"
    onward, not_so = (path.advance(part * one, 6, 0.0, 0.1, False) for part in (0.75, 0.65))
    assert float(onward.weights[0, 0]) == pytest.approx(2 * 0.175)
    assert float(onward.step) == pytest.approx(0.2)
    assert float(onward.length) == pytest.approx(0.4)
    assert float(onward.squares) == pytest.approx(4 * 2 * 0.01)
    assert float(not_so.weights[0, 0]) == pytest.approx(0.165)
    assert float(not_so.step) == pytest.approx(0.1)
    last = path.advance(0.75 * one, 6, 0.0, 0.1, True)
    assert float(last.weights[0, 0]) == pytest.approx(0.175), "nothing can check it any more"


def test_a_component_has_to_be_clear_of_its_noise():
    one = torch.zeros(1, 6).double()
    one[0, 0] = 1.0
    path = begin().advance(one, 6, 0.3, 0.1, False)
    assert float(path.advance(0.65 * one, 6, 0.3, 0.1, False).step) == pytest.approx(0.2)
    assert float(path.advance(0.59 * one, 6, 0.3, 0.1, False).step) == pytest.approx(0.1)


def test_steps_get_shorter_where_moves_do_not_agree_but_not_shorter_than_at_first():
    far = begin(step=0.4)
    short = torch.full((1, 6), 0.05).double()
    path = far.advance(short, 6, 0.0, 0.1, False)
    assert float(path.step) == pytest.approx(0.2)
    for _ in range(3):
        path = path.advance(-short, 6, 0.0, 0.1, False)
    assert float(path.step) == pytest.approx(0.1)
