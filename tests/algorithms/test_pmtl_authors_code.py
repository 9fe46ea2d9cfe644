"""Where the authors' published code differs from Algorithm 1, the paper's way is taken.

Each test computes the number of both, shows that they differ, and finds the paper's.
"""

import numpy as np
import pytest
import torch
import transcription as paper

from pmtl.algorithms import PMTL, FedAvg
from pmtl.data import SPLITS, FederatedData
from pmtl.models import build_model
from pmtl.privacy.accounting import accountant
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, evaluate, simulate

LAM, LR, STEPS = 0.8, 0.25, 3


def no_noise(round, shape):
    return torch.zeros(shape, dtype=torch.float64)


def linear(data, algorithm, plan, local, start=None, noise=no_noise, seed=0):
    model = build_model("linear", data.input_shape, data.outputs, data.task, seed)
    if start is not None:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(torch.tensor(start), model.module.parameters())
    return simulate(data, model, algorithm, plan, local, seed, dtype=torch.float64, noise=noise)


def still(round, shape):
    """A push on the weights in the first round only, and none on the intercept."""
    push = torch.zeros(shape, dtype=torch.float64)
    if round == 0:
        push[0] = torch.tensor([3.0, -4.0, 0.0])
    return push


@pytest.fixture
def pulled():
    """One client whose loss is flat in its weights: nothing moves them but the regulariser.

    The noise of round 0 carries the published mean away from the client's own start; round 1 is
    then a pure pull, in three local steps. Returns (own before, shared, own after, shared after).
    """
    data = FederatedData.from_arrays(
        np.zeros((9, 2)), np.zeros(9, np.float32), ["a"] * 9, ["train"] * 9, validation=0.0
    )
    plan = PrivacyPlan(1, 1, "full", 100.0, 1.0, 2, 1e-3)
    local = LocalTraining(steps=STEPS, batch=3, lr=LR)
    federation = linear(data, PMTL(lam=LAM), plan, local, [1.0, 2.0, 0.0], still)
    progress = federation.start()
    federation.advance(progress)
    own, shared = progress.store.vectors[0].numpy().copy(), progress.shared[0].numpy()
    np.testing.assert_array_equal(own, [1, 2, 0])
    np.testing.assert_array_equal(shared, [4, -2, 0])
    federation.advance(progress)
    return own, shared, progress.store.vectors[0].numpy(), progress.shared[0].numpy()


def test_1_the_regulariser_is_squared_and_acts_at_every_local_step(pulled):
    own, shared, after, _ = pulled
    gap = own - shared
    squared_every_step = shared + (1 - LR * LAM) ** STEPS * gap
    # The authors: the gradient of λ‖w − w̃‖, and after the first mini-batch w̃ is an alias of w.
    unsquared_once = own - LR * LAM * gap / np.linalg.norm(gap)
    squared_once = own - LR * LAM * gap
    unsquared_every_step = own - STEPS * LR * LAM * gap / np.linalg.norm(gap)
    np.testing.assert_allclose(after, squared_every_step, atol=1e-12)
    for other in (unsquared_once, squared_once, unsquared_every_step):
        assert np.abs(after - other).max() > 0.1


def test_2_the_upload_is_after_minus_before_and_not_after_minus_shared(pulled):
    own, shared, after, shared_after = pulled
    np.testing.assert_allclose(shared_after, shared + (after - own), atol=1e-12)
    authors = shared + (after - shared)
    assert np.abs(shared_after - authors).max() > 1


@pytest.mark.parametrize("algorithm", [PMTL(lam=0.0), FedAvg()], ids=["pmtl", "fedavg"])
def test_3_a_client_with_a_hundred_times_the_rows_moves_the_average_no_further(algorithm):
    rows = [1, 100]
    data = FederatedData.from_arrays(
        np.zeros((101, 1)),
        np.repeat([1.0, -1.0], rows).astype(np.float32),
        np.repeat(["small", "large"], rows),
        np.full(101, "train"),
        validation=0.0,
    )
    plan = PrivacyPlan(2, 2, "full", 0.3, 0.0, 1, 1e-3)
    federation = linear(data, algorithm, plan, LocalTraining(steps=1, batch=0, lr=0.25))
    progress = federation.start()
    federation.advance(progress)
    # Each pulls the intercept by 2·lr = 0.5 its own way, clipped to 0.3.
    equal, by_rows = (0.3 - 0.3) / 2, (1 * 0.3 - 100 * 0.3) / 101
    assert progress.shared[0, 1] == pytest.approx(equal, abs=1e-12)
    assert abs(by_rows - equal) > 0.29
    # By rows, the large client alone would move the average by more than γ/q.
    assert plan.clip_norm / plan.cohort < 100 * 0.3 / 101


@pytest.fixture
def strangers():
    """Twelve clients, of whom two are drawn a round: some come late, some never."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 2))
    owner = np.repeat(np.arange(12), 10)
    y = (x @ rng.normal(size=2) + rng.normal(size=12)[owner]).astype(np.float32)
    data = FederatedData.from_arrays(x, y, owner, np.full(120, "train"), validation=0.0)
    plan = PrivacyPlan(12, 2, "fixed", 0.5, 0.1, 6, 1e-3)
    local = LocalTraining(steps=2, batch=0, lr=0.1)
    start = [0.3, -0.2, 0.7]
    return linear(data, PMTL(lam=LAM), plan, local, start, noise=None, seed=4)


def trained_from(federation, k, begin, shared):
    """Client k's round in NumPy, had it begun from `begin`."""
    x, y = federation.data.gather(federation.data.rows("train").of(k))

    def gradient(w):
        return paper.squared_gradient(w, x, y[:, None])

    local = federation.sites.local
    return paper.descend(begin, [gradient] * local.steps, local.lr, lambda w: LAM * (w - shared))


