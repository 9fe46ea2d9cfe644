"""Failure cases of the gate: whatever a client sends or does not send, it moves the average by at
most 2γ/q. Each case goes through a federation's own gate, ordinary and hardened.
(`test_failure_cases.py` lists all cases.)"""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from silent import GAMMA, GATES, plan_for, silent_federation

from pmtl.algorithms import PMTL, build_algorithm
from pmtl.data import FederatedData
from pmtl.messages import UPLOAD
from pmtl.models import build_model
from pmtl.privacy.grid import GridNoise
from pmtl.privacy.release import Release
from pmtl.simulation import LocalTraining, simulate

pytestmark = GATES
NAN, INF = math.nan, math.inf


def one_round(federation, uploads=None):
    """What one round publishes, from a billboard of zeros, if these clients upload this."""
    progress = federation.start()
    for client, vector in (uploads or {}).items():
        own = progress.store.gather(np.array([client]))
        own[0, -len(vector) :] = torch.as_tensor(vector)
        progress.store.scatter(np.array([client]), own)
    federation.advance(progress)
    return progress.shared[0]


def contribution(hardened, uploads, **options):
    """What is published because of the uploads, times the divisor q: the sum of what counted."""
    federation = silent_federation(hardened, **options)
    nothing = one_round(silent_federation(hardened, **options))
    return federation.plan.cohort * (one_round(federation, uploads) - nothing)


def received(hardened, messages, plan=None):
    """What a round adds up to if sites send these (client, round, message)."""
    gate = silent_federation(hardened, plan).server.gate
    billboard = torch.zeros(1, 3, dtype=torch.float64)
    tally = gate.open(2, billboard)
    for client, round, message in messages:
        gate.receive(tally, client, round, message)
    noise = silent_federation(hardened, plan).server.gate
    nothing = noise.publish(noise.open(2, billboard), billboard)
    return gate.plan.cohort * (gate.publish(tally, billboard) - nothing)[0]


def keep_sums(monkeypatch):
    """The sums that reach `publish`, private as they are, as they come."""
    sums = []
    publish = Release.publish

    def spy(self, tally, *rest):
        unit = self.noise.grid.step if isinstance(self.noise, GridNoise) else 1.0
        sums.append([Fraction(value) * Fraction(unit) for value in tally.sum[0].tolist()])
        return publish(self, tally, *rest)

    monkeypatch.setattr(Release, "publish", spy)
    return sums


def near(*values):
    """Up to the steps of the grid and the last digits of float64."""
    return pytest.approx(values, abs=1e-6)


# --- what a client sends ---

GOOD = [0.0, 0.3, 0.1]


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_an_update_that_is_nan_or_infinite_counts_as_zero_and_the_divisor_is_unchanged(
    hardened, value
):
    """`min(1, γ/nan)` is 1 in Python."""
    assert contribution(hardened, {0: [0.1, value, 0.1]}).tolist() == [0, 0, 0]
    both = contribution(hardened, {0: [0.1, value, 0.1], 2: GOOD})
    assert both.tolist() == near(*GOOD)


def test_finite_entries_whose_float32_norm_overflows_are_clipped(hardened):
    assert torch.isinf(torch.linalg.vector_norm(torch.full((3,), 3e38)))
    sent = {1: [3e38, -3e38, 3e38]}
    counted = contribution(hardened, sent, dtype=torch.float32)
    side = GAMMA / math.sqrt(3)
    assert counted.tolist() == near(side, -side, side)


def test_a_zero_update_adds_nothing(hardened):
    assert contribution(hardened, {3: [0.0, 0.0, 0.0]}).tolist() == [0, 0, 0]
    assert contribution(hardened, {3: [0.0, -0.0, 0.0], 2: GOOD}).tolist() == near(*GOOD)


