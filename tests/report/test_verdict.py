"""Verdicts as arithmetic: paired differences, luck, ties, models that diverged, one client."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pmtl.report.verdict import Paired, judge, pair

NAN = float("nan")


def verdict(losses, counts=None, **more):
    losses = {name: np.asarray(values, float) for name, values in losses.items()}
    m = next(iter(losses.values())).shape[-1]
    counts = np.ones(m, int) if counts is None else np.asarray(counts)
    return judge(losses, counts, **{"rows": "test", "cost": "It is free.", **more})


def test_the_difference_is_paired_over_clients():
    one, two = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.5, 2.4, 3.6, 4.5])
    found = pair("personal", "alone", {"personal": one, "alone": two}, np.ones(4, int))
    assert found.gain == pytest.approx(0.5)
    assert found.error == pytest.approx(np.std(two - one, ddof=1) / 2)
    assert found.luck == pytest.approx(stats.t.ppf(0.975, 3) * found.error)
    assert (found.loss, found.other_loss) == pytest.approx((2.5, 3.0))
    # Paired, it is more than luck; the clients' own spread is far larger than the difference.
    assert found.winner == "personal"
    assert stats.ttest_ind(one, two).pvalue > 0.5


@given(st.integers(2, 40), st.integers(0, 10**6), st.floats(-0.5, 0.5))
def test_more_than_luck_is_the_paired_t_test(clients, seed, shift):
    rng = np.random.default_rng(seed)
    one = rng.normal(size=clients)
    two = one + shift + rng.normal(size=clients)
    found = pair("a", "b", {"a": one, "b": two}, np.ones(clients, int))
    assert (found.winner is not None) == (stats.ttest_rel(one, two).pvalue < 0.05)
    mirrored = pair("b", "a", {"a": one, "b": two}, np.ones(clients, int))
    assert mirrored.winner == found.winner
    assert mirrored.gain == pytest.approx(-found.gain)


def test_luck_wins_rarely():
    """Of two equally good methods, one wins in about 5 of 100 comparisons."""
    rng = np.random.default_rng(1)
    wins = 0
    for _ in range(1000):
        one, two = rng.normal(size=(2, 15))
        wins += pair("a", "b", {"a": one, "b": two}, np.ones(15, int)).winner is not None
    assert wins / 1000 == pytest.approx(0.05, abs=0.025)


def test_noise_that_is_common_to_all_clients_counts_over_seeds():
    """Every seed moves all clients alike: clients agree perfectly, seeds do not."""
    two = np.tile([1.0, 1.1, 1.2], (3, 1))
    one = two - np.array([[0.5], [-0.3], [0.1]])
    found = pair("a", "b", {"a": one, "b": two}, np.ones(3, int))
    assert found.gain == pytest.approx(0.1)
    assert found.error == pytest.approx(np.std([0.5, -0.3, 0.1], ddof=1) / math.sqrt(3))
    assert found.winner is None
    assert pair("a", "b", {"a": one[:1], "b": two[:1]}, np.ones(3, int)).error == pytest.approx(0)


def test_share():
    told = verdict({"personal": [1.0, 2.0, 3.0], "alone": [1.5, 2.6, 3.4]})
    assert told.advice == "share"
    assert told.sentence.startswith(
        "Verdict: share. The personal models have a loss 0.5 (20%) lower than training alone on "
        "test rows"
    )
    assert "more than luck" in told.sentence
    assert told.sentence.endswith("It is free.")


def test_a_small_gain_is_called_small():
    alone = np.array([1.0, 2.0, 3.0])
    told = verdict({"personal": alone - 0.004, "alone": alone})
    assert told.advice == "share"
    assert "a loss 0.004 (0.2%) lower" in told.sentence
    assert "less than 1% of the loss: sharing matters little here" in told.sentence
    assert "matters little" not in verdict({"personal": alone - 0.04, "alone": alone}).sentence


def test_training_alone_that_diverged_is_no_measure():
    told = verdict({"personal": [1.0, 2.0, 3.0], "alone": [0.5, 3.0, math.inf]})
    assert told.advice == "unknown"
    assert "diverged is no measure of training alone" in told.sentence


def test_train_alone():
    told = verdict({"personal": [1.5, 2.6, 3.4], "shared": [9.0, 9.0, 9.5], "alone": [1, 2, 3]})
    assert told.advice == "alone"
    assert told.sentence.startswith(
        "Verdict: train alone. The personal models have a loss 0.5 (25%) high"
    )
    # Training alone is compared first, wherever it stands.
    assert [paired.other for paired in told.comparisons] == ["alone", "shared"]


def test_a_difference_that_may_be_luck():
    told = verdict({"personal": [1.0, 2.0, 3.0], "alone": [0.5, 3.0, 3.1]})
    assert told.advice == "either"
    assert "no difference beyond luck" in told.sentence
    assert "which may be luck" in told.sentence
    assert "cannot tell which is better, and training alone is free" in told.sentence


def test_a_tie():
    told = verdict({"personal": [1.0, 2.0, 3.0], "alone": [1.0, 2.0, 3.0]})
    assert (told.advice, told.comparisons[0].gain, told.comparisons[0].error) == ("either", 0, 0)


def test_a_shared_model_that_is_better_still_is_named():
    told = verdict({"personal": [2.0, 2.1, 2.2], "shared": [1, 1.1, 1.3], "alone": [3, 3.2, 3.1]})
    assert told.advice == "shared"
    assert told.sentence.startswith("Verdict: use the shared model.")


def test_without_training_alone_two_views_are_compared():
    told = verdict({"personal": [1.0, 2.0, 3.0], "shared": [1.5, 2.6, 3.4]}, remark="No more.")
    assert told.advice == "personal"
    assert told.sentence.startswith("Verdict: use the personal models.")
    assert "No more." in told.sentence


def test_one_client_cannot_tell():
    told = verdict({"personal": [1.0], "alone": [5.0]})
    assert told.advice == "unknown"
    assert "with a single client luck cannot be ruled out" in told.sentence
    assert told.comparisons[0].error is None


def test_one_view_cannot_be_compared():
    told = verdict({"shared": [1.0, 2.0]})
    assert told.advice == "unknown"
    assert "nothing to compare the shared model with" in told.sentence


def test_clients_without_rows_do_not_count():
    losses = {"personal": [1.0, NAN, 2.0, 3.0], "alone": [1.5, NAN, 2.6, 3.4]}
    told = verdict(losses, counts=[3, 0, 1, 2])
    assert told.comparisons[0].clients == 3
    assert told.comparisons[0].diverged == 0
    assert told.comparisons[0].gain == pytest.approx(0.5)
    # Also if something is written there.
    losses["alone"][1], losses["personal"][1] = 1e9, 0.0
    assert verdict(losses, counts=[3, 0, 1, 2]).comparisons == told.comparisons


@pytest.mark.parametrize("bad", [NAN, math.inf])
def test_models_that_diverged_do_not_win(bad):
    told = verdict({"personal": [1.0, 2.0, 3.0, bad], "alone": [1.5, 2.6, 3.4, 4.0]})
    assert told.comparisons[0].gain == pytest.approx(0.5)  # of the clients that can be compared
    assert told.comparisons[0].diverged == 1
    assert told.advice == "alone"
    assert "The personal models diverged for 1 client, left out here." in told.sentence
    other = verdict({"personal": [1.0, 2.0, 3.0, 4.0], "alone": [1.5, 2.6, 3.4, bad]})
    assert other.advice == "share"


def test_if_everything_diverged_nothing_can_be_said():
    told = verdict({"personal": [NAN, NAN], "alone": [NAN, NAN]})
    assert told.advice == "unknown"
    assert "No client has a finite loss" in told.sentence


def test_scores_that_did_the_choosing_are_marked():
    losses = {"personal": [1.0, 2.0, 3.0], "alone": [1.5, 2.6, 3.4]}
    told = verdict(losses, chosen="These rows chose.")
    assert told.chosen
    assert "These rows chose. So these scores are optimistic." in told.sentence
    assert not verdict(losses).chosen
    assert "optimistic" not in verdict(losses).sentence


def test_a_verdict_is_plain_json():
    told = verdict({"personal": [1.0, 2.0, 3.0], "alone": [1.5, 2.6, 3.4]})
    values = json.loads(json.dumps(told.to_dict()))
    assert values["advice"] == "share"
    assert values["comparisons"][0]["winner"] == "personal"
    assert values["comparisons"][0]["clients"] == 3
    assert str(told) == values["sentence"]
    assert Paired("a", "b", 3, 1.0, 2.0, 1.0, None, None).winner is None
