"""A recorded step is the step, bit for bit; and what cannot be recorded is run as it is."""

import math
import random
import time
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pmtl.algorithms import ALGORITHMS, build_algorithm
from pmtl.data import FederatedData
from pmtl.engines import recording
from pmtl.engines.base import client_step
from pmtl.engines.recording import Programs
from pmtl.engines.threads import _slope
from pmtl.models import build_model, lowered
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import Feed, LocalTraining, simulate

MODELS = {
    "logistic": ((5,), 3, "classification"),
    "linear": ((5,), 2, "regression"),
    "mlp:hidden=6": ((5,), 4, "multilabel"),
    "femnist_cnn": ((784,), 62, "classification"),
    "celeba_cnn": ((3, 84, 84), 2, "classification"),
}


ROWS = 10


def batch(shape, outputs, task, seed, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, *shape, generator=generator)
    y = torch.randint(0, outputs, (rows,), generator=generator)
    if task != "classification":
        y = F.one_hot(y, outputs).float()
    return x, y, torch.ones(rows, dtype=torch.bool)


def bits(result):
    return torch.utils._pytree.tree_flatten(result)[0]


@torch.no_grad()
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_step_can_be_recorded_and_gives_the_same_bits(model, algorithm):
    shape, outputs, task = MODELS[model]
    flat, method = build_model(model, shape, outputs, task, 0), build_algorithm(algorithm)
    lower = lowered(flat, "channels_last")
    step = client_step(method, lower, task, _slope, guarded=False)
    shared = flat.start() + 0.01
    state = method.begin(method.start(shared), shared)
    programs = Programs()
    programs.make(step, state, shared, *batch(shape, outputs, task, 0), 0.1)
    for seed in range(1, 4):  # Other rows, other weights and other step sizes.
        given = (state, shared, *batch(shape, outputs, task, seed), 0.1 / seed)
        state, loss = step(*given)
        for one, other in zip(bits((state, loss)), bits(programs[ROWS](*given)), strict=True):
            assert torch.equal(one, other)
    assert programs[ROWS - 1] is None


def table(sizes, columns=4):
    generator = np.random.default_rng(0)
    owner = np.repeat([f"c{k:03d}" for k in range(len(sizes))], sizes)
    x = generator.normal(size=(len(owner), columns)).astype(np.float32)
    y = generator.integers(0, 3, len(owner))
    split = np.full(len(owner), "train")
    return FederatedData.from_arrays(x, y, owner, split, outputs=3, validation=0.0)


def trained(factory="logistic", sizes=(6,) * 8, rounds=4, **local):
    """The vectors after a run with the engine threads, and the programs it made."""
    made = prepared(table(sizes), factory, rounds, **local)
    progress = made.start()
    for _ in range(rounds):
        made.advance(progress)
    return progress.store.vectors, made.sites._trainer._programs


def prepared(data, factory="logistic", rounds=4, **local):
    plan = PrivacyPlan(
        clients=data.m, cohort=min(5, data.m), sampling="fixed", clip_norm=1.0, noise_std=0.1,
        rounds=rounds, delta=1e-3,
    )  # fmt: skip
    model = build_model(factory, data.input_shape, 3, data.task, 0)
    return simulate(
        data, model, build_algorithm("pmtl"), plan, LocalTraining(**(local or {"batch": 2})), 0,
        "cpu", engine="threads",
    )  # fmt: skip


def ready(programs):
    """The sizes that have a program."""
    return {size for size, program in programs._made.items() if program is not None}


