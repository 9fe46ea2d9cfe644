"""A client that is not in the run is answered by the shared model, or told why not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pmtl
from pmtl.data.scaling import scale_by_client
from pmtl.data.splits import Rows
from pmtl.errors import PmtlWarning
from pmtl.prediction.models import MOST_ROWS, rows_for_scaling


def trained(data, **options):
    settings = {"algorithm": "pmtl", "privacy": {"noise": 0.1, "rounds": 2}, **options}
    return pmtl.train(data, **settings)


def raw_federation(bounds=None, scale=None):
    """Features far from size 1, which clients have to scale."""
    random = np.random.default_rng(3)
    x = random.normal(size=(12 * 20, 3)) * [100, 0.001, 1] + [500, 0, 0.2]
    x = x.astype(np.float32)
    client = np.repeat([f"h{k:02d}" for k in range(12)], 20)
    y = (x[:, 0] > 500).astype(int)
    return pmtl.FederatedData.from_arrays(x, y, client, bounds=bounds, scale=scale), x


def test_without_scaling_a_new_client_gets_the_answers_of_the_shared_model(small, tmp_path):
    run = trained(small, out=tmp_path / "run")
    x = small.x[:7]
    module = run.shared
    expected = module(torch.from_numpy(x)).softmax(-1).detach().numpy()
    assert (run.predict_proba(None, x) == expected).all()
    assert (run.predict(None, x) == expected.argmax(1)).all()
    again = pmtl.load_run(tmp_path / "run", data=small)
    assert (again.predict_proba(None, x) == expected).all()


def test_a_new_client_scales_its_rows_like_the_others():
    """What it is told is what a client with these training rows would be told."""
    data, x = raw_federation(scale="client")
    run = trained(data)
    mine = x[:20]
    everything = Rows(np.arange(20), np.array([0, 20]))
    scaled, _ = scale_by_client(mine, np.zeros(20, np.int64), everything)
    weights = run.shared_for("h00")[1]
    tensor = torch.from_numpy(scaled)
    expected = weights(tensor).softmax(-1).detach().numpy()
    np.testing.assert_allclose(run.predict_proba(None, mine), expected, rtol=1e-6)


def test_a_large_new_client_is_scaled_by_some_of_its_rows():
    """Whatever period its rows have, all kinds of rows are among them."""
    data, x = raw_federation(scale="client")
    run = trained(data)
    assert rows_for_scaling(MOST_ROWS).tolist() == list(range(MOST_ROWS))
    chosen = rows_for_scaling(48_000)
    assert len(set(chosen.tolist())) == MOST_ROWS
    assert (np.diff(chosen) > 0).all()
    assert np.bincount(chosen % 240, minlength=240).min() > 0
    many, few = np.tile(x, (200, 1)), np.tile(x, (8, 1))
    found, expected = (run.predict_proba(None, rows)[:240] for rows in (many, few))
    assert np.abs(found - expected).max() < 0.03


def test_with_public_bounds_one_row_is_enough(recwarn):
    data, x = raw_federation(bounds=[(0, 1000), (-0.01, 0.01), (-5, 5)])
    run = trained(data)
    recwarn.clear()  # What training warns of.
    alone = np.concatenate([run.predict_proba(None, row[None]) for row in x[:9]])
    np.testing.assert_allclose(alone, run.predict_proba(None, x[:9]), rtol=1e-6)
    assert [w for w in recwarn if w.category is PmtlWarning] == []


def test_few_rows_are_warned_about():
    data, x = raw_federation(scale="client")
    run = trained(data)
    with pytest.warns(PmtlWarning, match="3 are too few"):
        run.predict(None, x[:3])


def test_a_fine_tuned_result_answers_with_the_shared_model_too(small):
    run = trained(small)
    tuned = pmtl.finetune(run, "vanilla", steps=2)
    assert (tuned.predict_proba(None, small.x) == run.predict_proba(None, small.x)).all()
    assert (tuned.predict_proba("site-03", small.x) != run.predict_proba("site-03", small.x)).any()


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [("local", "Nothing was shared"), ("naive_joint", "12 models for different clients")],
)
def test_where_no_model_can_answer_it_says_why(small, algorithm, said):
    run = trained(small, algorithm=algorithm)
    with pytest.raises(pmtl.PmtlError, match=said):
        run.predict(None, small.x)


def numbers(level: float) -> pmtl.FederatedData:
    """Sixty clients whose targets have a deviation of about 5 around the level."""
    random = np.random.default_rng(1)
    x = random.normal(size=(60 * 20, 3)).astype(np.float32)
    y = level + x @ [4.0, -3.0, 1.0] + random.normal(size=len(x))
    return pmtl.FederatedData.from_arrays(x, y, np.repeat(np.arange(60), 20), task="regression")


def pooled(data, target: str, epsilon: float, **options) -> pmtl.Run:
    return pmtl.train(data, algorithm=f"pooling:target={target}", privacy=epsilon, **options)


@pytest.mark.parametrize("level", [-70.0, 250.0])
def test_numbers_are_predicted_for_a_new_client_where_their_level_is_published(level, tmp_path):
    data = numbers(level)
    run = pooled(data, "release", 50.0, out=tmp_path / "run")
    for found in (run, pmtl.load_run(tmp_path / "run", data=data)):
        low, high = found.facts.target_spans
        assert low < level < high
        with pytest.warns(PmtlWarning, match=f"between {low:,g} and {high:,g}"):
            answers = found.predict(None, data.x)
        errors = answers[:, 0] - data.y
        assert np.abs(errors).mean() < 3


def test_a_level_beyond_a_turn_is_where_the_warning_says_it_cannot_be():
    run = pooled(numbers(2000.0), "release", 50.0)
    low, high = run.facts.target_spans
    assert not low < 2000 < high
    assert (2000 - (low + high) / 2) / (high - low) == pytest.approx(
        round((2000 - (low + high) / 2) / (high - low)), abs=0.05
    )


@pytest.mark.parametrize("target", ["own", "release"])
def test_a_target_whose_size_is_not_public_cannot_be_predicted_for_a_new_client(target):
    """With ε = 0.05 the votes for the size are lost in noise."""
    data = numbers(40.0)
    run = pooled(data, target, 0.05)
    assert not run.facts.shows_model
    with pytest.raises(pmtl.PmtlError, match="own units of the target"):
        run.predict(None, data.x)


def test_with_public_bounds_of_the_target_there_is_no_doubt(recwarn):
    data = numbers(2000.0)
    client = np.repeat(np.arange(60), 20)
    bounded = pmtl.FederatedData.from_arrays(
        data.x, data.y, client, bounds={"target": (1980, 2020)}
    )
    run = pmtl.train(bounded, privacy=50.0)
    errors = run.predict(None, data.x)[:, 0] - data.y
    assert np.abs(errors).mean() < 3
    assert [w for w in recwarn if "between" in str(w.message)] == []
