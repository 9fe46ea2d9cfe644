"""Pooling is its page of mathematics, decides from public numbers only, and never explodes."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from at_length import at_length
from pooling_data import TASKS, federation, rows_of, vector
from pooling_page import ALONE_CLASSES, ALONE_NUMBERS, AROUND, Page, smooth_shapes
from weights import personal

import pmtl
from pmtl.algorithms import build_algorithm
from pmtl.algorithms.default.exact import Sizes
from pmtl.algorithms.default.pooling import Pooling
from pmtl.client.batches import LocalTraining
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.models.linear import candidates
from pmtl.models.linear.solve import ClientRows
from pmtl.privacy.clipping import clip
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import simulate

NUMBERS = Sizes("regression", 1, 6, True)


# ---- the page ----


@pytest.mark.parametrize(("spec", "reach"), [("pooling", 4.0), ("pooling:reach=0.4", 0.4)])
def test_without_noise_it_is_its_page(spec, reach):
    """Also where the first steps are so short that the path has to be doubled."""
    data = federation(rows=12, level=553.0, size=66.0, differ=0.2).scaled()
    run = pmtl.train(data, algorithm=spec, privacy={"epsilon": math.inf})
    page = Page(rows_of(data), reach=reach)
    shared, own = page.run()
    assert page.clipped > 0
    assert (page.doubled > 1) == (reach < 1)
    parts = np.array(page.parts)
    assert np.ptp(parts, axis=0).max() > 0.02, "all clients chose alike: nothing was tried"
    found = personal(run).numpy()
    assert np.allclose(found, [vector(weights) for weights in own], rtol=1e-4, atol=1e-3)
    published = run.views()["shared"](np.array([0]))[0].numpy()
    assert np.allclose(published, vector(shared), rtol=1e-4, atol=1e-3)


def simulated(data, sigma, noise, reach):
    """A run with the noise that is given, not with the plan's own."""
    model = build_model("auto", data.input_shape, data.outputs, data.task, 0)
    sizes = Sizes(data.task, data.outputs, data.input_shape[0] + 1, True)
    method = Pooling(reach=reach, share="all", target="release").resolve(sizes, math.inf)
    method = method.with_noise(sigma)
    plan = PrivacyPlan(data.m, data.m, "full", 1.0, sigma, method.releases, 0.01)
    made = simulate(data, model, method, plan, LocalTraining(), 0, noise=noise)
    state = made.start()
    list(made.rounds(state))
    clients = np.arange(data.m)
    return {name: view(clients).numpy() for name, view in made.views(state).items()}


@pytest.mark.parametrize(
    ("classes", "sigma"),
    at_length([(0, 0.02), (2, 0.3), (3, 0.02), (3, 0.3)], lambda case: case[0] < 3),
)
def test_with_noise_it_is_its_page(classes, sigma):
    """Also with so much noise that votes are doubted, and penalties are limited by it."""
    task = "classification" if classes else "regression"
    data = federation(m=10, rows=10, task=task, outputs=classes or 1)
    reach = 1.5 if sigma < 0.1 else 4.0

    def draw(round, size):
        return np.random.default_rng(round).normal(size=size)

    def noise(round, shape):
        return torch.tensor(draw(round, shape[1])).expand(shape)

    found = simulated(data, sigma, noise, reach)
    page = Page(rows_of(data), reach, sigma, draw, classes=bool(classes))
    shared, own = page.run()
    assert 0.3 < page.trust[0] < (0.95 if sigma > 0.1 else 1)
    assert page.doubled > 0, "the path was never doubled: nothing was tried"
    # Rounds and held-out losses of classes are solved only roughly.
    close = {"rtol": 1e-4, "atol": 1e-2 if classes else 1e-4}
    assert np.allclose(found["shared"][0], vector(shared), **close)
    expected = np.array([vector(weights) for weights in own])
    # How much of each cell a client takes follows from held-out losses.
    assert np.abs(found["personal"] - expected).max() < (0.03 if classes else 1e-4)


