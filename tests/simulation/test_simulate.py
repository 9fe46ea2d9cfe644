"""The loop: the same seed gives the same bits, however the work is cut and the rows are stored."""

import json

import numpy as np
import pytest
import torch
from drawn_noise import seeded_noise
from scipy import sparse
from scipy.special import ndtri

import pmtl
from pmtl.algorithms import build_algorithm
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, RunState, simulate
from pmtl.streams import name_key, name_keys, subseed, uniforms, words

ROUNDS = 4
SIZES = (6, 9, 14, 30, 7, 5, 18, 11)
M = len(SIZES)


def table():
    """Rows with zeros in them, so that a sparse matrix is worth its name."""
    rng = np.random.default_rng(8)
    owner = rng.permutation(np.repeat([f"c{k}" for k in range(M)], SIZES))
    x = rng.normal(size=(len(owner), 4)).astype(np.float32)
    x[rng.random(x.shape) < 0.4] = 0
    return x, rng.integers(0, 3, len(owner)), owner


def federation(x=None, algorithm="pmtl:lam=0.5", seed=0, sigma=0.1, **changes):
    features, y, owner = table()
    data = FederatedData.from_arrays(features if x is None else x, y, owner, outputs=3)
    sampling, cohort = changes.pop("sampling", "poisson"), changes.pop("cohort", 5)
    plan = PrivacyPlan(M, cohort, sampling, changes.pop("clip", 0.4), sigma, ROUNDS, 1e-3)
    model = build_model(
        changes.pop("model", "mlp:hidden=6"), data.input_shape, data.outputs, data.task, 0
    )
    local = changes.pop("local", LocalTraining(epochs=2, batch=5))
    return simulate(data, model, build_algorithm(algorithm), plan, local, seed, **changes)


def run(federation, progress=None):
    progress = progress or federation.start()
    reports = list(federation.rounds(progress))
    return progress, reports


def same(one, two):
    return torch.equal(one.shared, two.shared) and torch.equal(one.store.vectors, two.store.vectors)


@pytest.mark.parametrize("algorithm", ["pmtl", "fedavg", "ditto", "ppsgd", "local", "naive_joint"])
def test_the_same_seed_gives_the_same_bits(algorithm):
    one, first = run(federation(algorithm=algorithm))
    two, second = run(federation(algorithm=algorithm))
    assert same(one, two)
    assert [r.to_dict() for r in first] == [r.to_dict() for r in second]
    three, _ = run(federation(algorithm=algorithm, seed=1))
    assert not same(one, three)


def test_a_saved_run_continues_to_the_same_bits():
    whole, _ = run(federation())
    begun = federation()
    progress = begun.start()
    for _ in range(2):
        begun.advance(progress)
    saved = {name: part.clone() for name, part in progress.store.snapshot().items()}
    fresh = federation()
    store = fresh.start().store
    store.restore(saved)
    resumed, reports = run(fresh, RunState(2, progress.shared.clone(), {}, store))
    assert [report.round for report in reports] == [3, 4]
    assert same(whole, resumed)


