"""What pooling shares of a model with far too many weights, and a public head to begin with."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import sparse

import pmtl
from pmtl.algorithms.default.exact import Sizes
from pmtl.algorithms.default.pooling import Pooling
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.models.linear import candidates
from pmtl.models.linear.last_layer import LastLayer
from pmtl.models.linear.public_answers import as_weights, directions, first_map
from pmtl.models.linear.solve import ClientRows, solve
from pmtl.privacy.accounting.gaussian import mu_for


def test_of_far_too_many_weights_those_in_most_use_are_shared():
    """(mμ/4)² slopes, after one release of what clients use."""
    wide = Sizes("classification", 100, 1001, True)
    method = Pooling().resolve(wide, 200.0)
    assert method.share == "frequent"
    assert method.frequent == 2500
    assert method.releases == 12
    assert method.noise == pytest.approx(2 * math.sqrt(12) / 200)
    assert [method.stage(round) for round in (0, 1, 8, 9)] == ["use", "weights", "weights", "vote"]
    assert [method.upload_size(round) for round in (0, 1)] == [1100, 2600]
    assert "1 for how much columns and classes are used, 8 for the shared" in method.in_words
    assert "the 2,500 slopes of columns and classes in most use" in method.warning(400, 400, 12)


def words(m=30, rows=20, columns=200, seed=0):
    """Clients that use few of many columns; the first five say the class, for all clients alike."""
    random = np.random.default_rng(seed)
    client = np.repeat(np.arange(m), rows)
    x = (random.random((len(client), columns)) < 0.01).astype(np.float32)
    y = random.integers(0, 5, len(client))
    x[np.arange(len(client)), y] = random.random(len(client)) < 0.6
    split = np.where(np.arange(len(client)) % 4 == 3, "test", "train")
    names = np.array([f"{k:03d}" for k in client])
    return FederatedData.from_arrays(
        sparse.csr_matrix(x), y, names, split, validation=0, task="classification", outputs=5
    )


def test_frequent_slopes_are_found_and_the_others_stay_at_zero():
    """On average over draws of the noise; in each draw sharing pays."""
    used, right = [], []
    sizes, strength = Sizes("classification", 5, 201, True), 30 * mu_for(10.0, 1 / 300)
    resolved = Pooling(share="frequent").resolve(sizes, strength)
    for seed in range(4):
        run = pmtl.train(words(), algorithm="pooling:share=frequent", privacy=10.0, seed=seed)
        published = run.views()["shared"](np.array([0]))[0]
        slopes, intercepts = published[:-5].reshape(5, 200), published[-5:]
        assert int((slopes != 0).sum()) == resolved.frequent < 1000
        assert (slopes[:, 5:] != 0).double().mean() < 0.4
        assert intercepts.any()
        losses = run.client_losses("test")
        assert losses["personal"].mean() < losses["alone"].mean() - 0.05
        used.append((slopes[:, :5] != 0).double().mean())
        right.append((slopes[:, :5].argmax(0) == torch.arange(5)).double().mean())
    assert np.mean(used) > 0.9, "the columns in most use"
    assert np.mean(right) > 0.9


def test_a_public_head_is_where_sharing_and_training_alone_begin():
    """What is published begins with it; a client without rows cannot tell it from zero."""
    sizes = Sizes("classification", 3, 5, True, factor=2.0, public_head=True)
    method = Pooling().resolve(sizes, 1e4)
    assert method.begins_at_start
    head = torch.randn(15, generator=torch.Generator().manual_seed(0)).double()
    board = method.billboard_start(head).unsqueeze(0)
    assert torch.allclose(method.published(board), head.unsqueeze(0))
    start = method.from_vector(head)
    nothing = ClientRows(
        "classification",
        *(torch.zeros(1, 4, size).double() for size in (5, 3)),
        torch.zeros(1, 4).double(),
        start=start,
    )
    own = method.finish(nothing, board)
    assert torch.allclose(method.alone(own[0]), head / 2), "as good as zero, for all it knows"
    assert float(torch.dot(method.predict(own[0], board[0]), head)) > 0
    memory = method.server_start(board)
    round_of_nothing = torch.zeros(1, method.upload_size(0)).double()
    after, _ = method.server_step(board, round_of_nothing, memory)
    assert torch.allclose(method.published(after), head.unsqueeze(0)), "no move, no change"


def test_of_a_wide_public_head_a_map_of_its_answers_is_shared():
    """(classes + 1) · classes numbers, however many features there are."""
    wide = Sizes("classification", 62, 1025, True, public_head=True)
    numbers = Sizes("regression", 62, 1025, True, public_head=True)
    method = Pooling().resolve(wide, 167.0)
    assert method.share == "answers"
    assert method.releases == 11
    assert method.upload_size(0) == 63 * 62
    assert "8 for the shared map of the public head's answers" in method.in_words
    assert "only a map of the 62 answers of the public head" in method.warning(205, 205, 11)
    assert Pooling().resolve(wide, 40.0).share == "intercepts"
    assert Pooling().resolve(wide, 1e4).share == "all"
    for unfit in (Sizes("classification", 62, 1025, True), numbers):
        with pytest.raises(PmtlError, match="needs a linear layer with public weights"):
            Pooling(share="answers").resolve(unfit, 167.0)
    few = Sizes("classification", 62, 33, True, public_head=True)
    assert Pooling().resolve(few, 100.0).share == "all", "fewer weights than a map has numbers"
    assert Pooling(share="answers").resolve(few, 1e9).warning(205, 205, 11) is None, "as asked for"


@pytest.mark.parametrize("task", ["classification", "multilabel"])
def test_a_map_of_answers_begins_as_the_public_head_and_moves_as_the_clients_do(task):
    """One round without noise, by hand: clients solve on the answers, the mean move is added, and
    the weights on the features are the public ones times the map."""
    random = torch.Generator().manual_seed(0)
    outputs, columns, rows = 3, 9, 12
    sizes = Sizes(task, outputs, columns, True, public_head=True)
    method = Pooling(share="answers", reach=800.0).resolve(sizes, 1e9)
    head = torch.randn(columns, outputs, generator=random).double()
    vector = method.to_vector(head.unsqueeze(0))[0]
    board = method.billboard_start(vector).unsqueeze(0)
    assert torch.allclose(method.published(board)[0], vector)
    x = torch.randn(2, rows, columns, generator=random).double()
    x[..., 0] = 1
    y = torch.nn.functional.one_hot(torch.arange(rows) % outputs, outputs).double()
    client = ClientRows(
        task, x, y.expand(2, -1, -1), torch.ones(2, rows).double(), start=head, words=False
    )
    uploads = method.compute_uploads(client, board.expand(2, -1), 0)
    after, _ = method.server_step(board, uploads.mean(0, keepdim=True), method.server_start(board))

    slopes = head[1:] - (head[1:].mean(1, keepdim=True) if task == "classification" else 0)
    answers = torch.cat([x[..., :1], x[..., 1:] @ slopes / 2], 2)
    first = torch.cat([head[:1], 2 * torch.eye(outputs)])
    small = ClientRows(task, answers, client.y, client.mask)
    penalty = 2.0 if task == "classification" else 1.0
    table = torch.tensor([1.0] + [3.0] * outputs).double()[None, None] * penalty
    moved = solve(small, first[None, None], table)[:, 0] - first
    expected = first + moved.mean(0)
    published = method.from_vector(method.published(after)[0])
    centred = published - published.mean(1, keepdim=True)
    by_hand = torch.cat([expected[:1], slopes / 2 @ expected[1:]])
    by_hand = by_hand - by_hand.mean(1, keepdim=True)
    if task == "multilabel":
        centred = published
        by_hand = torch.cat([expected[:1], slopes / 2 @ expected[1:]])
    assert torch.allclose(centred, by_hand, atol=2e-2), "up to where the solver stops"
    assert not torch.allclose(centred, head - head.mean(1, keepdim=True), atol=0.1)


def test_answers_are_divided_by_a_public_number_of_the_head():
    """2, or half of the root mean square of the lengths of the classes' weights."""
    head = torch.zeros(4, 2).double()
    head[1], head[2] = torch.tensor([3.0, -3.0]), torch.tensor([4.0, -4.0])
    assert torch.allclose(directions("multilabel", head), head[1:] / 2.5)
    assert torch.allclose(directions("classification", 10 * head), head[1:] / 2.5)
    assert torch.allclose(directions("classification", head / 5), head[1:] / 10)
    for task in ("classification", "multilabel"):
        assert torch.allclose(as_weights(task, head, first_map(task, head)), head)


