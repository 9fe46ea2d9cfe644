"""Relationship matrices: mean and clusters as special cases, what the board is and costs."""

from __future__ import annotations

import csv
import json
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pmtl
from pmtl.algorithms import PMTL, ClusteredPMTL, RelatedPMTL
from pmtl.algorithms.related import billboard_of
from pmtl.billboard import Billboard, Mixture
from pmtl.privacy.noise import seeded_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release, noise_of

M = 12
CLUSTERS = [0] * 5 + [1] * 4 + [2] * 3
OPTIONS = {
    "privacy": {"epsilon": 3.0, "rounds": 6, "cohort": 5},
    "local": {"steps": 2, "batch": 4},
    "seed": 4,
    "evaluate_every": 0,
}


def centring(m: int) -> np.ndarray:
    """I − 11ᵀ/m, which is its own square."""
    return np.eye(m) - 1 / m


def clustered(clusters: list[int]) -> np.ndarray:
    one = np.equal.outer(clusters, clusters)
    return np.eye(len(clusters)) - one / one.sum(axis=1)


def psd(seed: int, m: int = M, rank: int = 3) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(m, rank))
    return root @ root.T


@pytest.fixture(scope="module")
def data() -> pmtl.FederatedData:
    random = np.random.default_rng(2)
    x = random.normal(size=(M * 12, 3)).astype(np.float32)
    return pmtl.FederatedData.from_arrays(x, (x[:, 0] > 0) * 1, np.arange(M * 12) % M, outputs=2)


def weights(run: pmtl.Run, view: str = "personal") -> torch.Tensor:
    modules = [getattr(run, view)(client) for client in run.clients]
    return torch.stack([torch.cat([p.flatten() for p in m.parameters()]) for m in modules]).detach()


def test_the_mean_is_a_special_case(data):
    """Ω = (I − 11ᵀ/m)² is Algorithm 1, up to noise drawn anew."""
    options = OPTIONS | {"privacy": {"noise": 0.0, "rounds": 6, "cohort": 5, "clip": 0.1}}
    omega = centring(M) @ centring(M)
    general = pmtl.train(data, algorithm=RelatedPMTL(lam=0.7, omega=omega), **options)
    plain = pmtl.train(data, algorithm=PMTL(lam=0.7), **options)
    assert torch.allclose(weights(general), weights(plain), atol=1e-6)
    assert torch.allclose(weights(general, "shared_for"), weights(plain, "shared_for"), atol=1e-6)


def test_clusters_are_a_special_case(data):
    options = OPTIONS | {"privacy": {"noise": 0.0, "rounds": 6, "cohort": 5, "clip": 0.1}}
    clusters = {client: str(c) for client, c in zip(data.clients, CLUSTERS, strict=True)}
    omega = RelatedPMTL(lam=0.7, omega=clustered(CLUSTERS))
    general = pmtl.train(data, algorithm=omega, **options)
    special = pmtl.train(data, algorithm=ClusteredPMTL(lam=0.7, clusters=clusters), **options)
    assert torch.allclose(weights(general), weights(special), atol=1e-6)
    assert torch.allclose(weights(general, "shared_for"), weights(special, "shared_for"), atol=1e-6)


@pytest.mark.parametrize("clusters", [[0] * M, CLUSTERS])
def test_the_board_of_a_special_case_is_the_special_board(clusters):
    board = billboard_of(clustered(clusters), M)
    assert board.mixture is not None
    one_hot = np.equal.outer(clusters, np.unique(clusters))
    assert np.allclose(board.mixture.writes, one_hot)
    assert np.allclose(board.mixture.reads, one_hot)
    assert board.members.tolist() == np.bincount(clusters).tolist()


@settings(max_examples=40, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, M), st.floats(0.01, 100))
def test_what_clients_read_is_the_gradient_of_equation_1(seed, rank, scale):
    """λ(w_k − w̃_k) = λ Σ_j Ω_kj w_j, with Ω scaled to a largest eigenvalue of 1."""
    omega = psd(seed, rank=rank)
    board = billboard_of(scale * omega, M)
    models = torch.from_numpy(np.random.default_rng(seed + 1).normal(size=(M, 4)))
    assert board.mixture is not None
    averages = torch.from_numpy(board.mixture.writes.T / board.members[:, None]) @ models
    pull = models - board.read(averages, np.arange(M))
    scaled = torch.from_numpy(omega / np.linalg.eigvalsh(omega)[-1])
    assert torch.allclose(pull, scaled @ models, atol=1e-7)
    assert (np.linalg.norm(board.mixture.writes, axis=1) <= 1).all()
    start = torch.ones(4, dtype=torch.float64)
    assert torch.allclose(
        board.read(board.first(start), np.arange(M)),
        torch.outer(1 - scaled.sum(dim=1), start),
        atol=1e-7,
    )


