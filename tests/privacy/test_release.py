"""The gate keeps its one bound whatever clients send: one of them moves the average by 2γ/q."""

import math

import numpy as np
import pytest
import torch
from drawn_noise import seeded_noise
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pmtl.algorithms import build_algorithm
from pmtl.algorithms.clustered import ClusteredPMTL
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release, clip
from pmtl.simulation import LocalTraining, simulate

INF, NAN = float("inf"), float("nan")
properties = settings(derandomize=True, deadline=None, max_examples=150)

# Numbers that uploads should not be made of, and ordinary ones.
NASTY = [NAN, INF, -INF, 1e38, -3.4e38, 1e300, -1.7e308, 5e-324, 1e-45, 0.0, -0.0, 1.0]
numbers = st.one_of(st.sampled_from(NASTY), st.floats(width=64), st.floats(-10, 10))
narrow = st.one_of(st.sampled_from([NAN, INF, -INF, 1e38, 1e-45]), st.floats(width=32))
clip_norms = st.one_of(
    st.sampled_from([1e-30, 1e-3, 0.5, 1.0, 1e30]), st.floats(1e-6, 1e6, exclude_min=True)
)


def uploads_of(elements, dtype, least=1):
    shape = st.tuples(st.integers(least, 6), st.integers(1, 9))
    return shape.flatmap(lambda size: arrays.arrays(dtype, size, elements=elements))


def no_noise(round, shape):
    raise AssertionError("no noise was asked for")


def make_gate(clients=4, cohort=None, sampling=None, clip_norm=1.0, sigma=0.0, blocks=None, **more):
    cohort = cohort or clients
    sampling = sampling or ("full" if cohort == clients else "poisson")
    plan = PrivacyPlan(clients, cohort, sampling, clip_norm, sigma, 1000, 1e-3)
    blocks = np.zeros(clients, dtype=np.int64) if blocks is None else np.asarray(blocks)
    return Release(plan, blocks, more.get("noise", no_noise if sigma == 0 else seeded_noise(3)))


def total(gate, uploads, clients=None, round=0):
    """A tally with these uploads in it."""
    uploads = torch.as_tensor(uploads)
    tally = gate.open(round, torch.zeros(gate.billboard.size, uploads.shape[1]))
    gate.add(tally, np.arange(len(uploads)) if clients is None else np.array(clients), uploads)
    return tally


def length(vector):
    """The exact L2 norm, rounded once."""
    return math.hypot(*np.asarray(vector, dtype=np.float64).tolist())


class TestClipping:
    @properties
    @given(st.one_of(uploads_of(numbers, np.float64), uploads_of(narrow, np.float32)), clip_norms)
    def test_no_clipped_upload_is_longer_than_the_clip_norm_whatever_it_holds(self, rows, gamma):
        clipped = clip(torch.from_numpy(rows), gamma)
        assert clipped.dtype == torch.float64
        for before, after in zip(rows, clipped.numpy(), strict=True):
            assert np.isfinite(after).all()
            assert length(after) <= gamma
            if not np.isfinite(before).all():
                assert not after.any()

    @properties
    @given(uploads_of(st.floats(-10, 10), np.float64), clip_norms)
    def test_an_upload_that_is_short_enough_is_left_as_it_is_and_others_keep_their_direction(
        self, rows, gamma
    ):
        clipped = clip(torch.from_numpy(rows), gamma).numpy()
        for before, after in zip(rows, clipped, strict=True):
            if length(before) < gamma * (1 - 1e-6):
                assert np.array_equal(before, after)
            elif length(before) > gamma:
                assert length(after) == pytest.approx(gamma, rel=1e-6)
                expected = before * (gamma / length(before))
                np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-9 * gamma)

    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    @pytest.mark.parametrize("gamma", [1.0, INF])
    def test_one_entry_that_is_not_finite_makes_the_whole_upload_zero(self, value, gamma):
        rows = torch.ones(3, 4)
        rows[1, 2] = value
        clipped = clip(rows, gamma)
        assert not clipped[1].any()
        assert clipped[0].any()
        assert torch.equal(clipped[0], clipped[2])

    def test_finite_entries_whose_float32_norm_overflows_are_clipped_and_not_dropped(self):
        rows = torch.full((1, 4), 3e38)
        assert torch.isinf(torch.linalg.vector_norm(rows))
        assert clip(rows, 2.0)[0].tolist() == pytest.approx([1, 1, 1, 1], rel=1e-6)
        wide = torch.tensor([[1.7e308, -1.7e308]], dtype=torch.float64)
        assert clip(wide, 1.0)[0].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-6)

    def test_a_zero_upload_stays_zero(self):
        assert torch.equal(clip(torch.zeros(2, 3), 1.0), torch.zeros(2, 3, dtype=torch.float64))

    def test_an_upload_one_unit_in_the_last_place_too_long_is_shortened(self):
        for gamma in (1.0, 0.1, 3.0):
            row = torch.tensor([[math.nextafter(gamma, INF), 0.0]], dtype=torch.float64)
            assert length(clip(row, gamma)[0]) <= gamma

    @pytest.mark.parametrize("value", [0.3, 0.7])
    def test_rounding_does_not_lift_the_longest_vectors_above_the_clip_norm(self, value):
        """5,000,500 parameters: the errors of so long a sum are larger than one rounding."""
        rows = torch.full((1, 5_000_500), value, dtype=torch.float64)
        rows[0, 0] = 1.0
        clipped = clip(1000 * rows, 1.0)[0].numpy()
        square = math.fsum((clipped[1:2] ** 2).tolist() * 5_000_499) + clipped[0] ** 2
        assert (clipped[1:] == clipped[1]).all()
        assert math.sqrt(square) <= 1.0

    def test_without_a_clip_norm_finite_uploads_pass_unchanged(self):
        rows = torch.tensor([[1e30, -5.0], [0.25, 0.0]], dtype=torch.float64)
        assert torch.equal(clip(rows, INF), rows)

    def test_the_whole_vector_is_clipped_and_not_its_parts(self):
        rows = torch.tensor([[3.0, 4.0]])
        assert clip(rows, 1.0)[0].tolist() == pytest.approx([0.6, 0.8], rel=1e-6)


