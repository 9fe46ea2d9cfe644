"""How a client weighs its own rows, the vote, and training alone."""

from __future__ import annotations

import math

import pytest
import torch

from pmtl.models.linear.candidates import (
    AROUND,
    CELLS,
    VOTE_ROWS,
    choose,
    mixture,
    own_losses,
    units_of_words,
    vote_rows,
)
from pmtl.models.linear.solve import ClientRows

EQUAL = torch.zeros(1, CELLS, dtype=torch.float64)
ROWS = torch.tensor([[8.0]])


def rows(task, n=8, outputs=1):
    one = torch.ones(1, n, 1, dtype=torch.float64)
    return ClientRows(task, one, one.expand(-1, -1, outputs), one[..., 0])


def test_without_any_knowledge_training_alone_has_odds_of_e_to_one():
    parts = choose(EQUAL, ROWS, EQUAL, 0.1)
    assert float(parts[0, -1]) == pytest.approx(math.e / (1 + math.e))
    assert torch.allclose(parts[0, :-1], parts[0, 0].expand(CELLS - 1))


def test_a_clear_vote_for_a_cell_beats_own_rows_that_say_little():
    vote = EQUAL.clone()
    vote[0, 4] = -0.5
    parts = choose(EQUAL, ROWS, vote, 1e-3)
    assert parts[0].argmax() == 4
    assert parts[0, 4] > 0.99


def test_a_vote_that_is_lost_in_noise_changes_nothing():
    vote = torch.randn(1, CELLS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(choose(EQUAL, ROWS, vote, 10.0), choose(EQUAL, ROWS, EQUAL, 10.0))


def test_many_own_rows_beat_the_vote():
    """The vote counts like two hundred rows."""
    vote, losses = EQUAL.clone(), EQUAL.clone()
    vote[0, 4], losses[0, -1] = -0.1, -0.1
    assert choose(losses, torch.tensor([[400.0]]), vote, 0.0)[0].argmax() == CELLS - 1
    assert choose(losses, torch.tensor([[50.0]]), vote, 0.0)[0].argmax() == 4


@pytest.mark.parametrize("noise", [0.0, 1e-4, 0.005, 0.05, 3.0])
def test_the_noise_of_a_vote_is_worth_at_most_one_nat(noise):
    assert vote_rows(noise) * noise <= 1 + 1e-12
    assert vote_rows(noise) <= VOTE_ROWS
    assert vote_rows(noise) == VOTE_ROWS or vote_rows(noise) * noise == pytest.approx(1)


def test_losses_of_numbers_do_not_depend_on_their_unit():
    losses = torch.rand(1, len(AROUND) + 5, generator=torch.Generator().manual_seed(1)).double()
    mine, alone = own_losses(losses, ROWS, rows("regression"))
    scaled, scaled_alone = own_losses(1e4 * losses, ROWS, rows("regression"))
    assert torch.allclose(alone, scaled_alone)
    assert torch.allclose(scaled - mine, torch.full_like(mine, math.log(1e4) / 2))


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_training_alone_is_a_mixture_of_its_penalties(task):
    """Its loss lies between the best and the mean; what it takes does not depend on others."""
    losses = torch.rand(1, len(AROUND) + 5, generator=torch.Generator().manual_seed(2)).double()
    mine, alone = own_losses(losses, ROWS, rows(task))
    assert mine.shape == (1, CELLS)
    assert float(alone.sum()) == pytest.approx(1)
    assert alone[0].argmax() == losses[0, len(AROUND) :].argmin()
    others = torch.cat([torch.rand(1, len(AROUND)).double(), losses[:, len(AROUND) :]], 1)
    assert torch.equal(own_losses(others, ROWS, rows(task))[1], alone)
    if task == "classification":
        inside = losses[0, len(AROUND) :]
        assert inside.min() < mine[0, -1] < inside.mean()


def test_a_mixture_of_models_is_their_weighted_mean():
    models = torch.arange(12.0).reshape(1, 3, 2, 2)
    mean = mixture(models, torch.tensor([[0.5, 0.5, 0.0]]))
    assert torch.equal(mean, models[:, :2].mean(1))


def test_words_are_in_units_of_a_clients_usual_word():
    """Penalties follow the size of what a row has, and do not depend on how many words are used."""
    x = torch.zeros(3, 8, 6, dtype=torch.float64)
    x[:, :, 0] = 1
    x[0, 0, 1], x[0, 3, 2], x[0, 3, 5] = 2.0, 2.0, -2.0  # three columns are used, in 8 rows
    x[1, :, 1:] = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))  # a dense table
    mask = torch.ones(3, 8, dtype=torch.float64)  # and a client without any features
    rows = ClientRows("regression", x, x[..., :1], mask, words=True)
    units = units_of_words(rows)
    assert units[0].tolist() == [1.0, *[0.03 * 4] * 5]
    assert units[1].tolist() == units[2].tolist() == [1.0] * 6