@pytest.mark.parametrize("gamma", [0.5, 0.1, 1 / 3, 7.0])
def test_no_clipped_norm_is_one_ulp_above_gamma(hardened, gamma, monkeypatch):
    """In exact arithmetic; by itself `v·(γ/‖v‖)` is too long about every other time."""
    sums = keep_sums(monkeypatch)
    plan = plan_for(1, clip_norm=gamma, rounds=1000)
    federation = silent_federation(hardened, plan, features=4)
    progress = federation.start()
    random, naive = np.random.default_rng(0), []
    for length in [math.nextafter(gamma, INF)] * 20 + [1e6 * gamma] * 20:
        vector = random.normal(size=5)
        vector *= length / np.linalg.norm(vector)
        naive.append([Fraction(v) for v in (vector * (gamma / np.linalg.norm(vector))).tolist()])
        own = progress.store.gather(np.array([0]))
        own[0, -5:] = torch.from_numpy(vector)
        progress.store.scatter(np.array([0]), own)
        federation.advance(progress)
    lengths = [sum(value**2 for value in row) for row in sums]
    assert all(Fraction(0.99 * gamma) ** 2 < square <= Fraction(gamma) ** 2 for square in lengths)
    assert any(sum(value**2 for value in row) > Fraction(gamma) ** 2 for row in naive)


WRONG = {
    "shape": {UPLOAD: np.ones(4)},
    "more dimensions": {UPLOAD: np.ones((1, 3))},
    "no dimension": {UPLOAD: torch.tensor(1.0)},
    "dtype: whole numbers": {UPLOAD: np.ones(3, dtype=np.int64)},
    "dtype: complex": {UPLOAD: torch.ones(3, dtype=torch.complex64)},
    "dtype: objects": {UPLOAD: np.array([1.0, "client-001", None], dtype=object)},
    "dtype: text": {UPLOAD: np.array(["client-001", "a", "b"])},
    "a list": {UPLOAD: [1.0, 1.0, 1.0]},
    "no strides": {UPLOAD: torch.ones(3).to_sparse()},
    "no numbers": {UPLOAD: torch.ones(3, device="meta")},
    "key": {"update": np.ones(3)},
    "no key": {},
    "a key too many": {UPLOAD: np.ones(3), "rows": 10_000},
    "no message": None,
    "not a message": b"\x00\x01",
}


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG)
def test_a_wrong_shape_dtype_or_key_counts_as_zero_with_no_public_error_naming_the_client(
    hardened, message, capfd
):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = received(hardened, [(1, 2, message)])
        again = received(hardened, [(1, 2, message), (1, 2, {UPLOAD: np.ones(3)})])
        beside = received(hardened, [(1, 2, message), (2, 2, {UPLOAD: np.array(GOOD)})])
    assert alone.tolist() == again.tolist() == [0, 0, 0]
    assert beside.tolist() == near(*GOOD)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f8", "read-only", "grad"])
def test_an_upload_in_any_kind_of_floating_point_numbers_counts(hardened, kind):
    """And neither its history nor its memory is kept."""
    good = np.array(GOOD, dtype=kind if kind.startswith(("float", ">")) else np.float64)
    good.flags.writeable = kind != "read-only"
    sent = torch.tensor(GOOD, requires_grad=True) if kind == "grad" else good
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counted = received(hardened, [(1, 2, {UPLOAD: sent})])
    assert counted.tolist() == pytest.approx(GOOD, abs=1e-3 if kind == "float16" else 1e-6)
    assert not counted.requires_grad


def test_per_layer_clipping_is_charged_as_a_whole(hardened, monkeypatch):
    """There is no other: the vector of all layers together is at most γ long, keeps its direction,
    and a round is one charge however many layers there are."""
    sums, raw, charges = keep_sums(monkeypatch), [], []
    add = Release.add

    def spy(self, tally, clients, uploads):
        raw.append(uploads[0].double())
        add(self, tally, clients, uploads)

    monkeypatch.setattr(Release, "add", spy)
    random = np.random.default_rng(1)
    x, y = random.normal(size=(30, 4)), random.integers(0, 3, 30)
    data = FederatedData.from_arrays(x, y, ["only"] * 30, outputs=3)
    model = build_model("mlp:hidden=6,layers=2", data.input_shape, 3, data.task, 0)
    local = LocalTraining(steps=3, lr=5.0)
    plan = plan_for(1, rounds=3, noise_std=0.01)
    options = {"charge": charges.append, "hardened": hardened}
    federation = simulate(data, model, build_algorithm("fedavg"), plan, local, 0, **options)
    for _ in federation.rounds(federation.start()):
        pass
    assert charges == [0, 1, 2]
    for counted, sent in zip(sums, raw, strict=True):
        assert sent.norm() > 4 * GAMMA
        assert sum(value**2 for value in counted) <= Fraction(GAMMA) ** 2
        whole = torch.tensor([float(value) for value in counted], dtype=torch.float64)
        assert torch.allclose(whole, GAMMA * sent / sent.norm(), atol=1e-6)
        layers = [part.norm() for part in model.layout.cut(whole).values()]
        assert len(layers) == 6
        assert max(layers) < GAMMA