class TestSensitivity:
    @properties
    @given(st.data())
    def test_one_clients_upload_moves_the_average_by_at_most_two_gamma_over_q(self, data):
        rows = data.draw(uploads_of(numbers, np.float64, least=2))
        m = len(rows)
        gamma = data.draw(st.sampled_from([0.01, 1.0, 50.0]))
        cohort = data.draw(st.integers(1, m))
        gate = make_gate(m, cohort, "poisson", gamma)
        self.check(data, gate, rows, gamma, np.full(m, float(cohort)))

    @properties
    @given(st.data())
    def test_with_clusters_it_moves_its_own_block_by_two_gamma_over_q_b_and_no_other(self, data):
        rows = data.draw(uploads_of(numbers, np.float64, least=2))
        m = len(rows)
        gamma = data.draw(st.sampled_from([0.01, 1.0, 50.0]))
        cohort = data.draw(st.integers(1, m))
        assigned = data.draw(st.lists(st.integers(0, 2), min_size=m, max_size=m))
        blocks = np.unique(assigned, return_inverse=True)[1]
        gate = make_gate(m, cohort, "poisson", gamma, blocks=blocks)
        expected = cohort * np.bincount(blocks)[blocks] / m
        self.check(data, gate, rows, gamma, expected)

    def check(self, data, gate, rows, gamma, expected_cohort):
        m, size = rows.shape
        victim = data.draw(st.integers(0, m - 1))
        replaced = rows.copy()
        replaced[victim] = data.draw(arrays.arrays(np.float64, size, elements=numbers))
        one = gate.average(total(gate, rows)).numpy()
        two = gate.average(total(gate, replaced)).numpy()
        block = gate.billboard.blocks[victim]
        bound = 2 * gamma / expected_cohort[victim]
        assert length(one[block] - two[block]) <= bound * (1 + 1e-9)
        others = np.arange(len(one)) != block
        assert np.array_equal(one[others], two[others])

    def test_the_bound_is_reached_so_nothing_smaller_would_do(self):
        gate = make_gate(4, 2, "poisson", 0.5)
        one = gate.average(total(gate, [[1e9, 0.0]] + [[0.1, 0.1]] * 3))
        two = gate.average(total(gate, [[-1e9, 0.0]] + [[0.1, 0.1]] * 3))
        assert length((one - two)[0]) == pytest.approx(2 * 0.5 / 2, rel=1e-6)


