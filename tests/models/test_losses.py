"""What is counted of a model's answers."""

from __future__ import annotations

import pytest
import torch

from pmtl.models import metric_names, row_metrics


def test_tags_are_hit_by_the_highest_score_and_recalled_by_the_five_highest():
    scores = torch.tensor(
        [[9.0, 8, 7, 6, 5, 4, 3], [3.0, 4, 5, 6, 7, 8, 9], [9.0, 8, 7, 6, 5, 4, 3]]
    )
    tags = torch.tensor([[1, 0, 0, 0, 0, 0, 1], [0, 1, 1, 0, 1, 0, 0], [0] * 7])
    counts = row_metrics("multilabel", scores, tags)
    # The first row's best tag is one of its tags, though not the only one; the second row's is not.
    assert counts["accuracy"].tolist() == [1, 0, 0]
    assert counts["recall_at_5"].tolist() == pytest.approx([1 / 2, 2 / 3, 0])
    assert metric_names("multilabel") == ("loss", "accuracy", "recall_at_5")
