"""The engine of exact algorithms: pieces, padding, order, and clients on their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmtl.algorithms.default.exact import Sizes
from pmtl.algorithms.default.pooling import Pooling
from pmtl.data import FederatedData
from pmtl.engines import exact
from pmtl.engines.exact import ExactEngine
from pmtl.engines.row_tensors import RowTensors
from pmtl.errors import PmtlError
from pmtl.models import build_model

COUNTS = (5, 1, 30, 2, 9, 4, 17, 1, 3, 60)
KINDS = [("regression", 1), ("classification", 3), ("multilabel", 2)]


def federation(task="regression", outputs=1, counts=COUNTS, seed=0):
    random = np.random.default_rng(seed)
    client = np.repeat([f"c{k}" for k in range(len(counts))], counts)
    x = random.normal(size=(len(client), 3)).astype(np.float32)
    y = random.normal(size=len(client)) + 30
    if task == "classification":
        y = random.integers(0, outputs, len(client))
    if task == "multilabel":
        y = random.integers(0, 2, (len(client), outputs)).astype(np.float32)
    order = random.permutation(len(client))
    given = {"task": task, "outputs": None if task == "regression" else outputs}
    split = np.full(len(client), "train")
    return FederatedData.from_arrays(
        x[order], y[order], client[order], split, validation=0, **given
    )


def engine_of(data, one_by_one=False, algorithm=None, model="auto"):
    model = build_model(model, data.input_shape, data.outputs, data.task, 0)
    model = model.to(torch.device("cpu"), torch.float32)
    if algorithm is None:
        sizes = Sizes(data.task, data.outputs, 4, True)
        algorithm = Pooling(target="release").resolve(sizes, 200.0)
    tensors = RowTensors(data, torch.device("cpu"), torch.float32)
    return ExactEngine(algorithm, model, tensors, one_by_one), algorithm


def board_of(algorithm, clients, seed=0):
    """What was published, in mid-run; the same for all clients."""
    size = len(algorithm.billboard_start(torch.zeros(1)))
    board = 0.3 * torch.randn(1, size, generator=torch.Generator().manual_seed(seed))
    outputs, columns = algorithm.sizes.outputs, algorithm.sizes.columns
    board[:, columns * outputs : (columns + 1) * outputs] = 4.0
    return board.expand(clients, -1)


@pytest.mark.parametrize(("task", "outputs"), KINDS)
@pytest.mark.parametrize("floats", [1, 40_000, pytest.param(None, marks=pytest.mark.thorough)])
def test_clients_together_or_one_by_one_get_the_same(task, outputs, floats, monkeypatch):
    """In pieces of any size, up to rounding."""
    if floats is not None:
        monkeypatch.setattr(exact, "PIECE_FLOATS", floats)
    data = federation(task, outputs)
    clients = np.array([7, 2, 9, 0, 1, 3, 4, 5, 6, 8])
    together, algorithm = engine_of(data)
    alone, _ = engine_of(data, one_by_one=True)
    board = board_of(algorithm, len(clients))
    for round in range(algorithm.releases):
        uploads = together.uploads(clients, board, round)
        assert uploads.shape == (10, algorithm.upload_size(round))
        expected = alone.uploads(clients, board, round)
        # The last digits decide when the iteration for several clients ends.
        assert torch.allclose(uploads, expected, rtol=1e-3, atol=2e-2)
    finished = together.finish(clients, board)
    if task == "regression":
        assert torch.allclose(finished, alone.finish(clients, board), rtol=1e-4, atol=1e-4)
    assert finished.dtype == torch.float32
    assert finished.isfinite().all()


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_one_by_one_a_client_is_the_same_in_any_company(task, outputs):
    """To the last bit: other neighbours, other order, other rows of neighbours."""
    data, other = federation(task, outputs), federation(task, outputs, (5, 1, 2, 2, 9, 400, 3))
    some, algorithm = engine_of(data, one_by_one=True)
    board = board_of(algorithm, 10)
    mine = np.array([0])
    alone = [some.uploads(mine, board[:1], round) for round in range(algorithm.releases)]
    finished = some.finish(mine, board[:1])
    company = np.array([9, 4, 0, 2])
    for round, expected in enumerate(alone):
        assert torch.equal(some.uploads(company, board[:4], round)[2], expected[0])
    assert torch.equal(some.finish(company, board[:4])[2], finished[0])
    # The same client in another federation.
    rows = data.rows("train").of(0)
    x, y = other.x.copy(), other.y.copy()
    x[other.rows("train").of(0)], y[other.rows("train").of(0)] = data.x[rows], data.y[rows]
    owner = np.empty(len(y), dtype=object)
    for client, name in enumerate(other.clients):
        owner[other.rows("train").of(client)] = name
    given = {"task": task, "outputs": None if task == "regression" else outputs}
    split = np.full(len(y), "train")
    changed = FederatedData.from_arrays(x, y, owner.astype(str), split, validation=0, **given)
    there, _ = engine_of(changed, one_by_one=True)
    everybody = np.arange(7)
    for round, expected in enumerate(alone):
        assert torch.equal(there.uploads(everybody, board[:7], round)[0], expected[0])
    assert torch.equal(there.finish(everybody, board[:7])[0], finished[0])


def test_clients_read_their_own_row_of_the_board():
    """The answers are in the order of the question, whatever the order of the pieces."""
    data = federation()
    engine, algorithm = engine_of(data)
    clients = np.arange(10)
    boards = torch.cat([board_of(algorithm, 1, seed) for seed in range(10)])
    together = engine.finish(clients, boards)
    for client in clients:
        own = engine.finish(clients[client : client + 1], boards[client : client + 1])
        assert torch.allclose(together[client], own[0], rtol=1e-4, atol=1e-4)


def test_pieces_cover_everybody_once_and_padding_is_at_most_doubling(monkeypatch):
    engine, _ = engine_of(federation())
    counts = np.array(COUNTS)
    pieces = list(engine.pieces(counts))
    assert sorted(np.concatenate(pieces)) == list(range(10))
    assert all(counts[piece].max() <= 2 * counts[piece].min() for piece in pieces)
    monkeypatch.setattr(exact, "PIECE_FLOATS", 1)
    assert [len(piece) for piece in engine.pieces(counts)] == [1] * 10


def test_a_vote_that_is_repeated_is_computed_once_for_the_same_clients(monkeypatch):
    data = federation()
    engine, algorithm = engine_of(data)
    board, votes = board_of(algorithm, 10), range(algorithm.releases - 3, algorithm.releases)
    asked = []
    work = Pooling.compute_uploads
    monkeypatch.setattr(
        Pooling,
        "compute_uploads",
        lambda self, *rest: asked.append(len(rest[1])) or work(self, *rest),
    )
    uploads = [engine.uploads(np.arange(10), board, round) for round in votes]
    assert torch.equal(uploads[0], uploads[2])
    assert sum(asked) == 10
    others = engine.uploads(np.arange(5), board[:5], votes[1])
    assert torch.allclose(others, uploads[0][:5], atol=1e-5)
    assert sum(asked) == 15


def test_after_a_stop_a_repeated_vote_is_computed_again():
    engine, algorithm = engine_of(federation())
    board, last = board_of(algorithm, 10), algorithm.releases - 1
    fresh = engine.uploads(np.arange(10), board, last)
    before, _ = engine_of(federation())
    assert torch.equal(fresh, before.uploads(np.arange(10), board, last - 2))


@pytest.mark.parametrize(("task", "outputs"), KINDS)
def test_a_rehearsal_runs_every_stage_on_no_rows_at_all(task, outputs, monkeypatch):
    data = federation(task, outputs)
    engine, algorithm = engine_of(data)
    seen = []
    work = Pooling.compute_uploads

    def watching(self, rows, board, round):
        seen.append((self.stage(round), float(rows.x.abs().sum() + rows.y.abs().sum())))
        return work(self, rows, board, round)

    monkeypatch.setattr(Pooling, "compute_uploads", watching)
    engine.dry_run(board_of(algorithm, 1), algorithm.releases)
    assert [stage for stage, _ in seen] == [algorithm.stage(t) for t in range(algorithm.releases)]
    assert {size for _, size in seen} == {0.0}


def test_a_model_that_is_not_linear_is_refused():
    data = federation("classification", 3)
    sizes = Sizes("classification", 3, 4, True)
    with pytest.raises(PmtlError, match="needs a linear model"):
        engine_of(data, algorithm=Pooling().resolve(sizes, 10.0), model="mlp:hidden=3")
