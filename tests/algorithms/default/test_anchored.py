"""Anchored: what is decided from public numbers, what leaves clients, and what they end up with."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import pmtl
from pmtl.algorithms import build_algorithm
from pmtl.algorithms.default import anchored, voting
from pmtl.algorithms.default.anchored import NOISE, NOISE_OF_PUBLIC, REACH, Anchored
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.models.network import train
from pmtl.models.network.candidates import CELLS
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release
from pmtl.report.run_verdict import verdict
from pmtl.runs.folder import RunFolder
from pmtl.server.resolve import sizes_of
from pmtl.sharing import share_part

MODEL = "mlp:hidden=8"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(train, "STEPS", 2)
    monkeypatch.setattr(anchored, "ROUND_STEPS", 2)


def federation(m=40, rows=24, own=0.0, task="classification", seed=0, units=(1.0, 0.0)):
    """Rules that no linear model can follow: the sign of a product of two columns."""
    random = np.random.default_rng(seed)
    client = np.repeat([f"c{k:03d}" for k in range(m)], rows)
    x = random.choice([-1.0, 1.0], size=(len(client), 3)) + 0.3 * random.normal(
        size=(len(client), 3)
    )
    flip = np.where(random.random(m) < own, -1.0, 1.0)[np.repeat(np.arange(m), rows)]
    answer = flip * np.sign(x[:, 0] * x[:, 1])
    y = (answer > 0).astype(np.int64)
    if task == "regression":
        y = units[0] * (answer + 0.3 * random.normal(size=len(client))) + units[1]
    split = np.tile(["train"] * (rows // 2) + ["test"] * (rows - rows // 2), m)
    x = x.astype(np.float32)
    return FederatedData.from_arrays(x, y, client, split=split, task=task)


def resolved(strength=200.0, task="classification", outputs=2, model=MODEL, **options):
    flat = build_model(model, (3,), outputs, task, 0)
    public_start = options.pop("public_start", False)
    sizes = sizes_of(flat, (3,), task, outputs, public_start=public_start)
    return Anchored(**options).resolve(sizes, strength), flat


def rows_of(flat, task="classification", outputs=2, n=7, seed=0, scale=1.0):
    random = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(1, n, 3, generator=random)
    y = torch.randint(0, outputs, (1, n), generator=random)
    if task == "regression":
        y = scale * torch.randn(1, n, outputs, generator=random)
    reader = Anchored().reader(flat, (3,))
    return reader.rows(task, outputs, x, y, torch.ones(1, n, dtype=torch.bool))


def losses(run, view):
    return run.client_losses("test")[view]


# ---- decided from public numbers ----


def test_the_noise_in_the_shared_weights_is_no_longer_than_the_start():
    for strength, bound in ((1e6, REACH), (5.0, None)):
        method, flat = resolved(strength)
        length = float(flat.start().norm())
        drift = method.noise * math.sqrt(flat.size * method.rounds) * method.move_limit
        assert method.move_limit * method.rounds <= REACH * length * (1 + 1e-6)
        if bound is None:
            assert drift == pytest.approx(NOISE * length, rel=1e-4)
        else:
            assert method.move_limit * method.rounds == pytest.approx(bound * length, rel=1e-4)
    careful, flat = resolved(5.0, public_start=True)
    drift = careful.noise * math.sqrt(flat.size * careful.rounds) * careful.move_limit
    assert drift == pytest.approx(NOISE_OF_PUBLIC * float(flat.start().norm()), rel=1e-4)


@pytest.mark.parametrize(
    ("task", "options", "strength", "expected"),
    [
        ("classification", {}, 200.0, ("none", 11)),
        ("regression", {}, 200.0, ("release", 13)),
        ("regression", {}, 20.0, ("own", 11)),
        ("regression", {"target": "none"}, 200.0, ("none", 11)),
        ("regression", {"public_start": True}, 200.0, ("none", 11)),
    ],
)
def test_how_a_target_is_scaled(task, options, strength, expected):
    method, _ = resolved(strength, task, 1 if task == "regression" else 2, **options)
    assert (method.target, method.releases) == expected


def test_a_large_network_with_a_public_start_shares_a_subspace():
    assert resolved(200.0, public_start=True)[0].default_share is None
    assert resolved(1e-3, model="mlp:hidden=64")[0].default_share is None
    large, flat = resolved(40.0, model="mlp:hidden=400", public_start=True)
    assert large.default_share == "subspace:k=100"
    part = share_part(large, large.default_share, flat)
    assert part.billboard_size(flat.layout) == 100 + 2 * 2 + CELLS


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("anchored:target=mean", "target must be one of auto, given, release, own, none"),
        ("anchored:rounds=0", "rounds and votes must be at least 1"),
        ("anchored:part=3", "part follows from the run and cannot be set"),
        ("anchored:lam=1", "lam"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(spec, words):
    with pytest.raises(PmtlError, match=words):
        build_algorithm(spec)


def test_a_target_that_cannot_be_scaled_is_refused_or_left():
    flat = build_model(MODEL, (3,), 1, "regression", 0, frozen="3.*")
    sizes = sizes_of(flat, (3,), "regression", 1)
    assert Anchored().resolve(sizes, 200.0).target == "none"
    with pytest.raises(PmtlError, match="whose last layer is linear"):
        Anchored(target="release").resolve(sizes, 200.0)
    with pytest.raises(PmtlError, match="needs public bounds"):
        resolved(200.0, "regression", 1, target="given")


def test_it_is_the_default_for_networks_unless_steps_are_given(quick):
    data = federation(8)
    assert pmtl.train(data, MODEL, privacy=8.0).facts.algorithm.startswith("anchored")
    assert pmtl.train(data, MODEL, privacy=8.0, share="3.*").facts.algorithm.startswith("anchored")
    assert pmtl.train(data, privacy=8.0).facts.algorithm.startswith("pooling")
    for given in ({"privacy": {"rounds": 2}}, {"local": {"steps": 1}}):
        assert pmtl.train(data, MODEL, **given).facts.algorithm.startswith("pmtl")


# ---- what leaves clients ----


@pytest.mark.parametrize("share", [None, "3.*", "subspace:k=9", "film"])
def test_an_upload_is_the_move_in_units_of_c_and_the_server_adds_it(share, quick):
    method, flat = resolved(200.0)
    method = share_part(method, share, flat).to(torch.device("cpu"), torch.float32)
    board = method.billboard_start(flat.start()).unsqueeze(0)
    rows = rows_of(flat)
    upload = method.compute_uploads(rows, board, 0)
    assert upload.shape == (1, method.upload_size(0))
    assert upload.norm() > 0
    after, memory = method.server_step(board.double(), upload.double(), method.server_start(board))
    size = method.upload_size(0)
    moved = after[:, :size] - board[:, :size].double()
    assert torch.allclose(moved, method.move_limit * upload.double(), rtol=1e-4, atol=1e-7)
    assert torch.equal(after[:, size:], board[:, size:].double())
    assert int(memory["round"]) == 1
    assert method.published(after).shape == (1, flat.size)


def test_the_votes_are_averaged_and_nothing_else_changes(quick):
    method, flat = resolved(200.0)
    board = method.billboard_start(flat.start()).unsqueeze(0).double()
    memory = {"round": torch.full((1,), float(method.rounds)).double()}
    ballots = torch.randn(3, 1, CELLS).double()
    after = board
    for ballot in ballots:
        after, memory = method.server_step(after, ballot, memory)
    wanted = voting.VOTE_NOISE * math.sqrt(method.votes) / method.noise
    norm = min(max(wanted, voting.VOTE_NORMS[0]), voting.VOTE_NORMS[1])
    assert torch.allclose(after[:, -CELLS:], ballots.mean(0) * norm)
    assert torch.equal(after[:, :-CELLS], board[:, :-CELLS])


@pytest.mark.parametrize(("task", "outputs"), [("classification", 2), ("regression", 1)])
def test_one_client_moves_no_mean_by_more_than_2_over_m(task, outputs, quick):
    """In every stage, before noise, whatever the client's rows are and become."""
    method, flat = resolved(200.0, task, outputs)
    m, board = 4, method.billboard_start(flat.start()).unsqueeze(0)
    plan = PrivacyPlan(m, m, "full", 1.0, 0.1, method.releases, 0.01)
    usual = [rows_of(flat, task, outputs, seed=k) for k in range(m - 1)]
    extreme = [rows_of(flat, task, outputs, 3, 9, scale) for scale in (1.0, 1e30, 1e-30, math.nan)]
    stages = {method.stage(round): round for round in range(method.releases)}
    for round in stages.values():
        means = []
        for mine in extreme:
            gate = Release(plan, np.zeros(m, dtype=np.int64), lambda *_: torch.zeros(1))
            tally = gate.open(round, torch.zeros(1, 1), method.upload_size(round))
            for k, rows in enumerate([*usual, mine]):
                gate.add(tally, np.array([k]), method.compute_uploads(rows, board, round))
            means.append(gate.average(tally))
        for mean in means:
            assert mean.isfinite().all()
            assert (mean - means[0]).norm() <= 2 / m * (1 + 1e-9)


