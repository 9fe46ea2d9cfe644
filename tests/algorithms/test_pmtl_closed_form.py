"""Without noise, clipping and sampling, Algorithm 1 solves mean-regularised learning exactly."""

import numpy as np
import pytest
import torch

from pmtl.algorithms import PMTL
from pmtl.data import FederatedData
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, simulate


def everybody(data, lam, local, rounds, start=None):
    plan = PrivacyPlan(data.m, data.m, "full", float("inf"), 0.0, rounds, 1e-3)
    model = build_model("linear", data.input_shape, data.outputs, data.task, 0)
    if start is not None:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(torch.tensor(start), model.module.parameters())
    return simulate(data, model, PMTL(lam=lam), plan, local, 0, dtype=torch.float64)


@pytest.fixture
def ridge():
    """Five clients of different sizes with related linear answers."""
    rng = np.random.default_rng(2)
    sizes = (12, 20, 31, 16, 40)
    x = rng.normal(size=(sum(sizes), 3))
    truth = rng.normal(size=4) + 0.7 * rng.normal(size=(5, 4))
    owner = np.repeat(np.arange(5), sizes)
    y = (x * truth[owner, :3]).sum(axis=1) + truth[owner, 3] + 0.1 * rng.normal(size=len(x))
    split = np.full(len(x), "train")
    return FederatedData.from_arrays(x, y.astype(np.float32), owner, split, validation=0.0)


def quadratics(data):
    """loss_k(w) = ½ wᵀH_k w − b_kᵀw + constant, from the rows: H_k [m, P, P] and b_k [m, P]."""
    hessians, slopes = [], []
    for k in range(data.m):
        x, y = data.gather(data.rows("train").of(k))
        design = np.column_stack([x.astype(np.float64), np.ones(len(x))])
        hessians.append(2 * design.T @ design / len(x))
        slopes.append(2 * design.T @ y.astype(np.float64) / len(x))
    return np.stack(hessians), np.stack(slopes)


def closed_form(hessians, slopes, lam):
    """Where H_k w_k − b_k + λ(w_k − w̄) = 0 for every k: one linear system in all of W."""
    m, size = slopes.shape
    mean = np.full((m, m), 1 / m)
    system = np.kron(lam * (np.eye(m) - mean), np.eye(size))
    for k in range(m):
        block = slice(k * size, (k + 1) * size)
        system[block, block] += hessians[k]
    return np.linalg.solve(system, slopes.reshape(-1)).reshape(m, size)


@pytest.mark.parametrize("lam", [0.0, 0.8, 5.0])
def test_it_converges_to_the_minimiser_of_the_mean_regularised_objective(ridge, lam):
    start = [0.5, -1.0, 2.0, 0.3]
    federation = everybody(ridge, lam, LocalTraining(steps=4, batch=0, lr=0.12), 150, start)
    progress = federation.start()
    for _ in federation.rounds(progress):
        mean = progress.store.vectors.mean(dim=0)
        assert torch.allclose(progress.shared[0], mean, rtol=0, atol=1e-12)
    solution = closed_form(*quadratics(ridge), lam)
    np.testing.assert_allclose(progress.store.vectors.numpy(), solution, rtol=0, atol=1e-9)


def test_the_solution_is_what_makes_the_objective_smallest(ridge):
    """A check of the closed form itself: no nearby point is better."""
    hessians, slopes = quadratics(ridge)
    lam = 0.8

    def objective(w):
        pull = lam / 2 * ((w - w.mean(axis=0)) ** 2).sum(axis=1)
        losses = np.einsum("kp,kpr,kr->k", w, hessians, w) / 2 - (slopes * w).sum(axis=1)
        return (pull + losses).mean()

    best = closed_form(hessians, slopes, lam)
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert objective(best + 1e-3 * rng.normal(size=best.shape)) > objective(best)


def test_mean_estimation_never_beats_the_bound_of_the_text_and_ends_on_it():
    """Section 4.3: (1/m)Σ(x_i − w_i)² + (1/m)Σ(w_i − w̄)² is at least (1/2m)Σ(x_i − w̄)². That
    is reached where every w_i lies half-way between x_i and the mean: a neighbourhood, not 0."""
    x = np.array([-1.0, 0.5, 2.0, 4.0], dtype=np.float32)
    data = FederatedData.from_arrays(
        np.zeros((4, 1)), x, list("abcd"), ["train"] * 4, validation=0.0
    )
    # The feature is 0, so the intercept is the estimate; λ/2 = 1 is the weight in the text.
    federation = everybody(data, 2.0, LocalTraining(steps=2, batch=0, lr=0.1), 120)
    progress = federation.start()
    for _ in federation.rounds(progress):
        w = progress.store.vectors[:, 1].numpy()
        objective = ((x - w) ** 2).mean() + ((w - w.mean()) ** 2).mean()
        bound = ((x - w.mean()) ** 2).mean() / 2
        assert objective >= bound * (1 - 1e-12)
    assert objective == pytest.approx(bound, rel=1e-9)
    assert bound > 1
    np.testing.assert_allclose(w, (x + x.mean()) / 2, atol=1e-9)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_server_step_of_q_over_m_keeps_the_shared_model_at_the_mean(ridge, sampling):
    """With a part of the clients, Algorithm 1 as printed does not; see test_pmtl_theory."""
    plan = PrivacyPlan(ridge.m, 2, sampling, float("inf"), 0.0, 200, 1e-3)
    model = build_model("linear", ridge.input_shape, 1, ridge.task, 0)
    local = LocalTraining(steps=2, batch=0, lr=0.05)
    ends = {}
    for server in (2 / ridge.m, 1.0):
        algorithm = PMTL(lam=0.8, server=server)
        federation = simulate(ridge, model, algorithm, plan, local, 0, dtype=torch.float64)
        progress = federation.start()
        gaps = []
        for _ in federation.rounds(progress):
            mean = progress.store.vectors.mean(dim=0)
            gaps.append(float((progress.shared[0] - mean).abs().max()))
        ends[server] = max(gaps)
    assert ends[2 / ridge.m] < 1e-12
    assert ends[1.0] > 0.1


def test_running_ahead_of_the_mean_is_told_before_a_long_run():
    assert "server=0.1 " in (PMTL().warning(clients=500, cohort=50, rounds=200) or "")
    assert PMTL(server=0.1).warning(clients=500, cohort=50, rounds=200) is None
    assert PMTL().warning(clients=500, cohort=500, rounds=200) is None