def test_a_head_of_zeros_is_none():
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(3, 2))
    assert LastLayer(model, model[1], public=True).start is not None
    torch.nn.init.zeros_(model[1].weight)
    assert LastLayer(model, model[1], public=True).start is None


def test_sharing_the_answers_of_a_public_head_pays(tmp_path):
    """The public head confuses two classes in the same way for all clients, and clients have few
    rows: a map of its answers learns that from everybody."""
    random = np.random.default_rng(0)
    m, each, features, classes = 200, 10, 40, 4
    right = random.normal(size=(features, classes))
    x = random.normal(size=(m * each, features)).astype(np.float32)
    y = (x @ right + random.normal(size=(len(x), classes))).argmax(1)
    names = np.array([f"{k:03d}" for k in np.repeat(np.arange(m), each)])
    split = np.where(np.arange(len(x)) % 5 < 3, "train", "test")
    data = FederatedData.from_arrays(x, y, names, split, validation=0)
    confused = torch.tensor(right[:, [1, 0, 2, 3]].T).float().contiguous()
    save_file({"1.weight": confused, "1.bias": torch.zeros(classes)}, tmp_path / "head.safetensors")
    run = pmtl.train(
        data,
        model=lambda input_shape, outputs: torch.nn.Sequential(
            torch.nn.Identity(), torch.nn.Linear(input_shape[0], outputs)
        ),
        init=tmp_path / "head.safetensors",
        algorithm="pooling:share=answers",
        privacy=2.0,
    )
    losses = run.client_losses("test")
    assert losses["shared"].mean() < losses["alone"].mean() - 0.2
    assert losses["personal"].mean() < losses["alone"].mean() - 0.2


