"""What one client can change in a run of pooling: a release by at most 2/m, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from at_length import at_length
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from interference import (
    CHANGES,
    K,
    M,
    World,
    bits,
    huge_value,
    many_rows,
    nothing_usable,
    one_row,
    other_values,
    table,
)

import pmtl
from pmtl.algorithms.default.exact import Sizes
from pmtl.algorithms.default.pooling import Pooling
from pmtl.models.linear.candidates import CELLS
from pmtl.models.linear.solve import ClientRows
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.noise import real, seeded_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release

OTHERS = np.array([k for k in range(M) if k != K])

# ---- sensitivity: neighbouring federations differ in all rows of one client ----

KINDS = [("regression", 1), ("regression", 3), ("classification", 2), ("classification", 4)]
KINDS += [("multilabel", 3)]
EXTREMES = ("usual", "huge", "tiny", "nan", "inf", "opposite", "steep", "constant", "collinear")


def rows_of(task, outputs, n, kind, seed):
    """[1, n, …] the rows of one client, of an extreme kind."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(1, n, 4))
    y = 20 + x[..., :1] + random.normal(size=(1, n, outputs))
    if task == "classification":
        y = np.eye(outputs)[random.integers(0, outputs, (1, n))]
    elif task == "multilabel":
        y = random.integers(0, 2, (1, n, outputs)).astype(float)
    numbers = task == "regression"
    with np.errstate(over="ignore"):
        x, y = {
            "usual": lambda: (x, y),
            "huge": lambda: (x * 1e30, y * 1e200 if numbers else y),
            "tiny": lambda: (x * 1e-30, y * 1e-300 if numbers else y),
            "nan": lambda: (x * math.nan, y),
            "inf": lambda: (x, y / 0.0 if numbers else y),
            "opposite": lambda: (-9 * x, -y if numbers else 1 - y),
            "steep": lambda: (x, 80 * y - 500 * x[..., 1:2] if numbers else y),
            "constant": lambda: (x * 0, y * 0 + 1),
            "collinear": lambda: (x[..., :1] * [1, 1, 1, 1] * 1e9, y),
        }[kind]()
    x[..., 0] = 1
    return ClientRows(task, *(torch.tensor(part) for part in (x, y)), torch.ones(1, n).double())


def upload_of(method, rows, board, round):
    """A client's upload; in production a client that fails counts as zero."""
    try:
        return method.compute_uploads(rows, board, round)
    except RuntimeError:
        return torch.zeros(1, method.upload_size(round)).double()


def board_of(method, seed):
    """Anything that may have been published."""
    random = torch.Generator().manual_seed(seed)
    sizes = method.sizes
    board = torch.randn(1, method.billboard_size(None), generator=random).double()
    place = sizes.columns * sizes.outputs
    power = torch.randint(-8, 8, (sizes.outputs,), generator=random)
    board[:, place : place + sizes.outputs] = 2.0**power
    steps = place + 2 * sizes.outputs + CELLS
    board[:, steps : steps + 2] = board[:, steps : steps + 2].abs()  # a step, a sum of squares
    return board


