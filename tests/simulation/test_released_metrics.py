"""Average metrics pass the gate: bounded, of the stated sensitivity, with the stated noise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import pmtl
from pmtl.errors import PmtlError
from pmtl.privacy.grid import Grid
from pmtl.privacy.noise import seeded_source, system_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release
from pmtl.simulation.released_metrics import ReleasedMetrics, metric_bounds

M = 20
properties = settings(derandomize=True, deadline=None, max_examples=60)
BOUNDS = {"accuracy": 1.0, "loss": 3.0}
VIEWS = ("personal", "shared")


def curves(noise=0.0, views=VIEWS, bounds=BOUNDS, seed=0, hardened=False):
    clip = math.sqrt(len(views) * len(bounds)) / 2
    plan = PrivacyPlan(M, M, "full", clip, noise, 10, 1e-3)
    return ReleasedMetrics(plan, views, bounds, seeded_source(seed), hardened, None)


def values_of(matrix, there=None):
    """A matrix [M, 4] as what the clients measured."""
    there = np.ones(M, dtype=bool) if there is None else there
    halves = ((view, matrix[:, 2 * i : 2 * i + 2]) for i, view in enumerate(VIEWS))
    return {view: ({"accuracy": a[:, 0], "loss": a[:, 1]}, there) for view, a in halves}


def averages(released):
    return np.array([released[view][f"{n}_mean"] for view in VIEWS for n in BOUNDS])


def test_without_noise_they_are_the_averages_over_clients():
    matrix = np.random.default_rng(0).uniform(0, [1, 3, 1, 3], size=(M, 4))
    released = curves().release(5, values_of(matrix))
    assert averages(released) == pytest.approx(matrix.mean(axis=0))


def test_values_beyond_their_bound_count_as_the_bound():
    matrix = np.tile([2.0, 50.0, -1.0, 1.5], (M, 1))
    released = curves().release(0, values_of(matrix))
    assert averages(released) == pytest.approx([1.0, 3.0, 0.0, 1.5])


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_client_whose_values_are_no_numbers_or_that_has_no_rows_counts_as_the_middle(broken):
    matrix = np.tile([1.0, 3.0, 1.0, 3.0], (M, 1))
    there = np.ones(M, dtype=bool)
    there[3] = False
    expected = (np.array([1.0, 3, 1, 3]) * (M - 1) + np.array([0.5, 1.5, 0.5, 1.5])) / M
    assert averages(curves().release(0, values_of(matrix, there))) == pytest.approx(expected)
    matrix[7, 1] = broken
    released = averages(curves().release(0, values_of(matrix)))
    if math.isnan(broken):
        assert released == pytest.approx(expected)
    else:
        assert released == pytest.approx([1.0, 3, 1, 3])


@properties
@given(
    arrays.arrays(np.float64, (M, 4), elements=st.floats(allow_nan=True)),
    arrays.arrays(np.float64, 4, elements=st.floats(allow_nan=True)),
)
def test_one_client_moves_the_averages_by_no_more_than_is_charged(matrix, other):
    seen = []
    add = Release.add

    def spy(self, tally, clients, uploads):
        add(self, tally, clients, uploads)
        seen.append(self.average(tally)[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Release, "add", spy)
        curves().release(0, values_of(matrix))
        matrix[5] = other
        curves().release(0, values_of(matrix))
    gap = torch.linalg.vector_norm(seen[0] - seen[1])
    assert float(gap) <= 2 * 1.0 / M * (1 + 1e-9)


@pytest.mark.parametrize("hardened", [False, True])
def test_their_noise_has_the_stated_deviation(hardened):
    """1,500 releases of four values: the deviation of each within 10%, 5.5 standard errors."""
    made = curves(noise=0.01, hardened=hardened)
    matrix = np.tile([0.5, 1.5, 0.5, 1.5], (M, 1))
    drawn = np.array([averages(made.release(t, values_of(matrix))) for t in range(1500)])
    stated = [made.deviations["accuracy_mean"], made.deviations["loss_mean"]]
    assert stated == pytest.approx([0.01, 0.03])
    assert drawn.std(axis=0) == pytest.approx([0.01, 0.03, 0.01, 0.03], rel=0.1)
    assert drawn.mean(axis=0) == pytest.approx([0.5, 1.5, 0.5, 1.5], abs=5 * 0.03 / 1500**0.5)


def test_a_plan_for_fewer_values_is_refused():
    plan = PrivacyPlan(M, M, "full", 0.5, 0.1, 10, 1e-3)
    with pytest.raises(PmtlError, match="fewer values"):
        ReleasedMetrics(plan, VIEWS, BOUNDS, seeded_source(0), False, None)


class TestBounds:
    def test_a_loss_is_bounded_by_twice_that_of_guessing(self):
        assert metric_bounds("classification", 4, None)["loss"] == pytest.approx(2 * math.log(4))
        assert metric_bounds("multilabel", 5, None)["loss"] == pytest.approx(10 * math.log(2))
        assert metric_bounds("regression", 2, None) == {"loss": 2.0}
        # Numbers between −3 and 25 that are spread evenly have a variance of 28²/12.
        found = metric_bounds("regression", 1, None, (-3.0, 25.0))
        assert found == {"loss": pytest.approx(2 * 28**2 / 12)}
        assert metric_bounds("regression", 1, 9.0, (-3.0, 25.0)) == {"loss": 9.0}

    def test_it_can_be_given_but_not_nonsense(self):
        assert metric_bounds("regression", 1, 9.0) == {"loss": 9.0}
        for wrong in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(PmtlError, match="loss bound"):
                metric_bounds("classification", 2, wrong)


class TestTraining:
    """Through `pmtl.train`, in an experiment, where they can be compared with exact ones."""

    def test_with_much_budget_they_are_close_to_the_exact_averages(self, small):
        privacy = {"epsilon": 1e5, "rounds": 4, "metrics": 0.5}
        run = pmtl.train(small, privacy=privacy, local={"steps": 2}, evaluate_every=2)
        exact = run.evaluate()["validation"]
        assert [line["round"] for line in run.released()] == [2, 4]
        last = run.released()[-1]
        for view in VIEWS:
            noise = last["noise"]["accuracy_mean"]
            assert noise < 0.01
            gap = abs(last[view]["accuracy_mean"] - exact[view]["accuracy_mean"])
            assert gap < 5 * noise

    def test_they_cost_part_of_the_same_epsilon_and_the_statement_says_so(self, small):
        options = {"privacy": {"epsilon": 2.0, "rounds": 4, "metrics": 0.2}, "local": {"steps": 1}}
        run = pmtl.train(small, **options, evaluate_every=2)
        assert 1.99 < run.privacy.epsilon <= 2.0
        assert run.privacy.metrics["rounds"] == 2
        said = " ".join(str(run.privacy).split())
        assert "Average metrics of all clients were released 2 times" in said
        without = pmtl.train(small, privacy={"epsilon": 2.0, "rounds": 4}, local={"steps": 1})
        assert run.privacy.plan["noise_std"] > without.privacy.plan["noise_std"]
        assert without.privacy.metrics is None
        assert "metrics of all clients" not in str(without.privacy)

    def test_a_published_model_alone_has_one_view(self, small):
        privacy = {"epsilon": 2.0, "rounds": 2, "metrics": 0.2}
        run = pmtl.train(small, algorithm="fedavg", privacy=privacy, local={"steps": 1})
        assert set(run.released()[0]) == {"round", "shared", "noise"}

    def test_their_noise_is_not_that_of_the_models(self, small):
        """With the seed known, equal words would show; the metrics have a stream of their own."""
        federations = []

        def spy(seed, release=""):
            federations.append(release)
            return seeded_source(seed, release)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pmtl.simulation.noise_key.seeded_source", spy)
            privacy = {"epsilon": 2.0, "rounds": 2, "metrics": 0.2}
            pmtl.train(small, privacy=privacy, local={"steps": 1})
        assert len(set(federations)) == 2

    @pytest.mark.parametrize("task", ["regression", "multilabel"])
    def test_other_tasks_release_what_they_have(self, task):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(120, 3)).astype(np.float32)
        y = x[:, :1] if task == "regression" else (x > 0).astype(np.int64)
        data = pmtl.FederatedData.from_arrays(x, y, np.repeat(np.arange(12), 10), task=task)
        privacy = {"epsilon": 1e4, "rounds": 2, "metrics": 0.5}
        last = pmtl.train(data, privacy=privacy).released()[-1]
        names = {"loss_mean"} if task == "regression" else {"accuracy_mean", "loss_mean"}
        assert set(last["personal"]) == names


class TestNoise:
    """Every released number has noise of its own, exact where the run is hardened."""

    @pytest.mark.parametrize("source", [seeded_source(3), system_source], ids=["seeded", "system"])
    @pytest.mark.parametrize("hardened", [False, True])
    def test_no_two_values_and_no_two_rounds_share_it(self, source, hardened):
        """Correlations of 1,500 releases have a deviation of 0.026; 7 of them is one chance in
        10¹¹."""
        plan = PrivacyPlan(M, M, "full", 1.0, 0.01, 1500, 1e-3)
        made = ReleasedMetrics(plan, VIEWS, BOUNDS, source, hardened, None)
        matrix = np.tile([0.5, 1.5, 0.5, 1.5], (M, 1))
        drawn = np.array([averages(made.release(t, values_of(matrix))) for t in range(1500)])
        between = np.corrcoef(drawn.T) - np.eye(4)
        assert np.abs(between).max() < 7 / 1500**0.5
        for column in drawn.T:
            assert abs(np.corrcoef(column[1:], column[:-1])[0, 1]) < 7 / 1500**0.5

    def test_hardened_metrics_are_whole_steps_of_the_grid(self):
        """Whatever went in, so that no last digit tells of it; ordinary ones are not."""
        plan = PrivacyPlan(M, M, "full", 1.0, 0.01, 10, 1e-3)
        step = Grid.of(plan).step
        for hardened in (True, False):
            made = ReleasedMetrics(plan, VIEWS, BOUNDS, system_source, hardened, None)
            matrix = np.random.default_rng(0).uniform(0, [1, 3, 1, 3], size=(M, 4))
            shares = averages(made.release(0, values_of(matrix))) / [1, 3, 1, 3] - 0.5
            steps = shares * M / step
            assert (np.abs(steps - np.round(steps)).max() < 1e-3) == hardened

    def test_a_hardened_run_releases_hardened_metrics(self, small):
        privacy = {"epsilon": 2.0, "rounds": 2, "metrics": 0.3, "hardened": True}
        run = pmtl.train(small, privacy=privacy, local={"steps": 1}, evaluate_every=1)
        plan = PrivacyPlan.from_dict({**run.privacy.metrics})
        step, bounds = Grid.of(plan).step, metric_bounds("classification", 2, None)
        for line in run.released():
            for view in VIEWS:
                for name, bound in bounds.items():
                    share = line[view][f"{name}_mean"] / bound - 0.5
                    if abs(share) < 0.5:  # At the end of its range it was cut there.
                        steps = share * small.m / step
                        assert abs(steps - round(steps)) < 1e-2