class TestAveraging:
    UPLOADS = torch.tensor([[0.5, 0.0], [0.0, 0.25], [-0.25, 0.5], [0.125, 0.125]])

    def test_equal_weights_and_the_planned_divisor(self):
        gate = make_gate(4)
        expected = self.UPLOADS.double().sum(dim=0) / 4
        assert torch.equal(gate.average(total(gate, self.UPLOADS))[0], expected)

    def test_a_nan_upload_counts_as_zero_and_the_divisor_is_unchanged(self):
        gate = make_gate(4)
        broken = self.UPLOADS.clone()
        broken[2] = NAN
        expected = self.UPLOADS[[0, 1, 3]].double().sum(dim=0) / 4
        assert torch.equal(gate.average(total(gate, broken))[0], expected)

    def test_when_clients_drop_out_the_divisor_stays_q(self):
        gate = make_gate(10, 4, "fixed")
        expected = self.UPLOADS[:2].double().sum(dim=0) / 4
        assert torch.equal(gate.average(total(gate, self.UPLOADS[:2], [7, 3]))[0], expected)

    def test_when_more_come_than_expected_the_divisor_stays_q(self):
        gate = make_gate(10, 2, "poisson")
        expected = self.UPLOADS.double().sum(dim=0) / 2
        assert torch.equal(gate.average(total(gate, self.UPLOADS, [0, 2, 5, 9]))[0], expected)

    def test_a_client_that_sends_again_counts_once(self):
        gate = make_gate(4)
        tally = total(gate, self.UPLOADS)
        gate.add(tally, np.array([2, 1]), torch.full((2, 2), 100.0))
        assert torch.equal(tally.sum[0], self.UPLOADS.double().sum(dim=0))

    def test_a_client_that_is_named_twice_in_one_delivery_counts_once(self):
        gate = make_gate(4)
        tally = total(gate, [[0.5, 0.0], [0.0, 0.5], [0.25, 0.25]], [1, 1, 2])
        assert tally.sum[0].tolist() in ([0.75, 0.25], [0.25, 0.75])
        assert length(tally.sum[0]) <= 2

    def test_a_second_delivery_adds_the_new_clients_only(self):
        gate = make_gate(4)
        tally = total(gate, self.UPLOADS[:2], [0, 1])
        gate.add(tally, np.array([1, 3]), self.UPLOADS[[1, 3]])
        assert torch.equal(tally.sum[0], self.UPLOADS[[0, 1, 3]].double().sum(dim=0))

    def test_a_cluster_is_divided_by_the_cohort_expected_of_it(self):
        gate = make_gate(4, 2, "poisson", blocks=[0, 0, 0, 1])
        average = gate.average(total(gate, self.UPLOADS))
        assert gate.billboard.size == 2
        assert torch.equal(average[0], self.UPLOADS[:3].double().sum(dim=0) / 1.5)
        assert torch.equal(average[1], self.UPLOADS[3].double() / 0.5)

    def test_long_vectors_are_clipped_in_parts_of_the_memory_with_the_same_sum(self, monkeypatch):
        gate = make_gate(4, clip_norm=0.3, blocks=[1, 0, 1, 0])
        whole = total(gate, self.UPLOADS).sum
        monkeypatch.setattr("pmtl.privacy.release.WORKSPACE", 16)
        assert torch.allclose(total(gate, self.UPLOADS).sum, whole, rtol=0, atol=1e-15)

    def test_a_gate_for_other_clients_or_with_an_empty_block_is_refused(self):
        with pytest.raises(PmtlError, match="protects 4 clients, but 5"):
            make_gate(4, blocks=[0] * 5)
        with pytest.raises(PmtlError, match="has no client"):
            make_gate(4, blocks=[0, 0, 2, 2])


