"""Models as distributions: how far apart they are, and what they draw."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmtl.models import draw_targets, row_divergences, row_nll

TASKS = ("classification", "multilabel", "regression")
logits = st.lists(st.floats(-30, 30), min_size=3, max_size=3)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@given(logits, logits)
@pytest.mark.parametrize("task", TASKS)
def test_the_divergence_is_symmetric_and_zero_only_where_answers_agree(task, one, other):
    a, b = tensor(one), tensor(other)
    there, back = row_divergences(task, a, b), row_divergences(task, b, a)
    assert torch.allclose(there, back, rtol=1e-12, atol=1e-15)
    assert there >= -1e-15
    assert row_divergences(task, a, a) == 0
    assert row_divergences(task, a, a + tensor([0.5, 0.0, 0.0])) > 0


def test_it_is_about_probabilities_and_not_about_logits():
    a = tensor([[1.0, 2.0, -1.0]])
    assert row_divergences("classification", a, a + 7) == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("task", TASKS)
def test_certain_models_have_finite_divergences_and_derivatives(task):
    a = tensor([800.0, -800.0, 0.0]).requires_grad_()
    apart = row_divergences(task, a, tensor([-800.0, 800.0, 0.0]))
    apart.backward()
    assert torch.isfinite(apart)
    assert torch.isfinite(a.grad).all()


@pytest.mark.parametrize("task", TASKS)
def test_near_each_other_it_is_half_of_what_fisher_says(task):
    """KL(w‖w+d) ≈ ½ dᵀFd, with F the variance of the derivative of −log p at the outputs."""
    a, step = tensor([0.3, -0.4, 0.9]), 1e-4 * tensor([1.0, -2.0, 0.5])
    p = a.softmax(-1)
    fisher = {
        "classification": torch.diag(p) - torch.outer(p, p),
        "multilabel": torch.diag(a.sigmoid() * (1 - a.sigmoid())),
        "regression": torch.eye(3, dtype=torch.float64),
    }[task]
    exact = (step @ fisher @ step) / 2
    assert row_divergences(task, a, a + step) == pytest.approx(float(exact), rel=1e-3)


def test_draws_have_the_models_frequencies():
    """Twenty thousand draws, within five standard deviations."""
    n = 20_000
    chance = torch.rand(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a = tensor([0.3, -0.4, 0.9]).expand(n, 3)
    classes = torch.bincount(draw_targets("classification", a, chance[:, :1]), minlength=3) / n
    labels = draw_targets("multilabel", a, chance).mean(0)
    assert (classes - a[0].softmax(-1)).abs().max() < 5 * 0.5 / n**0.5
    assert (labels - a[0].sigmoid()).abs().max() < 5 * 0.5 / n**0.5
    numbers = draw_targets("regression", a, chance) - a
    assert numbers.mean(0).abs().max() < 5 / n**0.5
    assert (numbers.var(0) - 1).abs().max() < 5 * (2 / n) ** 0.5


def test_the_ends_of_the_unit_interval_can_be_drawn_with():
    ends = torch.tensor([[0.0], [1.0]])
    a = torch.tensor([[0.1, 0.2, 0.3]] * 2)
    assert draw_targets("classification", a, ends).tolist() == [0, 2]
    assert torch.isfinite(draw_targets("regression", a, ends.expand(2, 3))).all()


def test_a_surprise_is_minus_the_logarithm_of_a_probability():
    a = tensor([[0.3, -0.4, 0.9]])
    target = torch.tensor([1])
    exact = -torch.distributions.Categorical(logits=a).log_prob(target)
    assert torch.allclose(row_nll("classification", a, target), exact)
    y = tensor([[1.0, 0.0, 2.0]])
    normal = -torch.distributions.Normal(a, 1.0).log_prob(y).sum(-1)
    constant = 3 * 0.5 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    assert torch.allclose(row_nll("regression", a, y), normal - constant)