def test_a_number_has_no_public_head():
    """The head's answers are in units of the target, which clients have not agreed on."""
    sizes = Sizes("regression", 1, 401, True, public_head=True)
    assert not Pooling().resolve(sizes, 1e4).begins_at_start
    assert Pooling().resolve(sizes, 35.0).share == "intercepts"


def test_a_bad_public_head_does_not_spoil_training_alone():
    sizes = Sizes("classification", 2, 3, True, public_head=True)
    method = Pooling().resolve(sizes, 50.0)
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1, 40, 3, generator=random).double()
    x[..., 0] = 1
    y = torch.nn.functional.one_hot((x[..., 1] > 0).long(), 2).double()
    wrong = torch.tensor([[0.0, 0.0], [30.0, -30.0], [0.0, 0.0]]).double()
    rows = ClientRows("classification", x, y, torch.ones(1, 40).double(), start=wrong)
    board = method.billboard_start(method.to_vector(wrong.unsqueeze(0))[0]).unsqueeze(0)
    own = method.finish(rows, board)[0]
    for vector in (method.alone(own), method.predict(own, board[0])):
        answers = x[0] @ method.from_vector(vector)
        assert (answers.argmax(1) == y[0].argmax(1)).double().mean() > 0.9


@pytest.mark.parametrize(("strength", "share"), [(3.0, "intercepts"), (1e4, "all")])
def test_no_release_is_paid_for_a_choice_of_none_or_all(strength, share):
    method = Pooling(share="frequent").resolve(Sizes("classification", 2, 101, True), strength)
    assert (method.share, method.releases) == (share, 11)


def test_clients_that_read_different_billboards_are_refused():
    method = Pooling().resolve(Sizes("classification", 100, 1001, True), 200.0)
    use = torch.zeros(2, 1100)
    assert len(method.places(use)) == 2600
    use[1, 0] = 1
    with pytest.raises(PmtlError, match="one billboard for all clients"):
        method.places(use)


def test_with_many_classes_training_alone_also_tries_freer_intercepts():
    """Their frequencies may differ much; what is voted on stays as it is."""
    few, many = (candidates.alone_penalties("classification", outputs) for outputs in (19, 20))
    assert many[:3] == [(0.01, 1.0), (0.01, 5.0), (0.01, 30.0)]
    assert many[3:] == few == candidates.alone_penalties("multilabel", 50)


def test_zeros_of_dense_rows_are_no_words():
    """Features of a network, or of images, may be mostly 0, too."""
    x = torch.eye(4).double()[None]
    words, others = (
        ClientRows("classification", x, x[..., :2], torch.ones(1, 4).double(), words=words)
        for words in (True, False)
    )
    assert float(candidates.units_of_words(words)[0, 1]) == pytest.approx(candidates.WORDS)
    assert (candidates.units_of_words(others) == 1).all()


def test_small_parts_are_left_out_whoever_else_is_there():
    parts = torch.full((2, candidates.CELLS), 1e-5).double()
    parts[0, 3], parts[0, 5], parts[1, -1] = 0.6, 0.4, 1.0
    kept, order = candidates.without_small(parts)
    assert order[0].tolist() == [3, 5]
    assert order.shape == (2, 2)
    assert torch.allclose(kept.sum(1), torch.ones(2).double())
    assert int((kept[0] > 0).sum()) == 2
    alone, _ = candidates.without_small(parts[1:])
    assert torch.equal(alone[0], kept[1])
    taken = candidates.take(torch.arange(candidates.CELLS).expand(2, -1), order)
    assert torch.equal(taken, order)


@pytest.mark.parametrize("dense", [True, False])
def test_only_sparse_rows_are_words_in_a_run(dense, monkeypatch):
    data = words(m=6, rows=8, columns=30)
    if dense:
        x, split = data.x.toarray(), np.where(np.arange(48) % 4 == 3, "test", "train")
        names = np.array([f"{k:03d}" for k in np.repeat(np.arange(6), 8)])
        data = FederatedData.from_arrays(x, data.y, names, split, validation=0)
    seen = []
    real = candidates.units_of_words
    monkeypatch.setattr(
        candidates, "units_of_words", lambda rows: (seen.append(rows.words), real(rows))[1]
    )
    pmtl.train(data, privacy=2.0)
    assert set(seen) == {not dense}
