"""Sharing a part of a model: what a plain loop by hand computes, and only k numbers leave."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from at_length import at_length
from drawn_noise import seeded_noise
from scipy.sparse import csr_matrix
from torch.func import vmap

from pmtl.algorithms import ALGORITHMS, PMTL, FedAvg, build_algorithm
from pmtl.client.batches import LocalTraining
from pmtl.client.site import Site
from pmtl.data import FederatedData
from pmtl.engines.axis import AxisTrainer
from pmtl.engines.base import TensorBatches
from pmtl.engines.loops import DebugTrainer, ThreadsTrainer
from pmtl.engines.slots import is_library_algorithm
from pmtl.errors import PmtlError
from pmtl.messages import UPLOAD, RoundMessage
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release
from pmtl.runs.personal_file import personal_models
from pmtl.server import Server
from pmtl.sharing import SharedPart, build_share, share_part
from pmtl.simulation import simulate
from pmtl.streams import words

M, D, C, ROUNDS, CLIP, SIGMA, LR, LAM = 6, 4, 3, 3, 0.3, 0.05, 0.2, 0.7
LOCAL = LocalTraining(steps=3, batch=4, lr=LR)
METHODS = ("pmtl", "ditto", "fedavg", "fedprox", "fedadam", "ppsgd", "local")
SHARES = ("*.bias", "1.*+3.bias", "biases", "subspace:k=9,seed=2", "lowrank:rank=2", "film", "*")


def table() -> FederatedData:
    rng = np.random.default_rng(4)
    owner = np.repeat([f"c{k}" for k in range(M)], (5, 9, 6, 12, 7, 8))
    x = rng.normal(size=(len(owner), D)).astype(np.float32)
    split = np.full(len(owner), "train")
    y = rng.integers(0, C, len(owner))
    return FederatedData.from_arrays(x, y, owner, split, outputs=C, validation=0)


def federation(method, share, model="mlp:hidden=5", data=None, **changes):
    data = table() if data is None else data
    flat = build_model(model, data.input_shape, data.outputs, data.task, 0)
    plan = PrivacyPlan(M, M, "full", CLIP, changes.pop("sigma", SIGMA), ROUNDS, 1e-3)
    algorithm = share_part(build_algorithm(method), share, flat)
    seed = changes.pop("seed", 0)
    return simulate(data, flat, algorithm, plan, LOCAL, seed, **{"engine": "debug", **changes})


def run(made):
    state = made.start()
    list(made.rounds(state))
    return state


# The same in NumPy, client after client, for softmax regression with weights [C, D] and biases [C].


def loss_gradient(w, x, y):
    """[C·D + C] the gradient of the mean cross-entropy."""
    logits = x @ w[: C * D].reshape(C, D).T + w[C * D :]
    chance = np.exp(logits - logits.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    chance[np.arange(len(y)), y] -= 1
    return np.concatenate([(chance.T @ x).reshape(-1), chance.sum(axis=0)]) / len(y)


def plain_rounds(made, method, join, pull, s, p, client_s):
    """Rounds of `method` on s, and plain steps on p. `join(s, p)` are the weights and `pull` takes
    a gradient of weights to those of s and p."""
    data = made.data
    p = [p.copy() for _ in range(M)]
    client_s = [client_s.copy() for _ in range(M)]
    for t in range(ROUNDS):
        total = np.zeros_like(s)
        for k in range(M):
            index, real = made.sites.batches.draw(np.array([k]), t)
            before, u = client_s[k].copy(), s.copy()
            for rows, there in zip(index[0], real[0], strict=True):
                x, y = data.gather(rows[there])
                x = x.astype(np.float64)

                def g(z, rest, x=x, y=y):
                    return pull(loss_gradient(join(z, rest), x, y))

                rest = p[k]
                if method == "pmtl":
                    g_s, g_p = g(client_s[k], rest)
                    client_s[k] = client_s[k] - LR * (g_s + LAM * (client_s[k] - s))
                elif method == "fedavg":
                    g_s, g_p = g(u, rest)
                    u = u - LR * g_s
                else:
                    u = u - LR * g(u, rest)[0]
                    g_s, g_p = g(client_s[k], rest)
                    client_s[k] = client_s[k] - LR * (g_s + LAM * (client_s[k] - s))
                p[k] = rest - LR * g_p
            upload = client_s[k] - before if method == "pmtl" else u - s
            total += upload * min(1, CLIP / np.linalg.norm(upload))
        s = s + total / M + SIGMA * seeded_noise(7)(t, (1, len(s)))[0].numpy()
    return s, p, client_s


SPEC = {"pmtl": f"pmtl:lam={LAM}", "ditto": f"ditto:lam={LAM}", "fedavg": "fedavg"}


@pytest.mark.parametrize("method", SPEC)
def test_shared_biases_are_a_loop_by_hand(method):
    made = federation(
        SPEC[method], "*.bias", "logistic", dtype=torch.float64, noise=seeded_noise(7)
    )
    state = run(made)

    def pull(gradient):
        return gradient[C * D :], gradient[: C * D]

    zeros = np.zeros(C)
    s, p, own = plain_rounds(
        made, method, lambda s, p: np.concatenate([p, s]), pull, zeros, np.zeros(C * D), zeros
    )
    assert state.shared.shape == (1, C)
    assert np.allclose(state.shared[0].numpy(), s, atol=1e-12)
    for k in range(M):
        answers = made.predictors(state, np.array([k]))[0].numpy()
        assert np.allclose(answers[: C * D], p[k], atol=1e-12)
        assert np.allclose(answers[C * D :], s if method == "fedavg" else own[k], atol=1e-12)
    published = made.published(state)[0].numpy()
    assert np.allclose(published, np.concatenate([np.zeros(C * D), s]), atol=1e-12)


@pytest.mark.parametrize("method", SPEC)
def test_a_random_subspace_is_a_loop_by_hand(method):
    made = federation(
        SPEC[method], "subspace:k=4,seed=3", "logistic", dtype=torch.float64, noise=seeded_noise(7)
    )
    state = run(made)
    size = C * D + C
    matrix = np.zeros((size, 4))
    order = np.argsort(words(3, "share subspace", np.arange(size)))
    signs = words(3, "share subspace signs", np.arange(size))
    for place, weight in enumerate(order):
        matrix[weight, place % 4] = -1 if signs[weight] >= 2**63 else 1
    matrix /= np.linalg.norm(matrix, axis=0)
    zeros = np.zeros(4)
    s, _, own = plain_rounds(
        made,
        method,
        lambda s, p: matrix @ s,
        lambda g: (matrix.T @ g, g[:0]),
        zeros,
        zeros[:0],
        zeros,
    )
    assert state.shared.shape == (1, 4)
    assert np.allclose(state.shared[0].numpy(), s, atol=1e-6)  # Signs/√n are float32.
    last = matrix @ (s if method == "fedavg" else own[2])
    assert np.allclose(made.predictors(state, np.array([2]))[0].numpy(), last, atol=1e-6)


@pytest.mark.parametrize("share", [*SHARES, "basis"])
@pytest.mark.parametrize("method", at_length(METHODS, ("pmtl", "fedavg").__contains__))
def test_every_engine_computes_what_debug_computes(method, share):
    flat = build_model("mlp:hidden=6", (5,), 3, "classification", 0)
    flat.to(torch.device("cpu"), torch.float64)
    rows = torch.linalg.qr(torch.randn(flat.size, 4))[0].T
    algorithm = share_part(build_algorithm(method), share, flat, rows).bind(flat.layout)
    algorithm = algorithm.to(torch.device("cpu"), torch.float64)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, 2, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (4, 3, 2), generator=generator)
    mask = (torch.arange(6) < torch.tensor((2, 5, 0, 3))[:, None]).view(4, 3, 2)
    size = algorithm.billboard_size(flat.layout)
    shared = torch.randn(4, size, generator=generator, dtype=torch.float64)
    own = algorithm.start(flat.start()).repeat(4, 1)
    own = own + 0.01 * torch.randn(own.shape, generator=generator, dtype=torch.float64)
    kinds = [DebugTrainer, ThreadsTrainer, AxisTrainer]
    trainers = [kind(algorithm, flat, "classification") for kind in kinds]
    if method == "pmtl":  # Compiling takes seconds.
        one = AxisTrainer(algorithm, flat, "classification", compile=True, backend="eager")
        trainers.append(one)
    batches = TensorBatches(x, y, mask.numpy())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "A step could not be compiled")
        results = [trainer.train(own, shared, batches, 0.05) for trainer in trainers]
    first = results[0]
    assert first.uploads.shape == (4, 0 if method == "local" else size)
    assert not torch.equal(first.kept, own) or not own.shape[1]
    for other in results[1:]:
        for name in ("kept", "uploads", "losses"):
            assert torch.allclose(getattr(first, name), getattr(other, name), rtol=0, atol=1e-10)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("method", METHODS)
def test_the_billboard_and_every_upload_have_k_numbers(method, share, monkeypatch):
    seen = set()
    add = Release.add

    def watched(self, tally, clients, uploads):
        seen.add(uploads.shape[1])
        add(self, tally, clients, uploads)

    monkeypatch.setattr(Release, "add", watched)
    made = federation(method, share, engine="axis")
    state = run(made)
    k = made.algorithm.share.size
    assert state.shared.shape == (1, k)
    assert seen == (set() if method == "local" else {k})
    assert made.predictors(state, np.arange(M)).shape == (M, made.model.size)
    assert made.published(state).shape == (1, made.model.size)
    weights = made.views(state)["personal"]
    models = personal_models(made.algorithm, state.store, state.shared, weights, weights)
    assert set(models) == {"alone", *(["personal"] if made.algorithm.personal else [])}
    assert {part.unseen.shape for part in models.values()} == {(1, made.model.size)}
    assert k < made.model.size or share == "*"


@pytest.mark.parametrize("method", METHODS)
def test_an_upload_does_not_read_the_personal_numbers(method):
    """With garbage in their place, the same bytes leave."""
    flat = build_model("mlp:hidden=5", (D,), C, "classification", 0)
    algorithm = share_part(build_algorithm(method), "3.*", flat).bind(flat.layout)
    shared = algorithm.billboard_start(flat.start()) + 0.1
    own = algorithm.start(flat.start()) + 0.3
    state = algorithm.begin(own, shared)
    state = algorithm.step(state, shared, lambda w: w**2, 0.1)
    rest = algorithm.share.personal_size
    garbage = own.clone()
    garbage[len(own) - rest :] = torch.nan
    spoiled = state._replace(p=torch.full_like(state.p, torch.nan))
    assert rest == D * 5 + 5 == len(state.p)
    assert torch.equal(
        algorithm.upload(spoiled, garbage, shared), algorithm.upload(state, own, shared)
    )
    # What is kept and what answers does have them.
    assert algorithm.keep(spoiled).isnan().sum() == rest
    assert algorithm.predict(garbage, shared).isnan().sum() == rest


def test_what_one_client_keeps_to_itself_reaches_nobody_else():
    """The others' vectors and the billboard do not change with a client's personal numbers, if
    what it uploads does not."""
    one, two = federation("pmtl", "3.*"), federation("pmtl", "3.*")
    first, second = one.start(), two.start()
    spoiled = second.store.gather(np.array([2]))
    spoiled[:, len(spoiled[0]) - two.algorithm.share.personal_size :] = torch.nan
    second.store.scatter(np.array([2]), spoiled)
    one.server.gate.add = _without(2, one.server.gate)
    two.server.gate.add = _without(2, two.server.gate)
    list(one.rounds(first))
    list(two.rounds(second))
    assert torch.equal(first.shared, second.shared)
    others = np.array([0, 1, 3, 4, 5])
    assert torch.equal(first.store.gather(others), second.store.gather(others))


def _without(client, gate):
    add = Release.add

    def watched(tally, clients, uploads):
        there = clients != client
        add(gate, tally, clients[there], uploads[torch.from_numpy(there)])

    return watched


@pytest.mark.parametrize("share", ["3.*", "subspace:k=7", "film"])
@pytest.mark.parametrize("method", ["pmtl", "ditto", "fedavg", "fedadam"])
@pytest.mark.parametrize("hardened", [False, True])
def test_sites_are_the_simulation_bit_for_bit(method, share, hardened):
    made = federation(method, share, hardened=hardened)
    state = run(made)
    data, flat = made.data, build_model("mlp:hidden=5", (D,), C, "classification", 0)
    algorithm = share_part(build_algorithm(method), share, flat)
    source = made.noise_key.source()
    server = Server(data.clients, algorithm, made.plan, 0, source=source, hardened=hardened)
    sites = []
    for k, name in enumerate(data.clients):
        x, y = data.gather(data.rows("train").of(k))
        alone = FederatedData.from_arrays(
            x, y, np.full(len(y), name), np.full(len(y), "train"), outputs=C, validation=0
        )
        sites.append(Site(alone, flat, algorithm, LOCAL, CLIP, 0))
    here = server.start(flat.start())
    for _ in range(ROUNDS):
        tally = server.open(here)
        for k in sorted(tally.cohort):
            message = server.message(here, k)
            upload = sites[k].answer(message)
            assert message.shared.shape == upload[UPLOAD].shape == (algorithm.share.size,)
            server.receive(tally, k, here.round, upload)
        server.publish(tally, here)
    assert torch.equal(here.shared, state.shared)
    for k, site in enumerate(sites):
        assert torch.equal(site.own, state.store.gather(np.array([k]))[0])
        assert torch.equal(site.weights(here.shared[0]), made.predictors(state, np.array([k]))[0])


def test_a_site_refuses_a_message_of_the_wrong_size():
    data = table()
    x, y = data.gather(data.rows("train").of(0))
    alone = FederatedData.from_arrays(
        x, y, np.full(len(y), "a"), np.full(len(y), "train"), outputs=C, validation=0
    )
    flat = build_model("logistic", (D,), C, "classification", 0)
    site = Site(alone, flat, share_part(PMTL(), "biases", flat), LOCAL, CLIP, 0)
    with pytest.raises(PmtlError, match="must have 3 finite parameters"):
        site.answer(RoundMessage(0, np.zeros(flat.size, dtype=np.float32)))


def test_all_weights_shared_is_the_algorithm_itself():
    noise = seeded_noise(5)
    whole, plain = federation("pmtl", "*", noise=noise), federation("pmtl", None, noise=noise)
    one, two = run(whole), run(plain)
    assert torch.equal(one.shared, two.shared)
    assert torch.equal(one.store.vectors, two.store.vectors)


def test_sparse_rows_are_trained_as_dense_ones_are():
    dense = table()
    thin = replace(dense, x=csr_matrix(dense.x))
    for share in ("biases", "subspace:k=4"):
        one, two = (
            run(federation("pmtl", share, "logistic", data, engine="axis", noise=seeded_noise(7)))
            for data in (dense, thin)
        )
        assert torch.allclose(one.shared, two.shared, atol=1e-6)
        assert one.shared.any()


def test_another_share_has_other_noise():
    keys = {
        federation("pmtl", share).noise_key.text
        for share in (None, "*", "3.*", "subspace:k=9", "subspace:k=9,seed=1")
    }
    assert len(keys) == 5


def test_clusters_share_a_part_of_their_own():
    clusters = {f"c{k}": str(k % 2) for k in range(M)}
    flat = build_model("mlp:hidden=5", (D,), C, "classification", 0)
    algorithm = share_part(ALGORITHMS["clustered"](clusters=clusters), "3.*", flat)
    board = algorithm.billboard(tuple(clusters))
    assert board.size == 2
    assert board.first(algorithm.billboard_start(flat.start())).shape == (2, 5 * C + C)


@dataclass(frozen=True)
class Penalised(PMTL):
    name: ClassVar[str] = "penalised"

    def objective(self, w, shared, batch):
        return batch.loss(batch.outputs(w)) + (w - shared).square().sum()


@dataclass(frozen=True)
class Short(PMTL):
    """Uploads are shorter than the billboard."""

    name: ClassVar[str] = "short"

    def upload_size(self, round):
        return 3


@pytest.mark.parametrize("algorithm", [build_algorithm("naive_joint"), Penalised(), Short()])
def test_an_algorithm_that_needs_the_whole_model_is_refused(algorithm):
    flat = build_model("logistic", (D,), C, "classification", 0)
    with pytest.raises(PmtlError, match="cannot share a part of a model"):
        share_part(algorithm, "biases", flat)


def test_a_relationship_matrix_is_refused(tmp_path):
    np.save(tmp_path / "omega.npy", M * np.eye(M) - 1)
    with pytest.raises(PmtlError, match="cannot share a part of a model"):
        federation(f"related:omega={tmp_path / 'omega.npy'}", "3.*")


def test_who_has_a_model_of_its_own():
    flat = build_model("logistic", (D,), C, "classification", 0)
    assert not FedAvg.personal
    assert share_part(FedAvg(), "biases", flat).personal
    assert not share_part(FedAvg(), "subspace:k=2", flat).personal
    assert share_part(PMTL(), "subspace:k=2", flat).personal
    assert not share_part(build_algorithm("local"), "biases", flat).shares


def test_a_users_algorithm_inside_counts_as_the_users():
    flat = build_model("logistic", (D,), C, "classification", 0)

    @dataclass(frozen=True)
    class Mine(PMTL):
        name: ClassVar[str] = "mine"

    assert is_library_algorithm(share_part(PMTL(), "biases", flat))
    assert not is_library_algorithm(share_part(Mine(), "biases", flat))


def test_an_algorithm_is_bound_to_the_layout_of_the_shared_part():
    bound = []

    @dataclass(frozen=True)
    class Bound(PMTL):
        name: ClassVar[str] = "bound"

        def bind(self, layout):
            bound.append([(part.name, part.shape, part.first) for part in layout.parameters])
            return self

    flat = build_model("mlp:hidden=5", (D,), C, "classification", 0)
    SharedPart(Bound(), build_share("3.*", flat)).bind(flat.layout)
    SharedPart(Bound(), build_share("subspace:k=2", flat)).bind(flat.layout)
    assert bound == [
        [("3.weight", (C, 5), 0), ("3.bias", (C,), 5 * C)],
        [("directions", (2,), 0)],
    ]


def test_many_clients_at_once_join_as_one_does():
    flat = build_model("mlp:hidden=5", (D,), C, "classification", 0)
    for spec in SHARES:
        share = build_share(spec, flat)
        s = torch.randn(3, share.size)
        p = torch.randn(3, share.personal_size)
        at_once = vmap(share.join)(s, p)
        for k in range(3):
            assert torch.allclose(at_once[k], share.join(s[k], p[k]))
