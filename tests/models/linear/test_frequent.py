"""What clients say of columns and classes, which weights are then shared, and what uploads hold."""

from __future__ import annotations

import pytest
import torch

from pmtl.models.linear.frequent import most_used, share_norm, use_votes
from pmtl.models.linear.solve import ClientRows


def rows(task, x, y):
    x, y = torch.tensor(x).double(), torch.tensor(y).double()
    return ClientRows(task, x, y, torch.ones(x.shape[:2]).double())


def test_a_client_says_how_much_it_uses_columns_and_how_frequent_classes_are():
    x = [[[1, 1, 0, 0], [1, 1, 2, 0]]]  # the constant; 1 in both rows; 2 in one; never
    y = [[[1, 0, 0], [1, 0, 0]]]
    said = use_votes(rows("classification", x, y))[0]
    columns, classes = said[:3] * 2**0.5, said[3:] * 2**0.5
    assert torch.allclose(columns, torch.tensor([1, 2, 0]).double() / 5**0.5)
    assert torch.allclose(classes, torch.tensor([1, 0, 0]).double())


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
@pytest.mark.parametrize("size", [0.0, 1e-9, 1.0, 1e9])
def test_what_it_says_has_at_most_norm_one(task, size):
    random = torch.Generator().manual_seed(0)
    x = size * torch.rand(4, 6, 5, generator=random)
    y = (
        torch.ones(4, 6, 2)
        if task == "multilabel"
        else torch.eye(2).expand(4, 3, 2, 2).flatten(1, 2)
    )
    said = use_votes(rows(task, x.tolist(), y.tolist()))
    assert (said.norm(dim=1) <= 1 + 1e-9).all()


def test_weights_of_the_columns_and_classes_in_most_use_are_shared():
    use = torch.tensor([0.3, -0.1, 0.2, 0.6, 0.1])  # three columns; two classes
    # Products: column 0: .18, .03; column 1 is lost in noise; column 2: .12, .02.
    assert most_used(use[None], 2, 2).tolist() == [2, 6]  # after the two intercepts
    assert most_used(use[None], 2, 3).tolist() == [2, 3, 6]
    assert len(most_used(use[None], 2, 100)) == 6, "all there are"


def test_outputs_of_numbers_count_alike():
    assert most_used(torch.tensor([[0.1, 0.3, 0.2, -5.0]]), 1, 2, True).tolist() == [2, 3]
    use = torch.tensor([0.1, 0.3, 0.2, -5.0, 5.0])
    assert most_used(use[None], 2, 4, True).tolist() == [4, 5, 6, 7]


def test_among_equal_weights_the_first_are_taken():
    """A server and its sites must choose the same."""
    assert most_used(torch.zeros(1, 1002), 2, 5).tolist() == [2, 3, 4, 5, 6]


def test_intercepts_take_no_more_than_their_part_of_the_norm():
    moves = torch.tensor([[30.0, 40.0, 0.3, 0.4], [0.1, 0.0, 0.1, 0.0]])
    clipped = share_norm(moves, 2)
    assert torch.allclose(clipped[0], torch.tensor([0.3, 0.4, 0.3, 0.4]))
    assert torch.equal(clipped[1], moves[1]), "short moves stay as they are"
    assert float(share_norm(100 * moves, 2).norm(dim=1).max()) <= 1 + 1e-6
