"""A client that is not in the run is answered by the shared model, or told why not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import small_federation

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


def test_a_target_in_each_clients_own_units_cannot_be_predicted_for_a_new_client():
    data = small_federation()
    numbers = pmtl.FederatedData.from_arrays(
        data.x, data.x[:, 0] * 9 + 40, np.repeat(data.clients, 14), task="regression"
    )
    run = pmtl.train(numbers, algorithm="pooling:target=own", privacy=1.0)
    with pytest.raises(pmtl.PmtlError, match="own units of the target"):
        run.predict(None, data.x)