@settings(max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    share=st.sampled_from(["all", "answers", "frequent", "intercepts"]),
    strength=st.sampled_from([1.0, 30.0, 1e4, math.inf]),
    before=st.sampled_from(EXTREMES),
    after=st.sampled_from(EXTREMES),
    rows=st.sampled_from([1, 2, 7, 40]),
    seed=st.integers(0, 5),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_client_moves_no_mean_by_more_than_2_over_m(
    kind, share, strength, before, after, rows, seed
):
    """In every stage, before noise, whatever the client's rows are and become."""
    task, outputs = kind
    head = None
    if share == "answers":
        assume(task != "regression")
        head = torch.randn(4, outputs, generator=torch.Generator().manual_seed(seed)).double()
    sizes = Sizes(task, outputs, 4, True, public_head=head is not None)
    method = Pooling(share=share, target="release").resolve(sizes, strength)
    m, board = 5, board_of(method, seed)
    plan = PrivacyPlan(m, m, "full", 1.0, 0.1, method.releases, 0.01)
    alone = [rows_of(task, outputs, 6, "usual", 100 + k) for k in range(m - 1)]
    clients = ClientRows(
        task,
        *(torch.cat([getattr(one, part) for one in alone]) for part in ("x", "y", "mask")),
        start=head,
    )
    neighbours = [rows_of(task, outputs, 5, before, 7), rows_of(task, outputs, rows, after, 8)]
    neighbours = [replace(one, start=head) for one in neighbours]
    seen = set()
    for round in range(method.releases):
        if method.stage(round) in seen:
            continue
        seen.add(method.stage(round))
        others = method.compute_uploads(clients, board.expand(m - 1, -1), round)
        means = []
        for mine in neighbours:
            gate = Release(plan, np.zeros(m, dtype=np.int64), lambda *_: torch.zeros(1))
            tally = gate.open(round, torch.zeros(1, 1), method.upload_size(round))
            gate.add(tally, np.arange(m - 1), others)
            gate.add(tally, np.array([m - 1]), upload_of(method, mine, board, round))
            means.append(gate.average(tally))
        assert (means[0] - means[1]).norm() <= 2 / m * (1 + 1e-9)
        assert means[0].isfinite().all()


def test_ten_thousand_rows_count_as_one_client():
    for task, outputs in KINDS[::2]:
        method = Pooling(target="release").resolve(Sizes(task, outputs, 4, True), 30.0)
        board, many = board_of(method, 1), rows_of(task, outputs, 10_000, "opposite", 3)
        plan = PrivacyPlan(2, 2, "full", 1.0, 0.1, method.releases, 0.01)
        for round in (0, method.releases - method.votes - 1, method.releases - 1):
            gate = Release(plan, np.zeros(2, dtype=np.int64), lambda *_: torch.zeros(1))
            tally = gate.open(round, torch.zeros(1, 1), method.upload_size(round))
            gate.add(tally, np.array([0]), method.compute_uploads(many, board, round))
            assert 0 < gate.average(tally).norm() <= 0.5


@pytest.mark.parametrize("stage", ["size", "level", "weights", "vote"])
def test_the_best_test_between_two_neighbours_does_no_better_than_promised(stage):
    """The most powerful test on one release: true minus false positives are at most
    2Φ(μ/2) − 1, with μ = 2/(mσ)."""
    method = Pooling(target="release").resolve(Sizes("regression", 1, 4, True), 30.0)
    round = next(t for t in range(method.releases) if method.stage(t) == stage)
    m, sigma, times = 4, 0.2, 1000
    board, size = board_of(method, 2), method.upload_size(round)
    plan = PrivacyPlan(m, m, "full", 1.0, sigma, times, 0.01)
    others = torch.cat(
        [
            method.compute_uploads(rows_of("regression", 1, 6, "usual", k), board, round)
            for k in range(m - 1)
        ]
    )
    released, means = [], []
    for kind in ("usual", "steep"):
        mine = method.compute_uploads(rows_of("regression", 1, 40, kind, 9), board, round)
        source = seeded_source(5, f"{stage} {kind}")

        def noise(time, shape, source=source):
            return real(source(time), shape)

        gate = Release(plan, np.zeros(m, dtype=np.int64), noise)
        seen, nothing = [], torch.zeros(1, size).double()
        for time in range(times):
            tally = gate.open(time, nothing, size)
            gate.add(tally, np.arange(m - 1), others)
            gate.add(tally, np.array([m - 1]), mine)
            seen.append(gate.publish(tally, nothing)[0])
        released.append(torch.stack(seen))
        means.append(gate.average(tally)[0])
    direction = means[1] - means[0]
    threshold = direction @ (means[0] + means[1]) / 2
    told = [float((seen @ direction > threshold).double().mean()) for seen in released]
    expected, bound = advantage(float(direction.norm()) / sigma), advantage(2 / m / sigma)
    luck = 3 * math.sqrt(0.5 / times)
    assert expected > luck, "the two neighbours should differ"
    assert told[1] - told[0] == pytest.approx(expected, abs=luck)
    assert told[1] - told[0] <= bound + luck


def advantage(mu):
    """2Φ(μ/2) − 1."""
    return math.erf(mu / 2 / math.sqrt(2))


# ---- non-interference: what others get is a function of what was published ----


def outcome(world, monkeypatch, tmp_path, data, epsilon):
    """Everybody else's uploads and models after a production run."""
    ledger = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
    Ledger.create(ledger, data.clients).close()
    with monkeypatch.context() as patch:
        world.hold(patch)
        run = pmtl.train(
            data, algorithm="pooling", privacy=epsilon, mode="production", ledger=ledger
        )
    models = {
        view: [bits(row) for row in run.views()[view](OTHERS)] for view in ("personal", "alone")
    }
    scaling = run.scaling
    scales = [bits(torch.from_numpy(part[OTHERS])) for part in (scaling.means, scaling.widths)]
    return {"uploads": world.others(), "models": models, "scales": scales}


def numbers(rows):
    return rows.federation(task="regression", outputs=None)


#: The other changes of rows are tried at length.
OFTEN = ("other_values", "many_rows", "failing", "nothing_usable")


def classes(rows):
    return rows.federation()


def compare(monkeypatch, tmp_path, change, build, epsilon):
    base, world = table(), World()
    first = lambda: outcome(world, monkeypatch, tmp_path, build(base), epsilon)  # noqa: E731
    before = world.once(("pooling", build.__name__, epsilon), first)
    assert len(world.uploads) > len(world.others()) > 0
    world.replaying = True
    assert outcome(world, monkeypatch, tmp_path, build(change(base)), epsilon) == before


@pytest.mark.parametrize("change", at_length(CHANGES, lambda change: change.__name__ in OFTEN))
def test_no_change_of_one_clients_rows_reaches_anybody_else(change, monkeypatch, tmp_path):
    compare(monkeypatch, tmp_path, change, classes, 2.0)


@pytest.mark.parametrize("epsilon", [2.0, 500.0])
@pytest.mark.parametrize("change", [other_values, many_rows, one_row, huge_value, nothing_usable])
def test_with_numbers_in_own_units_and_in_shared_ones(change, epsilon, monkeypatch, tmp_path):
    compare(monkeypatch, tmp_path, change, numbers, epsilon)


def test_what_others_get_does_depend_on_what_was_published(monkeypatch, tmp_path):
    """So the comparison above could fail."""
    found = []
    for shift in (0.0, 0.5):
        world = World()
        first = lambda w=world: outcome(w, monkeypatch, tmp_path, classes(table()), 2.0)  # noqa: E731
        world.once(("pooling", "classes", 2.0), first)
        world.published = [board + shift for board in world.published]
        world.replaying = True
        found.append(outcome(world, monkeypatch, tmp_path, classes(table()), 2.0)["models"])
    assert found[0]["personal"] != found[1]["personal"]
    assert found[0]["alone"] == found[1]["alone"]