class TestStreams:
    """Initialisation, sampling, batches and noise: moving one leaves the others where they were."""

    def cohorts(self, federation):
        return [federation.server.sampler.draw(t).tolist() for t in range(ROUNDS)]

    def batches(self, federation):
        return [federation.sites.batches.draw(np.arange(M), t)[0].tolist() for t in range(ROUNDS)]

    def test_each_is_known_by_its_own_name(self):
        """What a seed stands for must not change: a saved run is continued by these numbers."""
        made = federation(seed=3)
        keys = name_keys(made.data.clients)
        for t in range(ROUNDS):
            coins = uniforms(3, "sampling", keys, t)
            assert made.server.sampler.draw(t).tolist() == np.flatnonzero(coins < 5 / M).tolist()
        index, real = made.sites.batches.draw(np.array([3]), 2)
        rows = made.data.rows("train").of(3)
        for epoch in range(2):
            order = np.argsort(words(3, "batches", keys[3], 2, epoch, np.arange(len(rows))))
            steps = slice(epoch * real.shape[1] // 2, (epoch + 1) * real.shape[1] // 2)
            assert index[0, steps][real[0, steps]].tolist() == rows[order].tolist()
        key = words(3, "noise", name_key("this run"), 2, np.arange(2))
        drawn = np.random.Philox(key=key).random_raw(5)
        place = (drawn % 2**63 + 0.5) / 2.0**64
        noise = np.where(drawn < 2**63, -ndtri(place), ndtri(place))
        assert seeded_noise(3, "this run")(2, (1, 5))[0].tolist() == pytest.approx(noise, rel=1e-14)
        with torch.random.fork_rng():
            torch.manual_seed(subseed(3, "initialisation"))
            layer = torch.nn.Linear(4, 6)
        start = build_model("mlp:hidden=6", (4,), 3, "classification", 3).start()
        assert torch.equal(start[:24], layer.weight.detach().reshape(-1))

    def test_other_noise_leaves_cohorts_and_batches_alone(self):
        plain, other = federation(), federation(noise=seeded_noise(99))
        one, two = plain.start(), other.start()
        plain.advance(one)
        other.advance(two)
        # The first round's training is the same bit for bit, what is published is not.
        assert torch.equal(one.store.vectors, two.store.vectors)
        assert not torch.equal(one.shared, two.shared)
        assert self.cohorts(plain) == self.cohorts(other)
        assert self.batches(plain) == self.batches(other)

    def test_having_drawn_noise_moves_neither_cohorts_nor_batches(self):
        fresh, used = federation(), federation()
        run(used)
        assert self.cohorts(fresh) == self.cohorts(used)
        assert self.batches(fresh) == self.batches(used)

    def test_other_batches_leave_cohorts_alone(self):
        plain = federation()
        other = federation(local=LocalTraining(steps=1, batch=2))
        assert self.cohorts(plain) == self.cohorts(other)
        assert self.batches(plain) != self.batches(other)

    def test_runs_that_differ_in_anything_share_no_noise(self):
        """With shared noise, two published models would be two equations for one sum."""
        x, _, _ = table()
        others = [
            federation(sigma=0.2),
            federation(clip=0.5),
            federation(algorithm="pmtl:lam=0.6"),
            federation(algorithm="ditto:lam=0.5"),
            federation(local=LocalTraining(steps=1, batch=2)),
            federation(x=x + 1),
            federation(cohort=6),
            federation(seed=1),
        ]
        draws = [made.server.gate.noise(0, (1, 50)) for made in (federation(), *others)]
        assert torch.equal(draws[0], federation().server.gate.noise(0, (1, 50)))
        assert len(torch.cat(draws).unique()) == 50 * len(draws)

    def test_other_cohorts_leave_batches_alone(self):
        plain, other = federation(), federation(cohort=3)
        assert self.cohorts(plain) != self.cohorts(other)
        assert self.batches(plain) == self.batches(other)

    def test_the_start_depends_on_the_models_seed_only(self):
        one = build_model("mlp", (4,), 3, "classification", 0).start()
        torch.manual_seed(123)
        again = build_model("mlp", (4,), 3, "classification", 0).start()
        other = build_model("mlp", (4,), 3, "classification", 1).start()
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
        assert torch.equal(federation(seed=0).model.start(), federation(seed=5).model.start())

    def test_the_global_generators_are_neither_read_nor_moved(self):
        expected, _ = run(federation())
        torch.manual_seed(7)
        before = torch.random.get_rng_state()
        numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
        actual, _ = run(federation())
        assert torch.equal(torch.random.get_rng_state(), before)
        assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
        assert same(expected, actual)


@pytest.mark.parametrize("algorithm", ["pmtl", "fedavg", "ditto", "ppsgd", "local", "naive_joint"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_cohort_that_is_trained_in_pieces_ends_the_same(algorithm, at_once, monkeypatch):
    settings = {"algorithm": algorithm, "dtype": torch.float64, "engine": "axis"}
    whole = federation(**settings)
    expected, reports = run(whole)
    assert len(whole.sites.pieces(np.arange(M))) == 1
    at_most = at_once * whole.sites.client_floats
    monkeypatch.setattr("pmtl.engines.choose.CHUNK_FLOATS", at_most)
    pieces = federation(**settings)
    actual, others = run(pieces)
    assert max(len(piece) for piece in pieces.sites.pieces(np.arange(M))) == at_once
    close = {"rtol": 0, "atol": 1e-12}
    assert torch.allclose(actual.shared, expected.shared, **close)
    assert torch.allclose(actual.store.vectors, expected.store.vectors, **close)
    for one, two in zip(reports, others, strict=True):
        assert one.cohort == two.cohort
        assert one.train_loss == pytest.approx(two.train_loss, abs=1e-12)
        assert one.clipped == two.clipped


@pytest.mark.parametrize("storage", ["csr", "csc", "memmap", "mapped doubles", "not resident"])
def test_how_the_features_are_stored_changes_nothing(storage, tmp_path, monkeypatch):
    x, _, _ = table()
    expected, _ = run(federation(x=x, noise=seeded_noise(0)))
    if storage == "not resident":
        monkeypatch.setattr("pmtl.engines.row_tensors.RESIDENT_LIMIT", 0)
        stored = x
    elif storage in ("csr", "csc"):
        stored = getattr(sparse, f"{storage}_matrix")(x)
    else:
        dtype = np.float32 if storage == "memmap" else np.float64
        stored = np.memmap(tmp_path / "x", dtype=dtype, mode="w+", shape=x.shape)
        stored[:] = x
    other = federation(x=stored, noise=seeded_noise(0))
    assert not other.sites.tensors.resident
    actual, _ = run(other)
    assert same(expected, actual)


def test_pixels_are_read_between_zero_and_one():
    pixels = np.random.default_rng(0).integers(0, 256, (sum(SIZES), 4)).astype(np.uint8)
    noise = seeded_noise(0)
    expected, _ = run(federation(x=np.divide(pixels, 255, dtype=np.float32), noise=noise))
    actual, _ = run(federation(x=pixels, noise=noise))
    assert same(expected, actual)


@pytest.mark.parametrize("algorithm", ["pmtl", "ditto", "local", "naive_joint"])
def test_all_clients_begin_with_the_common_start(algorithm):
    made = federation(algorithm=algorithm)
    progress = made.start()
    start = made.model.start()
    assert progress.round == 0
    assert len(progress.shared) == (M if algorithm == "naive_joint" else 1)
    for row in (*progress.shared, *made.predictors(progress, np.arange(M))):
        assert torch.equal(row, start)


def test_a_round_only_touches_the_clients_that_were_drawn():
    made = federation()
    progress = made.start()
    for t in range(ROUNDS):
        before = progress.store.vectors.clone()
        made.advance(progress)
        changed = (progress.store.vectors != before).any(dim=1).numpy()
        assert np.array_equal(np.flatnonzero(changed), made.server.sampler.draw(t))


def test_local_training_trains_all_clients_and_publishes_nothing():
    made = federation(algorithm="local", cohort=1)
    progress = made.start()
    start = progress.shared.clone()
    report = made.advance(progress)
    assert report.cohort == M
    assert report.upload_norm is None
    assert report.clipped is None
    assert torch.equal(progress.shared, start)
    assert (progress.store.vectors != start).any(dim=1).all()
    assert set(made.views(progress)) == {"personal"}
    assert set(federation().views(progress)) == {"personal", "shared"}


def test_a_report_says_what_happened():
    made = federation(algorithm="fedavg", dtype=torch.float64, sigma=0.0)
    progress = made.start()
    for t in range(ROUNDS):
        cohort = made.server.sampler.draw(t)
        own = progress.store.gather(cohort)
        around = progress.shared.expand(len(cohort), -1)
        trained = made.sites.train_clients(cohort, own, around, t, made.sites.local.lr_at(t))
        norms = trained.uploads.norm(dim=1)
        report = made.advance(progress)
        assert report.round == t + 1 == progress.round
        assert report.cohort == len(cohort)
        assert report.lr == made.sites.local.lr_at(t)
        assert report.train_loss == pytest.approx(float(trained.losses.mean()))
        assert report.upload_norm == pytest.approx(float(norms.mean()))
        assert report.clipped == pytest.approx(float((norms > 0.4).double().mean()))


def test_the_step_size_follows_its_schedule():
    made = federation(local=LocalTraining(epochs=1, lr=0.2, halve_every=2))
    _, reports = run(made)
    assert [report.lr for report in reports] == [0.2, 0.2, 0.1, 0.1]


def test_a_plan_for_another_number_of_clients_is_refused():
    data = federation().data.select([f"c{k}" for k in range(M - 1)])
    plan = PrivacyPlan(M, M, "full", 1.0, 0.1, 2, 1e-3)
    model = build_model("logistic", data.input_shape, data.outputs, data.task, 0)
    with pytest.raises(PmtlError, match="plan is for 8 clients, but the data has 7"):
        simulate(data, model, build_algorithm("pmtl"), plan, LocalTraining(), 0)


def test_no_round_is_run_that_the_plan_does_not_pay_for():
    made = federation()
    progress, reports = run(made)
    assert len(reports) == ROUNDS
    assert list(made.rounds(progress)) == []
    with pytest.raises(PmtlError, match="pays for 4 rounds"):
        made.advance(progress)


def test_cohorts_of_a_run_are_those_of_its_plan():
    for sampling in ("poisson", "fixed"):
        made = federation(sampling=sampling, seed=3)
        _, reports = run(made)
        drawn = [
            len(made.plan.sampler(3, made.server.sampler.client_keys).draw(t))
            for t in range(ROUNDS)
        ]
        assert [report.cohort for report in reports] == drawn
    assert set(drawn) == {5}


class TestNoiseOfItsOwn:
    """Uploads are clipped to next to nothing, so that what is published is noise."""

    def published(self, algorithm, seed=0, **changes):
        made = federation(
            algorithm=algorithm,
            seed=seed,
            sigma=1.0,
            clip=1e-5,
            cohort=M,
            sampling="full",
            **changes,
        )
        progress = made.start()
        first = progress.shared.clone()
        rounds = []
        for _ in made.rounds(progress):
            rounds.append((progress.shared - first).double())
            first = progress.shared.clone()
        return torch.stack(rounds)  # [rounds, blocks, P]

    def clusters(self, tmp_path, name, of):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({f"c{k}": str(of(k)) for k in range(M)}))
        return f"clustered:clusters={file}"

    @pytest.mark.parametrize("hardened", [False, True])
    @pytest.mark.parametrize("seed", [0, None], ids=["experiment", "production"])
    def test_of_every_block_and_every_round(self, tmp_path, seed, hardened):
        algorithm = self.clusters(tmp_path, "half", lambda k: k < M // 2)
        charge = {"charge": lambda round: None} if seed is None else {}
        noise = self.published(algorithm, seed, hardened=hardened, **charge)
        flat = noise.reshape(-1, noise.shape[-1])
        assert len(flat) == 2 * ROUNDS
        between = torch.corrcoef(flat) - torch.eye(len(flat))
        # Of so many coordinates, by chance one in 10⁹.
        assert float(between.abs().max()) < 6.5 / noise.shape[-1] ** 0.5
        assert len(torch.unique(flat)) == flat.numel()

    def test_of_every_clustering_with_one_seed(self, tmp_path):
        """Two runs that differ in nothing but who is in which cluster: were their noise the same,
        the difference of two published models would be that of two sums."""
        one = self.published(self.clusters(tmp_path, "clusters", lambda k: k < M // 2))
        file = tmp_path / "clusters.json"
        file.write_text(json.dumps({f"c{k}": str(k % 2) for k in range(M)}))
        two = self.published(f"clustered:clusters={file}")
        for a in one.reshape(-1, one.shape[-1]):
            for b in two.reshape(-1, two.shape[-1]):
                gap = (a / a.std() - b / b.std()).abs()
                assert float(gap.max()) > 0.5


def test_production_without_a_charge_is_refused_by_either_gate():
    with pytest.raises(PmtlError, match="every release is charged"):
        federation(seed=None)
    made = federation(seed=None, charge=lambda round: None)
    metrics = PrivacyPlan(M, M, "full", 1.0, 0.1, ROUNDS, 1e-3)
    with pytest.raises(PmtlError, match="every release is charged"):
        made.prepare_metrics(metrics)


def test_a_cohort_that_was_drawn_ahead_serves_its_own_round_only():
    """On a graphics card the next cohort is drawn while this one trains. Whatever was looked at
    ahead, every round trains the cohort that the sampler draws for it, to the same bits."""
    plain, _ = run(federation())
    made = federation()
    made._prefetch(2)
    ahead, _ = run(made)
    assert same(plain, ahead)


def test_a_method_without_steps_reports_neither_a_step_size_nor_a_training_loss(tmp_path):
    pmtl.train("synthetic:clients=30", privacy=2.0, out=tmp_path / "run")
    header, first, *_ = (tmp_path / "run/metrics.csv").read_text().splitlines()
    cells = dict(zip(header.split(","), first.split(","), strict=True))
    assert (cells["lr"], cells["train_loss"]) == ("", "")
    assert float(cells["upload_norm"]) > 0