class TestNoise:
    SIZE = 1_000_000  # the deviation of a variance estimate is then 0.14%

    def published(self, gate, round=0, shared=None):
        shared = torch.zeros(gate.billboard.size, self.SIZE) if shared is None else shared
        return gate.publish(gate.open(round, shared), shared)

    @pytest.mark.parametrize(("cohort", "sampling"), [(50, "full"), (5, "poisson")])
    def test_its_variance_on_the_mean_is_sigma_squared_within_one_percent(self, cohort, sampling):
        gate = make_gate(50, cohort, sampling, clip_norm=3.0, sigma=0.2)
        noise = self.published(gate).double()
        assert float((noise**2).mean()) == pytest.approx(0.04, rel=0.01)
        assert abs(float(noise.mean())) < 5 * 0.2 / self.SIZE**0.5

    def test_on_a_clusters_average_it_is_larger_as_its_cohort_is_smaller(self):
        gate = make_gate(4, 2, "poisson", sigma=0.2, blocks=[0, 0, 0, 1])
        noise = self.published(gate).double()
        # σ·q/q_b with q_b = 1.5 and 0.5: one noise multiplier for both.
        assert float((noise[0] ** 2).mean()) == pytest.approx((0.2 * 2 / 1.5) ** 2, rel=0.01)
        assert float((noise[1] ** 2).mean()) == pytest.approx((0.2 * 2 / 0.5) ** 2, rel=0.01)
        assert abs(float((noise[0] * noise[1]).mean())) < 5 * 0.2667 * 0.8 / self.SIZE**0.5

    def test_it_is_fresh_in_every_round_and_the_same_when_a_round_is_recomputed(self):
        gate = make_gate(4, sigma=1.0)
        rounds = [self.published(gate, t).double()[0] for t in range(3)]
        for one, two in ((0, 1), (0, 2), (1, 2)):
            assert abs(float((rounds[one] * rounds[two]).mean())) < 5 / self.SIZE**0.5
        assert torch.equal(self.published(make_gate(4, sigma=1.0), 1).double()[0], rounds[1])

    def test_it_differs_between_seeds(self):
        one, two = (make_gate(4, sigma=1.0, noise=seeded_noise(seed)) for seed in (1, 2))
        product = (self.published(one).double() * self.published(two).double()).mean()
        assert abs(float(product)) < 5 / self.SIZE**0.5

    def test_it_is_drawn_once_a_round_for_the_whole_billboard(self):
        asked = []

        def counted(round, shape):
            asked.append((round, shape))
            return torch.ones(shape, dtype=torch.float64)

        gate = make_gate(4, sigma=0.5, blocks=[0, 0, 1, 1], noise=counted)
        shared = torch.zeros(2, 3, dtype=torch.float64)
        after = gate.publish(total(gate, torch.zeros(4, 3), round=7), shared)
        assert asked == [(7, (2, 3))]
        assert torch.equal(after, torch.ones(2, 3, dtype=torch.float64))

    def test_without_noise_in_the_plan_none_is_drawn(self):
        gate = make_gate(4)  # its noise function fails when called
        shared = torch.ones(1, 2, dtype=torch.float64)
        assert torch.equal(gate.publish(gate.open(0, shared), shared), shared)

    def test_one_sum_is_never_published_twice(self):
        gate = make_gate(4, sigma=1.0)
        shared = torch.zeros(1, 3)
        tally = gate.open(5, shared)
        gate.publish(tally, shared)
        with pytest.raises(PmtlError, match="Round 5 was published already"):
            gate.publish(tally, shared)

    def test_narrow_weights_are_rounded_once_after_wide_noise(self):
        """Near 1 float32 has steps of 1.2e-7: the update and the noise are each too small to be
        seen, and together they are not."""
        gate = make_gate(1, sigma=1.0, noise=lambda t, s: torch.full(s, 4e-8, dtype=torch.float64))
        shared = torch.ones(1, 2)
        after = gate.publish(total(gate, torch.full((1, 2), 4e-8)), shared)
        assert after.dtype == torch.float32
        assert torch.equal(after, torch.full((1, 2), 1 + 2.0**-23))
        assert torch.equal(shared + 4e-8, shared)

    def test_wide_noise_reaches_narrow_weights_bit_for_bit(self):
        gate = make_gate(3, sigma=0.3)
        shared = torch.randn(1, 500, generator=torch.Generator().manual_seed(0))
        expected = shared.double() + 0.3 * seeded_noise(3)(0, (1, 500))
        assert torch.equal(gate.publish(gate.open(0, shared), shared), expected.float())


def small_federation(algorithm="pmtl:lam=0.5", order=None, seed=0, **changes):
    """Eight clients; `order` permutes the blocks of rows in which the file lists them."""
    rng = np.random.default_rng(4)
    sizes = [4, 7, 12, 5, 9, 3, 8, 6]
    parts = [(rng.normal(size=(n, 3)), rng.integers(0, 3, n)) for n in sizes]
    order = range(8) if order is None else order
    x = np.concatenate([parts[k][0] for k in order])
    y = np.concatenate([parts[k][1] for k in order])
    owner = np.concatenate([np.full(sizes[k], f"client {k}") for k in order])
    data = FederatedData.from_arrays(x, y, owner, outputs=3)
    plan = PrivacyPlan(8, changes.pop("cohort", 4), "poisson", 0.2, 0.05, 6, 1e-3)
    model = build_model("mlp:hidden=5", data.input_shape, data.outputs, data.task, seed)
    local = LocalTraining(epochs=2, batch=4)
    return simulate(data, model, build_algorithm(algorithm), plan, local, seed, **changes)