class Again(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.inner = nn.Linear(inputs, 8), nn.Linear(8, 8, bias=False)
        self.last = nn.Linear(8, outputs)

    def forward(self, x):
        x = self.first(x)
        for _ in range(6):
            x = torch.tanh(self.inner(x))
        return self.last(x)


class Chance(nn.Module):
    def forward(self, x):
        return x * random.random()


class TestRuns:
    @pytest.fixture
    def at_once(self, monkeypatch):
        monkeypatch.setattr(recording, "OFTEN", 1)

    def test_which_steps_were_programs_cannot_be_seen(self, monkeypatch):
        settings = {"sizes": (6, 7, 3, 8, 6, 1, 5, 9), "batch": 2, "epochs": 2, "halve_every": 2}
        plain, none = trained(**settings)
        assert ready(none) == set()
        for often, sizes in ((1, {1, 2}), (30, {2})):
            monkeypatch.setattr(recording, "OFTEN", often)
            vectors, programs = trained(**settings)
            assert ready(programs) == sizes
            assert torch.equal(vectors, plain)

    def test_programs_are_what_is_run(self, at_once, monkeypatch):
        """Two of the steps are those of recording itself: of the first batch, and of the next."""
        taken = []
        program = recording._program

        def counted(*given):
            made = program(*given)
            return lambda *batch: taken.append(len(batch[4])) or made(*batch)

        monkeypatch.setattr(recording, "_program", counted)
        trained(epochs=1, batch=2)
        assert taken == [2] * (2 + 4 * 5 * 3)

    def test_nobody_hears_of_it(self, at_once, recwarn):
        trained(batch=4)
        assert [str(one.message) for one in recwarn] == []

    def test_several_sizes_at_once_leave_the_process_as_it_was(self, at_once):
        call, filters = nn.Module.__call__, list(warnings.filters)
        _, programs = trained(sizes=(9, 4, 5, 6, 7, 8, 3, 2), batch=10, rounds=6)
        assert ready(programs) == {2, 3, 4, 5, 6, 7, 8, 9}
        assert nn.Module.__call__ is call
        assert list(warnings.filters) == filters

    def test_sums_that_an_optimiser_would_take_in_another_order(self, monkeypatch):
        """One layer many times: its derivative is a sum of products."""

        def factory(input_shape, outputs):
            return Again(*input_shape, outputs)

        settings = {"sizes": (40,) * 8, "batch": 5, "epochs": 4, "rounds": 3}
        plain, _ = trained(factory, **settings)
        monkeypatch.setattr(recording, "OFTEN", 1)
        vectors, programs = trained(factory, **settings)
        assert ready(programs) == {5}
        assert torch.equal(vectors, plain)

    def test_what_one_client_cannot_do_is_its_own_affair(self, at_once):
        """A class that is not there, in the only client with batches of one row: training says so
        in the operation's own words, and others are recorded."""
        made = prepared(table((6, 1, 6)))
        made.data.y[6] = 9
        made.sites.feed = Feed(made.data, made.sites.device, made.sites.feed.dtype)
        own = shared = made.model.start().expand(3, -1)
        index, real = made.sites.batches.draw(np.arange(3), 0)

        def train(places):
            given = torch.from_numpy(real[places])
            reader = lambda k, tall: made.sites.feed.reader(index[places][k, :, :tall])  # noqa: E731
            return made.sites._trainer.train(own[places], shared[places], reader, given, 0.1)

        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"^(?!.*TorchScript).*out of bounds"):
                train([0, 1, 2])
        assert train([0, 2]).losses.isfinite().all()
        assert ready(made.sites._trainer._programs) == {2}

    def test_no_numbers_are_the_same_no_numbers(self, at_once):
        assert recording._same(torch.tensor([math.nan, 1]), torch.tensor([math.nan, 1]))
        assert not recording._same(torch.tensor([0.0]), torch.tensor([-0.0]))

    def test_only_sizes_that_are_there_are_due(self, monkeypatch):
        monkeypatch.setattr(recording, "OFTEN", 3)
        programs = Programs()
        assert programs.due([3, 3, 4]) == []
        assert programs.due([3, 4]) == [3]
        assert programs.due([4]) == [4]  # Not 3, of which there is no batch to record.

    def test_one_size_is_recorded_after_the_other(self, at_once, monkeypatch):
        monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
        inside, most = [], []
        record = recording.record

        def watched(*given):
            inside.append(given)
            most.append(len(inside))
            time.sleep(0.02)
            try:
                return record(*given)
            finally:
                inside.pop()

        monkeypatch.setattr(recording, "record", watched)
        trained(sizes=(9, 4, 5, 6, 7, 8, 3, 2), batch=10)
        assert len(most) > 2
        assert set(most) == {1}

    def test_a_shape_has_to_come_often(self, monkeypatch):
        """Four rounds of five clients with three batches each; the last round is not too late."""
        monkeypatch.setattr(recording, "OFTEN", 4 * 5 * 3)
        assert ready(trained(epochs=1, batch=2)[1]) == {2}
        monkeypatch.setattr(recording, "OFTEN", 4 * 5 * 3 + 1)
        assert ready(trained(epochs=1, batch=2)[1]) == set()

    def test_there_is_an_end_to_it(self, monkeypatch, at_once):
        monkeypatch.setattr(recording, "MOST_SHAPES", 2)
        _, programs = trained(sizes=(9, 4, 5, 6, 7, 8, 3, 2), batch=10)
        assert len(ready(programs)) == 2

    def test_nothing_is_recorded_twice(self, monkeypatch, at_once):
        made = []
        record = recording.record
        monkeypatch.setattr(
            recording, "record", lambda *given: made.append(given[1][4].shape) or record(*given)
        )
        trained(rounds=9, batch=4)
        assert sorted(made) == [(2,), (4,)]

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda run, *given: [run(*given)[0], torch.nextafter(run(*given)[1], torch.ones(()))],
            lambda run, *given: [torch.nextafter(run(*given)[0], torch.ones(())), run(*given)[1]],
            # Where a client begins with the shared model, one for the other is right, once.
            lambda run, state, shared, *batch: run(shared, shared, *batch),
        ],
        ids=["loss", "weights", "state"],
    )
    def test_a_program_that_differs_in_a_bit_is_not_used(self, at_once, monkeypatch, wrong):
        expected, _ = trained()
        script, tried = torch.jit.script, []

        def almost(graph):
            run = script(graph)
            tried.append(graph)
            return lambda *given: wrong(run, *given)

        monkeypatch.setattr(torch.jit, "script", almost)
        vectors, programs = trained()
        assert ready(programs) == set()
        assert len(tried) == 1  # And not again.
        assert torch.equal(vectors, expected)

    @pytest.mark.parametrize("chance", [nn.Dropout(), Chance()])
    def test_chance_is_not_recorded(self, at_once, chance):
        def factory(input_shape, outputs):
            return nn.Sequential(nn.Linear(*input_shape, 8), chance, nn.Linear(8, outputs))

        _, programs = trained(factory)
        assert programs._made == {}

    def test_without_torchscript_steps_are_run_as_they_are(self, at_once, monkeypatch):
        expected, _ = trained()
        monkeypatch.delattr(torch.jit, "script")
        vectors, programs = trained()
        assert ready(programs) == set()
        assert torch.equal(vectors, expected)
