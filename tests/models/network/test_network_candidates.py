"""Which candidate a client takes, from its own held-out losses and the vote."""

import pytest
import torch

from pmtl.models.network.candidates import CELLS, EACH, HANDICAP, PRIOR, choose, pick

ONE = torch.ones(1, 1, dtype=torch.float64)
BOTH_PRIORS = torch.tensor(2 * PRIOR, dtype=torch.float64)


def losses(**better):
    made = torch.zeros(1, CELLS, dtype=torch.float64)
    for cell, nats in better.items():
        made[0, int(cell.removeprefix("cell"))] -= nats
    return made - BOTH_PRIORS  # so that only what is given makes a difference, with one row


@pytest.mark.parametrize(("lead", "takes"), [(HANDICAP - 0.1, EACH + 3), (HANDICAP + 0.1, 3)])
def test_without_a_vote_the_shared_weights_have_to_beat_training_alone(lead, takes):
    own = losses(**{"cell3": lead + 1, f"cell{EACH + 3}": 1.0})
    cells = choose(own, ONE, torch.zeros(1, CELLS, dtype=torch.float64), 0.1, ONE)
    assert cells.tolist() == [[takes, EACH + 3]]


def test_a_clear_vote_decides_where_a_client_knows_nothing_and_not_where_it_has_many_rows():
    vote = torch.cat([torch.full((1, EACH), -0.5), torch.full((1, EACH), 0.5)], 1).double()
    own = losses(**{f"cell{EACH + 3}": 1.0})
    assert choose(own, ONE, vote, 0.01, ONE)[0, 0] < EACH
    own = own + BOTH_PRIORS
    assert choose(own, 1000 * ONE, vote, 0.01, ONE)[0, 0] == EACH + 3


def test_a_vote_that_is_lost_in_its_noise_changes_nothing():
    vote = torch.cat([torch.full((1, EACH), -0.5), torch.full((1, EACH), 0.5)], 1).double()
    own = losses(**{f"cell{EACH + 3}": 1.0})
    assert choose(own, ONE, vote, 10.0, ONE)[0, 0] == EACH + 3


def test_each_client_gets_its_own_cells():
    table = torch.arange(2 * CELLS).reshape(2, CELLS)
    assert pick(table, torch.tensor([[0, 1], [2, CELLS - 1]])).tolist() == [
        [0, 1],
        [CELLS + 2, 2 * CELLS - 1],
    ]