def test_steps_follow_the_derivative_of_the_whole_objective():
    """Without a loss, full participation and no clip: a round of one step is gradient descent on
    λ/2 · tr(WΩWᵀ), so that it ends in Ω's null space."""
    omega = clustered(CLUSTERS)
    board = billboard_of(omega, M)
    algorithm = RelatedPMTL(lam=1.0, omega=omega)
    own = torch.from_numpy(np.random.default_rng(0).normal(size=(M, 2)))
    mean = torch.from_numpy(clustered(CLUSTERS))
    left = mean @ own
    assert board.mixture is not None
    shared = torch.from_numpy(board.mixture.writes.T / board.members[:, None]) @ own
    for _ in range(3):
        read = board.read(shared, np.arange(M))
        after = algorithm.step(own, read, torch.zeros_like, 0.5)
        moved = board.written(np.arange(M), after - own).sum(dim=0).view_as(shared)
        shared = shared + moved / torch.from_numpy(board.members)[:, None]
        own = after
    assert torch.allclose(mean @ own, left / 8, atol=1e-9)


@pytest.mark.parametrize("hardened", [False, True])
@pytest.mark.parametrize("omega", [centring(M), clustered(CLUSTERS), psd(3), np.eye(M) + psd(1)])
def test_replacing_a_client_moves_the_board_by_no_more_than_on_one_vector(omega, hardened):
    """2γ, over all vectors together: what ε is computed from."""
    plan = PrivacyPlan(M, M, "full", 0.3, 0.1, 10, 1e-3)
    board = billboard_of(omega, M)
    noise = noise_of(plan, seeded_source(0, "x"), hardened)
    gate = Release(plan, board, noise)
    uploads = torch.from_numpy(np.random.default_rng(5).normal(size=(M, 7)))
    unit = noise.grid.step if hardened else 1.0
    furthest = 0.0
    for client in range(M):
        sums = []
        for sign in (1, -1):
            tally = gate.open(0, torch.zeros(board.size, 7))
            changed = uploads.clone()
            changed[client] *= sign * 100
            gate.add(tally, np.arange(M), changed)
            sums.append(unit * tally.sum.double())
        furthest = max(furthest, float(torch.linalg.vector_norm(sums[0] - sums[1])))
    assert furthest <= 2 * 0.3 * (1 + 1e-9)
    assert furthest > 2 * 0.3 * 0.99  # The noise is not larger than it must be.


@pytest.mark.parametrize("omega", [centring(M), clustered(CLUSTERS), psd(3)])
def test_the_noise_on_what_a_client_reads(omega):
    """σ · m · √(B_kk · max_j B_jj), as the module says."""
    plan = PrivacyPlan(M, M, "full", 1.0, 0.1, 10**6, 1e-3)
    board = billboard_of(omega, M)
    gate = Release(plan, board, noise_of(plan, seeded_source(0, "x"), hardened=False))
    zero = torch.zeros(board.size, 40_000, dtype=torch.float64)
    noisy = gate.publish(gate.open(0, zero), zero)
    scaled = np.diag(np.eye(M) - omega / np.linalg.eigvalsh(omega)[-1])
    group = np.equal.outer(board.blocks, board.blocks)
    largest = np.where(group, scaled, 0).max(axis=1)
    told = plan.noise_std * M * np.sqrt(scaled * largest)
    measured = board.read(noisy, np.arange(M)).std(dim=1).numpy()
    assert measured == pytest.approx(told, rel=0.03)


def test_a_run_keeps_its_board(data, tmp_path):
    algorithm = RelatedPMTL(omega=psd(8))
    run = pmtl.train(data, algorithm=algorithm, out=tmp_path / "run", **OPTIONS)
    again = pmtl.load_run(tmp_path / "run", data=data)
    assert torch.equal(weights(run), weights(again))
    assert torch.equal(weights(run, "shared_for"), weights(again, "shared_for"))
    assert not torch.equal(weights(run, "shared_for")[0], weights(run, "shared_for")[1])
    assert run.privacy.epsilon == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize("kind", ["related", "clustered"])