CLUSTERED = ClusteredPMTL(clusters={f"client {k}": str(k % 3) for k in range(8)})


@pytest.mark.parametrize("algorithm", ["pmtl", "fedavg", "ditto", CLUSTERED, "naive_joint"])
@pytest.mark.parametrize("order", [[7, 6, 5, 4, 3, 2, 1, 0], [3, 0, 6, 1, 7, 5, 2, 4]])
def test_permuting_the_clients_of_a_file_changes_not_one_bit(algorithm, order):
    ends = []
    for listing in (None, order):
        federation = small_federation(algorithm=algorithm, order=listing)
        progress = federation.start()
        for _ in federation.rounds(progress):
            pass
        ends.append((progress.shared, progress.store.vectors))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
    assert not torch.equal(ends[0][0], federation.start().shared)


def test_a_round_for_which_nobody_was_drawn_publishes_pure_noise():
    federation = small_federation(cohort=1, seed=1, noise=seeded_noise(1))
    progress = federation.start()
    empty = [t for t in range(6) if len(federation.server.sampler.draw(t)) == 0]
    assert empty
    for t in range(6):
        shared, owned = progress.shared.clone(), progress.store.vectors.clone()
        report = federation.advance(progress)
        if t in empty:
            noise = 0.05 * seeded_noise(1)(t, tuple(shared.shape))
            assert torch.equal(progress.shared, (shared.double() + noise).float())
            assert torch.equal(progress.store.vectors, owned)
            assert report.cohort == 0
            assert report.train_loss is None
    assert progress.round == 6


def test_a_client_with_a_poisoned_model_leaves_the_billboard_finite_and_the_others_alone():
    """One client's weights become NaN: its upload counts as zero, and nobody else can tell."""
    runs = {}
    for poisoned in (False, True):
        federation = small_federation(cohort=8)
        progress = federation.start()
        federation.advance(progress)
        if poisoned:
            poison = torch.full((1, federation.model.size), NAN)
            progress.store.scatter(np.array([2]), poison)
        federation.advance(progress)
        runs[poisoned] = progress
    assert torch.isfinite(runs[True].shared).all()
    others = [k for k in range(8) if k != 2]
    assert torch.equal(runs[True].store.vectors[others], runs[False].store.vectors[others])
    gap = (runs[True].shared.double() - runs[False].shared.double())[0]
    assert 0 < length(gap) <= 0.2 / 8 * (1 + 1e-5)


def test_a_client_sampled_for_the_first_time_inherits_nothing_from_another():
    """Its first round depends on the others through the billboard only: with the same published
    vector and quite different others, it ends with the same bits."""
    federation = small_federation()
    cohorts = [set(federation.server.sampler.draw(t).tolist()) for t in range(6)]
    t, newcomer = next(
        (t, k) for t in range(1, 6) for k in cohorts[t] if not any(k in c for c in cohorts[:t])
    )
    ends = []
    for disturbed in (False, True):
        federation = small_federation()
        progress = federation.start()
        while progress.round < t:
            federation.advance(progress)
        assert torch.equal(progress.store.vectors[newcomer], federation.model.start())
        if disturbed:
            others = np.array([k for k in range(8) if k != newcomer])
            progress.store.scatter(others, progress.store.gather(others) + 1.0)
        federation.advance(progress)
        ends.append(progress.store.vectors[newcomer])
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], federation.model.start())


@pytest.mark.parametrize("size", [7, 1000, 200_000])
def test_a_clipped_upload_does_not_depend_on_the_others(size):
    """To the last bit, with two threads: torch splits one long sum between them, but not two."""
    rows = torch.randn(5, size, generator=torch.Generator().manual_seed(2))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = clip(rows, 0.5)
        for place in range(5):
            assert torch.equal(clip(rows[place : place + 1], 0.5)[0], together[place])
            assert torch.equal(clip(rows[: place + 1], 0.5)[place], together[place])
    finally:
        torch.set_num_threads(threads)