def test_in_production_every_release_is_charged_once(tmp_path, quick):
    data = federation(10)
    Ledger.create(tmp_path / "ledger.db", data.clients).close()
    asked = {"epsilon": 8.0, "metrics": 0.0}
    given = {"mode": "production", "ledger": tmp_path / "ledger.db", "out": tmp_path / "run"}
    run = pmtl.train(data, MODEL, privacy=asked, **given)
    with Ledger.open(tmp_path / "ledger.db", write=False) as ledger:
        rounds = [entry.round for entry in ledger.entries() if entry.kind == "charge"]
    assert rounds == list(range(11))
    assert run.facts.plan.rounds == 11
    assert run.privacy.epsilon <= 8.0
    words = " ".join(str(run.privacy).split())
    assert "8 for the shared weights, 3 for a vote on how far clients go from them" in words


# ---- what clients end up with ----


def test_where_clients_are_alike_it_beats_training_alone_and_says_so():
    data = federation(60)
    run = pmtl.train(data, MODEL, privacy=8.0)
    gain = losses(run, "alone") - losses(run, "personal")
    assert gain.mean() > 3 * gain.std() / math.sqrt(len(gain))
    assert gain.mean() > 0.1
    assert (losses(run, "shared") - losses(run, "personal")).mean() > -0.02
    assert verdict(run).sentence.startswith("Verdict: share.")