@pytest.mark.parametrize("times", [10, 200])
def test_a_client_that_lies_about_its_sample_count_is_ignored(hardened, times, monkeypatch):
    """Its rows, sent `times` over, weigh what they weighed."""
    sums = keep_sums(monkeypatch)
    random = np.random.default_rng(2)
    x, y = random.normal(size=(40, 3)), random.normal(size=40)
    client = np.repeat(np.arange(4), 10)
    for copies in (1, times):
        often = np.where(client == 0, copies, 1)
        rows = [np.repeat(part, often, axis=0) for part in (x, y, client)]
        data = FederatedData.from_arrays(*rows, np.full(often.sum(), "train"), validation=0.0)
        model = build_model("linear", data.input_shape, data.outputs, data.task, 0)
        local = LocalTraining(steps=2, batch=0, lr=1.0)
        federation = simulate(data, model, PMTL(), plan_for(), local, 0, hardened=hardened)
        federation.advance(federation.start())
    once, often = ([float(value) for value in row] for row in sums)
    assert math.hypot(*once) > 0.5 * GAMMA
    assert often == pytest.approx(once, abs=1e-5)


# --- who sends, and when ---


def test_dropout_leaves_the_divisor_at_q(hardened):
    plan = plan_for(10, cohort=5, sampling="fixed")
    sent = [(k, 2, {UPLOAD: np.array(GOOD)}) for k in (3, 7)]
    assert received(hardened, sent, plan).tolist() == near(*(2 * np.array(GOOD)))


def test_poisson_that_draws_nobody_publishes_pure_noise_and_is_charged(hardened):
    plan, charges = plan_for(4, cohort=1, sampling="poisson", rounds=40), []
    federation = silent_federation(hardened, plan, charge=charges.append)
    empty = next(t for t in range(40) if len(federation.server.sampler.draw(t)) == 0)
    progress = federation.start()
    own = progress.store.vectors
    own[:, -3:] = 1.0  # Whoever were drawn would show.
    progress.store.scatter(np.arange(len(own)), own)
    progress.round = empty
    report = federation.advance(progress)
    assert report.cohort == 0
    assert charges == [empty]
    bare = silent_federation(hardened, plan).server.gate
    zeros = torch.zeros(1, 3, dtype=torch.float64)
    assert torch.equal(progress.shared, bare.publish(bare.open(empty, zeros), zeros))
    assert progress.shared.any()


def test_a_duplicate_client_in_one_round_is_one_contribution(hardened):
    again = [(1, 2, {UPLOAD: np.array(GOOD)})] * 5
    assert received(hardened, again).tolist() == near(*GOOD)
    louder = [*again, (1, 2, {UPLOAD: np.ones(3)})]
    assert received(hardened, louder).tolist() == near(*GOOD)


def test_a_late_upload_of_an_earlier_round_is_dropped(hardened):
    late = (1, 1, {UPLOAD: np.array([0.4, 0.0, 0.0])})
    assert received(hardened, [late]).tolist() == [0, 0, 0]
    # It is not taken for this round's upload either, which may still come.
    on_time = (1, 2, {UPLOAD: np.array(GOOD)})
    assert received(hardened, [late, on_time]).tolist() == near(*GOOD)
    early, stranger = (1, 3, {UPLOAD: np.ones(3)}), (4, 2, {UPLOAD: np.ones(3)})
    assert received(hardened, [early, stranger]).tolist() == [0, 0, 0]
