"""The embedded generator: what α, β, noise and seed promise."""

from __future__ import annotations

import numpy as np
import pytest

from pmtl.data import load, synthetic
from pmtl.errors import PmtlError


def fits(data):
    """Every client's least-squares model on all its rows."""
    fitted = []
    for k in range(data.m):
        index = np.concatenate(
            [data.rows(split).of(k) for split in ("train", "validation", "test")]
        )
        x, y = data.gather(index)
        fitted.append(np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0])
    return np.array(fitted)


def test_the_default_is_the_demo():
    data = load("synthetic")
    assert (data.m, data.input_shape, data.outputs) == (500, (10,), 4)
    counts = sum(data.rows(split).counts for split in ("train", "validation", "test"))
    assert counts.min() >= 5
    assert 17 <= np.median(counts) <= 23
    assert np.bincount(data.y, minlength=4).min() > 100
    assert data.source == "synthetic"


def test_same_seed_same_federation():
    assert synthetic(seed=3).fingerprint() == load("synthetic:seed=3").fingerprint()
    assert synthetic(seed=3).fingerprint() != synthetic(seed=4).fingerprint()


def test_more_clients_leave_the_first_ones_alone():
    few, many = synthetic(clients=7), synthetic(clients=30)
    assert many.select(few.clients).fingerprint() == few.fingerprint()


def test_alpha_goes_from_one_model_to_unrelated_ones():
    options = {"task": "regression", "features": 4, "clients": 300, "noise": 0.0, "beta": 0.0}
    assert np.ptp(fits(synthetic(alpha=0, **options)), axis=0).max() < 1e-4
    for alpha in (0.25, 4.0):
        # Deviations of a model's 5 entries from W_0 are N(0, alpha): 1500 draws, 5 sigma.
        variance = fits(synthetic(alpha=alpha, **options)).var(axis=0).mean()
        assert abs(variance / alpha - 1) < 5 * np.sqrt(2 / 1500)


def test_beta_moves_the_inputs_and_alpha_does_not():
    options = {"clients": 300, "samples": 200}
    for beta in (0.0, 1.0):
        data = synthetic(beta=beta, **options)
        means = [data.gather(data.rows("train").of(k))[0].mean(axis=0) for k in range(data.m)]
        spread = (np.array(means) ** 2).sum(axis=1).mean()
        assert abs(spread - 4 * beta) < 0.5
    assert (synthetic(alpha=0).x == synthetic(alpha=2).x).all()


def test_the_scale_of_features_does_not_depend_on_their_number():
    for features in (1, 20, 500):
        x = synthetic(features=features, beta=0).x
        assert abs((x**2).sum(axis=1).mean() - 4) < 0.5


def test_noise_blurs_labels():
    clean, noisy = synthetic(noise=0), synthetic(noise=1)
    assert (clean.x == noisy.x).all()
    assert 0.1 < (clean.y != noisy.y).mean() < 0.6


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("clients=0", "clients of synthetic.*at least 1"),
        ("classes=1", "classes of synthetic.*at least 2"),
        ("alpha=-1", "alpha of synthetic"),
        ("alpha=nan", "alpha of synthetic"),
        ("noise=inf", "noise of synthetic"),
        ("task=poetry", "no task 'poetry'"),
        ("clients=many", "must be a whole number"),
        ("client=3", "'client'.*'clients'"),
    ],
)
def test_bad_options_are_refused(option, words):
    with pytest.raises(PmtlError, match=words):
        load(f"synthetic:{option}")


class TestClusters:
    """Clients of one cluster have a model in common, and clusters have not."""

    def test_one_cluster_is_what_it_was(self):
        one, plain = synthetic(clients=9, clusters=1), synthetic(clients=9)
        assert np.array_equal(one.x, plain.x)
        assert np.array_equal(one.y, plain.y)

    def test_models_are_shared_inside_and_not_across(self):
        data = synthetic(clients=60, clusters=3, alpha=0.0, beta=0.0, samples=60, noise=0.0)
        rows = data.rows("train")
        cluster = np.array([int(client) % 3 for client in data.clients])

        def agreement(mine: int, theirs: int) -> float:
            """How well one cluster's linear fit answers another's rows."""

            def of(which: int) -> tuple[np.ndarray, np.ndarray]:
                chosen = np.concatenate(
                    [
                        rows.order[rows.offsets[k] : rows.offsets[k + 1]]
                        for k in np.flatnonzero(cluster == which)
                    ]
                )
                x, y = data.gather(chosen)
                return np.column_stack([x, np.ones(len(x))]), y

            x, y = of(mine)
            fit = np.linalg.lstsq(x, np.eye(4)[y], rcond=None)[0]
            other, answers = of(theirs)
            return float(((other @ fit).argmax(axis=1) == answers).mean())

        for mine in range(3):
            assert agreement(mine, mine) > 0.75
            assert agreement(mine, (mine + 1) % 3) < agreement(mine, mine) - 0.2

    def test_at_least_one(self):
        with pytest.raises(PmtlError, match="clusters of synthetic must be at least 1"):
            synthetic(clusters=0)


def test_scale_is_an_option_since_runs_write_it_into_their_source():
    data = load("synthetic:clients=5,scale=client")
    assert data.scaling is not None
    assert data.fingerprint() == load("synthetic:clients=5").scaled().fingerprint()
    assert load(data.source).fingerprint() == data.fingerprint()
    with pytest.raises(PmtlError, match="There is no scale 'all'"):
        load("synthetic:scale=all")
