"""Every algorithm is its paper's pseudo-code: step for step the same numbers as plain NumPy."""

import numpy as np
import pytest
import torch
import transcription as paper

from pmtl.algorithms import ALGORITHMS, build_algorithm
from pmtl.algorithms.clustered import ClusteredPMTL
from pmtl.data import FederatedData
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, simulate

SIZES = (5, 9, 14, 23, 7, 3, 18)
NAMES = tuple(f"site {k}" for k in range(len(SIZES)))
M, Q, SIGMA, ROUNDS, SEED = len(SIZES), 3, 0.05, 5, 11
CLUSTER = np.array([0, 1, 0, 2, 1, 0, 2])
CLUSTERS = {name: "abc"[c] for name, c in zip(NAMES, CLUSTER, strict=True)}

METHODS = paper.METHODS | {
    "clustered": (
        ClusteredPMTL(lam=0.7, clusters=CLUSTERS),
        0.7,
        paper.start_clustered,
        paper.clustered,
        paper.predict_own,
    ),
}
LOCAL = {
    "epochs": LocalTraining(epochs=2, batch=6, lr=0.2, halve_every=2),
    "steps": LocalTraining(steps=4, batch=5, lr=0.15),
}


def federation_data(problem):
    """Clients of different sizes, mixed in the file, with answers that differ between them."""
    rng = np.random.default_rng(3)
    client = rng.permutation(np.repeat(NAMES, SIZES))
    x = rng.normal(size=(len(client), 4))
    shift = {name: rng.normal(size=(4, 3)) for name in NAMES}
    scores = np.stack([row @ shift[name] for row, name in zip(x, client, strict=True)])
    if problem == "softmax":
        y = scores.argmax(axis=1)
    else:
        y = (scores[:, :2] + 0.1 * rng.normal(size=(len(client), 2))).astype(np.float32)
    split = np.full(len(client), "train")
    return FederatedData.from_arrays(x, y, client, split, validation=0.0)


def common_start(model):
    """A start that is not zero, so that a method that forgets it is found out."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))


def noise(round, shape):
    generator = torch.Generator().manual_seed(1000 + round)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def client_work(federation, problem, round):
    """Every client's mini-batches of a round, as gradient functions; padding is dropped."""
    clients = np.arange(M)
    index, real = federation.sites.batches.draw(clients, round)
    work = []
    for k in clients:
        steps = []
        for rows, mask in zip(index[k], real[k], strict=True):
            if mask.any():
                x, y = federation.data.gather(rows[mask])
                x = x.astype(np.float64)
                if problem == "softmax":
                    steps.append(lambda w, x=x, y=y: paper.softmax_gradient(w, x, y, 3))
                else:
                    y = y.astype(np.float64)
                    steps.append(lambda w, x=x, y=y: paper.squared_gradient(w, x, y))
        work.append(steps)
    return work


def middle_norm(federation, problem, start, one_round, constant):
    """The median norm of all clients' uploads in a first round in which nothing is clipped."""
    setting = paper.Setting(M, Q, np.inf, 0.0, constant, CLUSTER)
    world = start(federation.model.start().numpy(), setting)
    work, eta = client_work(federation, problem, 0), federation.sites.local.lr
    one_round(world, np.arange(M), work, eta, np.zeros_like(world.shared), setting)
    return float(np.median(world.norms)) if world.norms else 1.0