def test_4_a_client_sampled_for_the_first_time_begins_from_the_common_start(strangers):
    progress = strangers.start()
    start = strangers.model.start()
    seen, late = set(), 0
    for t in range(strangers.plan.rounds):
        cohort = set(strangers.server.sampler.draw(t).tolist())
        shared = progress.shared[0].numpy()
        before = progress.store.vectors.clone()
        strangers.advance(progress)
        for k in cohort - seen if seen else ():
            late += 1
            assert torch.equal(before[k], start)
            ours = trained_from(strangers, k, start.numpy(), shared)
            np.testing.assert_allclose(progress.store.vectors[k].numpy(), ours, atol=1e-12)
            # The authors: from whatever weights the client trained before this one had.
            for other in seen:
                theirs = trained_from(strangers, k, before[other].numpy(), shared)
                assert np.abs(theirs - ours).max() > 1e-3
        seen |= cohort
    assert late > 3


def test_4_a_client_that_was_never_sampled_holds_exactly_the_common_start(strangers):
    progress = strangers.start()
    drawn = set()
    for t, _ in enumerate(strangers.rounds(progress)):
        drawn.update(strangers.server.sampler.draw(t).tolist())
    never = sorted(set(range(12)) - drawn)
    assert len(never) >= 2
    for k in range(12):
        same = torch.equal(progress.store.vectors[k], strangers.model.start())
        assert same == (k in never)
    assert not torch.equal(progress.shared[0], strangers.model.start())


@pytest.mark.parametrize("clients", [205, 400])
def test_5_epsilon_of_the_papers_own_draw_is_at_least_twice_what_its_authors_state(clients):
    plan = PrivacyPlan(clients, 100, "fixed", 1.0, 0.1, 100, 1 / clients)
    report = accountant.report(plan)
    authors = report["also"]["authors"]
    assert authors == pytest.approx({205: 1.25, 400: 0.62}[clients], abs=0.01)
    assert report["also"]["outsiders"] > 2 * authors
    assert report["epsilon"] == report["also"]["colluders"] > 3 * authors


def test_5_a_poisson_plan_draws_poisson_cohorts_and_a_fixed_one_does_not():
    keys = np.arange(1, 206, dtype=np.uint64)
    sizes = {}
    for sampling in ("poisson", "fixed"):
        plan = PrivacyPlan(205, 100, sampling, 1.0, 0.1, 2000, 1e-3)
        sampler = plan.sampler(9, keys)
        sizes[sampling] = np.array([len(sampler.draw(t)) for t in range(plan.rounds)])
    assert set(sizes["fixed"]) == {100}
    # Binomial(205, 100/205): mean 100, variance 51.2; over 2000 rounds their standard errors are
    # 0.16 and 1.6, so these tolerances are five of them.
    assert sizes["poisson"].mean() == pytest.approx(100, abs=0.8)
    assert sizes["poisson"].var() == pytest.approx(100 * (1 - 100 / 205), abs=8.1)


def test_6_without_a_word_there_is_a_validation_split_apart_from_the_test_rows():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), 30)
    data = FederatedData.from_arrays(rng.normal(size=(180, 2)), rng.integers(0, 2, 180), owner)
    parts = {split: set(data.rows(split).order.tolist()) for split in SPLITS}
    assert (data.rows("validation").counts == 3).all()
    assert (data.rows("test").counts == 6).all()
    assert not parts["validation"] & parts["test"]
    assert not parts["validation"] & parts["train"]
    assert not parts["train"] & parts["test"]
    assert set.union(*parts.values()) == set(range(180))


def test_6_validation_rows_are_taken_from_the_training_rows_of_a_given_split():
    owner = np.repeat(["a", "b"], 20)
    split = np.tile(["train"] * 15 + ["test"] * 5, 2)
    data = FederatedData.from_arrays(np.eye(40), [0, 1] * 20, owner, split)
    assert set(data.rows("test").order.tolist()) == set(np.flatnonzero(split == "test").tolist())
    assert (data.rows("validation").counts > 0).all()
    assert set(data.rows("validation").order) <= set(np.flatnonzero(split == "train"))


def test_7_accuracy_mean_counts_clients_equally_and_accuracy_counts_rows():
    """A large client that is always right and a small one that is always wrong."""
    rows = [90, 10]
    owner = np.repeat(["large", "small"], rows)
    data = FederatedData.from_arrays(
        np.zeros((200, 1)),
        np.tile(np.repeat([1, 0], rows), 2),
        np.tile(owner, 2),
        np.repeat(["train", "test"], 100),
        validation=0.0,
    )
    plan = PrivacyPlan(2, 2, "full", 1.0, 0.0, 1, 1e-3)
    model = build_model("logistic", data.input_shape, data.outputs, data.task, 0)
    federation = simulate(data, model, FedAvg(), plan, LocalTraining(), 0)
    always_one = torch.tensor([[0.0, 0.0, -1.0, 1.0]])
    views = {"shared": lambda clients: always_one.expand(len(clients), -1)}
    metrics = evaluate(federation.sites.tensors, model, views, "test")["shared"]
    assert metrics["accuracy"] == pytest.approx(0.9)
    assert metrics["accuracy_mean"] == pytest.approx(0.5)
    assert metrics["accuracy_worst_decile"] == 0