class TestTheVote:
    """James and Stein, with caution: a smooth vote has 5 free numbers of deviation s, the rest of
    it 6, and a part of norm below s√(2 · free numbers) counts for nothing."""

    data = federation(rows=24, task="classification", outputs=2, differ=0.1)
    method = Pooling().resolve(Sizes("classification", 2, 4, True), 40.0)
    page = Page(rows_of(data), method.reach, method.noise, classes=True)
    page.steps = [page.first_step] * 8
    #: One model for all rows.
    shared = page.solve(
        np.concatenate([x for x, _ in page.rows]),
        np.concatenate([y for _, y in page.rows]),
        np.zeros((4, 2)),
        (0.3, 3.0),
    )

    def owned(self, vote):
        """The clients' models after this vote."""
        board = self.method.billboard_start(torch.zeros(8)).double().unsqueeze(0)
        board[:, :8] = torch.tensor(self.shared.ravel())
        board[:, -14:-2] = torch.tensor(vote)
        board[:, -1] = sum(step**2 for step in self.page.steps)
        return self.method.finish(client_rows(self.data), board.expand(self.data.m, -1))

    def smooth(self, sizes):
        """A vote for or against strong penalties on slopes, as long as so many limits."""
        # With so much noise a vote is clipped to a norm at which its mean has a noise of .005.
        limit = 0.005 * math.sqrt(2 * 5)
        direction = smooth_shapes()[:, 2]
        return -sizes * limit * direction / np.linalg.norm(direction)

    def test_that_is_no_more_than_noise_counts_for_nothing(self):
        assert 0.05 < 0.005 * math.sqrt(3) / self.method.noise < 2
        nothing = self.owned(0 * self.smooth(1))
        assert torch.equal(self.owned(self.smooth(0.99)), nothing)
        assert torch.equal(self.owned(self.smooth(-0.99)), nothing)

    def test_that_is_more_than_noise_counts(self):
        found = self.owned(self.smooth(3.0))
        assert not torch.allclose(found, self.owned(self.smooth(-3.0)), atol=1e-2)

    def test_what_is_not_smooth_in_it_counts_if_it_is_more_than_its_own_noise(self):
        shapes, rough = smooth_shapes(), np.random.default_rng(0).normal(size=12)
        rough -= rough.mean()
        rough -= shapes @ np.linalg.lstsq(shapes, rough)[0]
        rough *= 0.005 * math.sqrt(2 * 6) / np.linalg.norm(rough)
        nothing, clear = self.owned(0 * rough), self.smooth(3.0)
        assert torch.equal(self.owned(0.99 * rough), nothing)
        assert torch.allclose(self.owned(clear + 0.99 * rough), self.owned(clear))
        assert not torch.allclose(self.owned(10 * rough), nothing, atol=1e-3)

    def test_that_says_nothing_leaves_clients_to_their_own_rows(self):
        """Each takes the mean of its candidates by how likely they make its rows, with odds of e to
        1 for training alone."""
        found = self.owned(np.zeros(12)).numpy()
        held_out = [self.page.losses(x, y, self.shared) for x, y in self.page.rows]
        taken = []
        for (x, y), (losses, alone), mine in zip(self.page.rows, held_out, found, strict=True):
            odds = np.exp(-len(y) * (losses - losses.min()))
            odds[:-1] *= math.exp(-1) / len(AROUND)
            odds /= odds.sum()
            taken.append(odds[-1])
            cells = np.concatenate([odds[:-1], odds[-1] * alone])
            own = sum(p * self.page.cell(x, y, self.shared, c) for c, p in enumerate(cells))
            assert np.allclose(mine[:8], vector(own), atol=1e-2)
        assert min(taken) < 0.3 < 0.7 < max(taken)


def test_its_cells_are_those_of_the_page():
    assert [tuple(cell) for cell in candidates.AROUND] == AROUND
    assert candidates.ALONE_NUMBERS == ALONE_NUMBERS
    assert candidates.ALONE_CLASSES == ALONE_CLASSES


# ---- what leaves a client ----


def client_rows(data):
    """The training rows of all clients, padded."""
    rows = rows_of(data)
    most = max(len(y) for _, y in rows)
    x, y = (np.stack([pad(row[part], most) for row in rows]) for part in (0, 1))
    mask = np.stack([pad(np.ones((len(y), 1)), most)[:, 0] for _, y in rows])
    return ClientRows(data.task, *(torch.tensor(part) for part in (x, y, mask)))