@pytest.mark.parametrize(("sampling", "amount"), [("poisson", "epochs"), ("fixed", "steps")])
@pytest.mark.parametrize("problem", ["softmax", "squared"])
@pytest.mark.parametrize("method", METHODS)
def test_every_round_is_the_papers(method, problem, amount, sampling):
    spec, constant, start, one_round, predict = METHODS[method]
    algorithm = build_algorithm(spec)
    data = federation_data(problem)
    model = build_model(
        "logistic" if problem == "softmax" else "linear",
        data.input_shape,
        data.outputs,
        data.task,
        SEED,
    )
    common_start(model)
    local = LOCAL[amount]

    def made(clip_norm):
        plan = PrivacyPlan(M, Q, sampling, clip_norm, SIGMA, ROUNDS, 1e-3)
        parts = (data, model, algorithm, plan, local, SEED)
        return simulate(*parts, dtype=torch.float64, noise=noise)

    # Some uploads are longer than the clip, and some are not.
    clip_norm = middle_norm(made(1.0), problem, start, one_round, constant)
    federation = made(clip_norm)
    progress = federation.start()
    setting = paper.Setting(M, Q, clip_norm, SIGMA, constant, CLUSTER)
    world = start(model.start().numpy(), setting)
    assert_same(federation, progress, world, predict)
    for t in range(ROUNDS):
        xi = noise(t, tuple(progress.shared.shape)).numpy()
        cohort = federation.server.sampler.draw(t)
        eta = local.lr * 0.5 ** (t // local.halve_every) if local.halve_every else local.lr
        one_round(world, cohort, client_work(federation, problem, t), eta, xi, setting)
        federation.advance(progress)
        assert_same(federation, progress, world, predict)
    if algorithm.shares:
        norms = np.array(world.norms)
        assert (norms > clip_norm).any(), "no upload was clipped"
        assert (norms < clip_norm).any(), "every upload was clipped"


def test_every_algorithm_that_trains_by_steps_has_a_transcription():
    """But related, which test_related.py compares with the gradient of its whole objective."""
    by_steps = {name for name, kind in ALGORITHMS.items() if not kind.exact}
    assert by_steps == {*METHODS, "related"}


def assert_same(federation, progress, world, predict):
    close = {"rtol": 1e-10, "atol": 1e-10}
    np.testing.assert_allclose(progress.shared.numpy(), world.shared, **close)
    np.testing.assert_allclose(progress.store.vectors.numpy(), np.stack(world.own), **close)
    answers = federation.predictors(progress, np.arange(M)).numpy()
    expected = [predict(world, k, federation.server.billboard.blocks[k]) for k in range(M)]
    np.testing.assert_allclose(answers, np.stack(expected), **close)


def test_the_sizes_make_the_hard_cases_happen():
    """Short last batches, several steps, cohorts of several sizes, a client sampled late."""
    data = federation_data("softmax")
    plan = PrivacyPlan(M, Q, "poisson", 1.0, SIGMA, ROUNDS, 1e-3)
    model = build_model("logistic", data.input_shape, data.outputs, data.task, SEED)
    federation = simulate(data, model, build_algorithm("pmtl"), plan, LOCAL["epochs"], SEED)
    cohorts = [federation.server.sampler.draw(t) for t in range(ROUNDS)]
    assert len({len(cohort) for cohort in cohorts}) > 1
    assert any(len(cohort) not in (0, Q) for cohort in cohorts)
    first = {k: t for t in reversed(range(ROUNDS)) for k in cohorts[t].tolist()}
    assert max(first.values()) > 0
    _, real = federation.sites.batches.draw(np.arange(M), 0)
    sizes = real.sum(axis=2)
    assert {0, 1, 2, 3, 5, 6} <= set(sizes.ravel().tolist())


def test_the_gradients_written_by_hand_are_gradients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 4))
    w = rng.normal(size=15)
    y = rng.integers(0, 3, 6)
    targets = rng.normal(size=(6, 3))

    def cross_entropy(w):
        scores = x @ w[:12].reshape(3, 4).T + w[12:]
        return (np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(6), y]).mean()

    def squares(w):
        return ((x @ w[:12].reshape(3, 4).T + w[12:] - targets) ** 2).sum(axis=1).mean()

    for loss, gradient in (
        (cross_entropy, paper.softmax_gradient(w, x, y, 3)),
        (squares, paper.squared_gradient(w, x, targets)),
    ):
        step = 1e-6 * np.eye(15)
        slope = [(loss(w + e) - loss(w - e)) / 2e-6 for e in step]
        np.testing.assert_allclose(gradient, slope, atol=1e-7)