def test_where_sharing_cannot_help_it_is_as_good_as_training_alone():
    """Half of the clients follow the opposite rule; and, with other clients, ε is tiny."""
    for data, epsilon in ((federation(60, own=0.5), 8.0), (federation(60), 0.05)):
        run = pmtl.train(data, MODEL, privacy=epsilon)
        lost = losses(run, "personal") - losses(run, "alone")
        assert lost.mean() < 2 * lost.std() / math.sqrt(len(lost)) + 1e-9


@pytest.mark.parametrize(("epsilon", "target"), [(400.0, "release"), (2.0, "own")])
def test_units_of_a_number_do_not_matter(epsilon, target):
    """The same federation in units that are far from 1, and far from zero."""
    found = []
    for units in ((1.0, 0.0), (1e4, 6e5)):
        data = federation(30, task="regression", units=units)
        run = pmtl.train(data, MODEL, privacy=epsilon)
        assert losses(run, "personal").max() < 5 * units[0] ** 2
        found.append(float(losses(run, "alone").mean()) / units[0] ** 2)
    assert found[0] == pytest.approx(found[1], rel=0.25)
    assert ("shared" in run.views()) == (target == "release")


def test_without_noise_the_common_start_and_the_centre_differ_only_by_training(quick):
    """With an infinite budget nothing is infinite."""
    run = pmtl.train(federation(6), MODEL, privacy=math.inf)
    assert run.views()["personal"](np.arange(6)).isfinite().all()


def test_training_alone_does_not_depend_on_what_was_published(quick):
    method, flat = resolved(200.0)
    rows = rows_of(flat)
    found = []
    for shift in (0.0, 0.3):
        board = method.billboard_start(flat.start()).unsqueeze(0)
        board[:, : flat.size] += shift
        own = method.finish(rows, board)[0]
        found.append((method.predict(own, board[0]), method.alone(own)))
    assert torch.equal(found[0][1], found[1][1])


def test_a_public_start_is_where_training_begins(tmp_path, quick):
    from safetensors.torch import save_file

    flat = build_model(MODEL, (3,), 2, "classification", 5)
    save_file(dict(flat.module.named_parameters()), tmp_path / "start.safetensors")
    options = {"privacy": 1e-3, "init": tmp_path / "start.safetensors"}
    run = pmtl.train(federation(6), MODEL, **options)
    alone = run.views()["alone"](np.arange(6))
    assert (alone - flat.start()).abs().max() < 2.0
    assert not run.data.is_scaled, "a public start reads features as they are"


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch, quick):
    data, given = federation(12, task="regression"), {"privacy": 50.0, "seed": 3}
    pmtl.train(data, MODEL, out=tmp_path / "whole", **given)
    save = RunFolder.save_round
    for stop in (1, 5, 11):

        def save_and_die(self, line, stop=stop):
            save(self, line)
            if line["round"] == stop:
                raise SystemError("power cut")

        cut = tmp_path / f"cut{stop}"
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "save_round", save_and_die)
            with pytest.raises(SystemError):
                pmtl.train(data, MODEL, out=cut, checkpoint_seconds=0.0, **given)
        pmtl.resume(cut, data)
        for name in ("personal.safetensors", "shared.safetensors", "alone.safetensors"):
            assert (cut / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_sizes_are_needed():
    with pytest.raises(PmtlError, match="call resolve first"):
        Anchored().upload_size(0)
    method, _ = resolved(200.0)
    assert replace(method, noise=0.0).move_limit > 0