def pad(array, most):
    return np.concatenate([array, np.zeros((most - len(array), array.shape[1]))])


@pytest.mark.parametrize("share", ["all", "intercepts"])
@pytest.mark.parametrize(("task", "outputs"), TASKS)
def test_every_stage_uploads_what_it_says(task, outputs, share):
    data = federation(task=task, outputs=outputs)
    rows, sizes = client_rows(data), Sizes(task, outputs, 4, True)
    method = Pooling(share=share, target="release").resolve(sizes, 200.0)
    assert method.releases == 11 + 2 * (task == "regression")
    stages = [method.stage(round) for round in range(method.releases)]
    assert stages == ["size", "level"] * (task == "regression") + ["weights"] * 8 + ["vote"] * 3
    repeated = [method.repeats(round) for round in range(method.releases)]
    assert repeated == [False] * (method.releases - 2) + [True] * 2
    board = method.billboard_start(torch.zeros(4 * outputs)).expand(data.m, -1)
    expected = {"weights": outputs * (4 if share == "all" else 1), "vote": 12}
    for round, stage in enumerate(stages):
        uploads = method.compute_uploads(rows, board, round)
        assert uploads.shape == (data.m, method.upload_size(round))
        assert uploads.shape[1] == expected.get(stage, 64 * outputs)
        norms = torch.linalg.vector_norm(clip(uploads, 1.0), dim=1)
        assert (norms <= 1).all()
        assert (norms > 0).all()
        if stage in ("size", "level"):
            assert torch.allclose(uploads.norm(dim=1), torch.ones(data.m).double())
            marks = (uploads.view(data.m, outputs, 64) > 0).sum(2)
            assert torch.equal(marks, torch.ones_like(marks)), "one bin for each output"
        if stage == "vote":
            assert torch.allclose(uploads.sum(1), torch.zeros(data.m).double(), atol=1e-9)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_client_that_cannot_tell_does_not_vote(rows):
    data = federation()
    told = client_rows(data)
    mask = told.mask.clone()
    mask[3, rows:] = 0
    told = ClientRows(told.task, told.x * mask[..., None], told.y * mask[..., None], mask)
    method = Pooling(target="release").resolve(NUMBERS_OF_3, 200.0)
    board = method.billboard_start(torch.zeros(4)).expand(data.m, -1)
    assert not method.compute_uploads(told, board, 0)[3].any(), (
        "no deviation of fewer than two rows"
    )
    assert method.compute_uploads(told, board, 1)[3].any() == (rows == 1)
    vote = method.compute_uploads(told, board, method.releases - 1)
    assert not vote[3].any()
    assert vote[2].any()


NUMBERS_OF_3 = replace(NUMBERS, columns=4)


@pytest.mark.parametrize(
    ("level", "size"), [(553, 66), (-3, 1), (1e-4, 1e-5), (1e6, 10), (0, 1), (-4e5, 3e5)]
)
def test_the_level_and_the_size_of_a_target_are_found(level, size):
    """With noise; without them all personal models would be around zero."""
    data = federation(m=200, rows=12, level=float(level), size=float(size)).scaled()
    run = pmtl.train(data, algorithm="pooling", privacy=2.0, seed=1)
    deviation = data.y.std()
    losses = run.evaluate()["test"]
    assert losses["personal"]["rmse"] < 0.8 * deviation
    if abs(level) < 64 * size:
        assert losses["shared"]["rmse"] < 1.2 * deviation
        return
    # Farther away, the shared model's level is known up to a multiple of 128 sizes; clients know
    # the multiple.
    intercept = float(run.views()["shared"](np.array([0]))[0, -1])
    turn = 128 * 2.0 ** math.floor(math.log2(size))  # or twice as much
    off = (level - intercept) / turn
    assert abs(off) > 1
    assert abs(off - round(off)) * turn < deviation


# ---- decisions from public numbers ----