def test_noise_depends_on_what_a_file_says_and_not_on_where_it_lies(kind, data, tmp_path):
    def trained(name: str, seed: int) -> torch.Tensor:
        if kind == "related":
            file, option = tmp_path / f"{name}.npy", "omega"
            np.save(file, psd(seed))
        else:
            file, option = tmp_path / f"{name}.json", "clusters"
            file.write_text(json.dumps({c: int(c) * seed % 3 for c in data.clients}))
        run = pmtl.train(data, algorithm=f"{kind}:{option}={file}", **OPTIONS)
        assert "chosen without looking at the clients' data" in " ".join(str(run.privacy).split())
        return weights(run)

    one = trained("one", 1)
    assert torch.equal(one, trained("elsewhere", 1))
    assert not torch.equal(one, trained("one", 2))


def test_a_run_with_another_matrix_is_not_resumed(data, tmp_path, monkeypatch):
    from pmtl.runs.folder import RunFolder

    class PowerCut(Exception):
        pass

    def die(self, line):
        raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", die)
        with pytest.raises(PowerCut):
            pmtl.train(data, algorithm=RelatedPMTL(omega=psd(8)), out=tmp_path / "run", **OPTIONS)
    with pytest.raises(pmtl.PmtlError, match="relations of clients are not those"):
        pmtl.resume(tmp_path / "run", data=data, algorithm=RelatedPMTL(omega=psd(9)))


class ReadsOnly(RelatedPMTL):
    """Clients predict with the mixture that they read."""

    def predict(self, own, shared):
        return shared


def test_a_client_that_never_took_part_keeps_its_own_mixture_on_disk(data, tmp_path):
    privacy = {"noise": 0.1, "rounds": 1, "cohort": 3, "sampling": "fixed"}
    asked = {**OPTIONS, "privacy": privacy}
    run = pmtl.train(data, algorithm=ReadsOnly(omega=psd(8)), out=tmp_path / "run", **asked)
    everybody = np.arange(M)
    expected = run.personal_weights(everybody)
    assert len({tuple(row) for row in expected.tolist()}) == M
    read = pmtl.load_run(tmp_path / "run", data=data)
    assert torch.equal(read.personal_weights(everybody), expected)


@pytest.mark.parametrize("ending", ["csv", "npy"])
def test_from_a_file(ending, data, tmp_path):
    omega, file = psd(8), tmp_path / f"omega.{ending}"
    if ending == "npy":
        np.save(file, omega)
    else:  # In another order, with a client that does not take part.
        order = [*np.random.default_rng(0).permutation(M)]
        names = [data.clients[k] for k in order]
        with file.open("w", newline="", encoding="utf-8") as opened:
            lines = csv.writer(opened)
            lines.writerow(["", *names, "stranger"])
            lines.writerows([data.clients[k], *omega[k, order], 0] for k in order)
            lines.writerow(["stranger", *[0] * M, 1])
    board = pmtl.algorithms.build_algorithm(f"related:omega={file}").billboard(data.clients)
    assert board.digest() == billboard_of(omega, M).digest()


@pytest.mark.parametrize(
    ("omega", "sentence"),
    [
        (np.eye(3), r"shape \(3, 3\), but there are 12 clients"),
        (np.triu(np.ones((M, M))), "must be symmetric"),
        (np.full((M, M), np.nan), "must be symmetric, of finite numbers"),
        (np.zeros((M, M)), "must not be zero"),
        (-centring(M), "no negative eigenvalue"),
        (np.eye(M), "no client shares"),
        ("", "related:omega=FILE"),
        ("nowhere.npy", "cannot be read"),
    ],
)
def test_bad_matrices_are_refused(omega, sentence, data):
    with pytest.raises(pmtl.PmtlError, match=sentence):
        RelatedPMTL(omega=omega).billboard(data.clients)


def test_nobody_writes_with_more_than_its_weight():
    heavy = np.full((2, 2), sqrt(0.5) + 1e-6)
    with pytest.raises(pmtl.PmtlError, match="weight of more than 1"):
        Billboard(np.zeros(2, dtype=np.int64), Mixture(heavy, heavy, np.array([2, 2])))