def test_it_resolves_by_sizes_and_strength_alone():
    """The same settings for two federations with the same public numbers, whatever their rows."""
    told = []
    for data in (federation(m=60, seed=1), federation(m=60, seed=2, level=1e5, size=1e3)):
        run = pmtl.train(data, algorithm="pooling", privacy=1.0)
        told.append((run.facts.releases, run.facts.plan, run.facts.shows_model))
    assert told[0] == told[1]
    assert Pooling().resolve(NUMBERS, 30.0) == Pooling().resolve(NUMBERS, 30.0)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_more_strength_never_gives_less(task):
    sizes = Sizes(task, 2, 20, True)
    resolved = [Pooling().resolve(sizes, strength) for strength in np.geomspace(0.1, 1e6, 200)]
    resolved.append(Pooling().resolve(sizes, math.inf))
    noise = [method.noise for method in resolved]
    assert noise == sorted(noise, reverse=True) or task == "regression"
    shares = [method.share for method in resolved]
    assert shares == sorted(shares, reverse=True), "intercepts first, then all"
    assert set(shares) == {"intercepts", "all"}
    for share in ("intercepts", "all"):
        reach = [method.reach for method in resolved if method.share == share]
        kinds = [method.target for method in resolved if method.share == share]
        for kind in set(kinds):
            mine = [r for r, target in zip(reach, kinds, strict=True) if target == kind]
            assert mine == sorted(mine)
    assert {0.5, 4.0} <= {method.reach for method in resolved}
    targets = [method.target for method in resolved]
    assert targets == (sorted(targets) if task == "regression" else ["none"] * 201)


def test_noise_is_what_the_strength_buys():
    """σ = 2√T/(mμ): the mean moves by 2/m, T times, for μ in all."""
    method = Pooling().resolve(NUMBERS, 300.0)
    assert method.releases == 13
    assert method.noise == pytest.approx(2 * math.sqrt(13) / 300)
    assert Pooling().resolve(NUMBERS, math.inf).noise == 0


def test_many_weights_at_a_small_budget_are_not_shared():
    wide = Sizes("classification", 100, 1001, True)
    method = Pooling().resolve(wide, 99.0)
    assert method.share == "intercepts"
    assert method.upload_size(0) == 100
    assert "too few to share 1,001 × 100 weights" in method.warning(200, 200, 11)
    assert "8 for the shared intercepts" in method.in_words
    assert Pooling(share="all").resolve(wide, 100.0).upload_size(0) == 100_100
    assert Pooling().resolve(wide, 1e6).warning(200, 200, 11) is None


def test_shared_intercepts_leave_the_slopes_at_zero():
    data = federation(m=40)
    run = pmtl.train(data, algorithm="pooling:share=intercepts", privacy=50.0)
    published = run.views()["shared"](np.array([0]))[0]
    assert not published[:-1].any()
    assert published[-1] != 0
    assert personal(run)[:, :-1].any()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("pooling:target=mean", "target must be one of auto, given, release, own, none"),
        ("pooling:share=slopes", "share must be one of auto, all, answers, frequent, intercepts"),
        ("pooling:rounds=0", "rounds and votes must be at least 1"),
        ("pooling:votes=0", "rounds and votes must be at least 1"),
        ("pooling:reach=-1", "reach must be a finite number"),
        ("pooling:noise=nan", "noise must be a finite number"),
        ("pooling:lam=1", "lam"),
    ],
)
def test_bad_settings_are_refused(spec, words):
    with pytest.raises(PmtlError, match=words):
        build_algorithm(spec)


def test_it_is_a_frozen_dataclass_that_its_name_builds():
    assert build_algorithm("pooling") == Pooling()
    assert build_algorithm("pooling:votes=2,reach=1") == Pooling(votes=2, reach=1.0)
    with pytest.raises(FrozenInstanceError):
        Pooling().rounds = 3


def test_it_does_nothing_before_it_is_resolved():
    with pytest.raises(PmtlError, match="call resolve first"):
        Pooling().billboard_start(torch.zeros(3))
    with pytest.raises(PmtlError, match="freeze the other layers"):
        Pooling().resolve(replace(NUMBERS, linear=False), 10.0)


def test_what_follows_from_the_run_cannot_be_set():
    with pytest.raises(PmtlError, match="sizes follows from the run"):
        build_algorithm("pooling:sizes=5")
