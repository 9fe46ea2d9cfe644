"""Engines differ in speed: not in what they compute, what is drawn, or what is kept."""

import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import vmap

import pmtl
from pmtl.algorithms import ALGORITHMS, PMTL, Pooling, build_algorithm
from pmtl.data import FederatedData
from pmtl.engines.axis import AxisTrainer, row_groups, schedule, widths
from pmtl.engines.base import TensorBatches
from pmtl.engines.choose import build_trainer, check_engine, choose
from pmtl.engines.loops import DebugTrainer, ThreadsTrainer
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.models.lowering import lowered
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, simulate

#: Algorithms that take steps; exact ones are in tests of their own.
BY_STEPS = [name for name, kind in ALGORITHMS.items() if not kind.exact]

#: name → input shape, outputs, task
MODELS = {
    "logistic": ((5,), 3, "classification"),
    "linear": ((5,), 2, "regression"),
    "mlp:hidden=6": ((5,), 4, "multilabel"),
    "femnist_cnn": ((784,), 3, "classification"),
    "celeba_cnn": ((3, 84, 84), 2, "classification"),
}
ROWS = (2, 5, 0, 3)  #: real rows of the four clients, in batches of two
K, STEPS, BATCH, LR = len(ROWS), 3, 2, 0.05


def compiled(algorithm, model, task):
    return AxisTrainer(algorithm, lowered(model, "patches"), task, compile=True, backend="eager")


ENGINES = {
    "axis": partial(build_trainer, "axis", False),
    "as it is": AxisTrainer,
    "compiled": compiled,
    "threads": partial(build_trainer, "threads", False),
}


class Cohort:
    """Four clients, of whom one has a full cohort's steps, one none, and two short batches."""

    def __init__(self, model, algorithm):
        shape, outputs, self.task = MODELS[model]
        generator = torch.Generator().manual_seed(1)
        self.model = build_model(model, shape, outputs, self.task, 0)
        self.model.to(torch.device("cpu"), torch.float64)
        self.algorithm = build_algorithm(algorithm).bind(self.model.layout)
        self.x = torch.randn(K, STEPS, BATCH, *shape, generator=generator, dtype=torch.float64)
        self.y = torch.randint(0, outputs, (K, STEPS, BATCH), generator=generator)
        if self.task != "classification":
            self.y = nn.functional.one_hot(self.y, outputs).double()
        self.mask = (torch.arange(STEPS * BATCH) < torch.tensor(ROWS)[:, None]).view(
            K, STEPS, BATCH
        )
        start = self.model.start()
        self.shared = start + 0.01 * torch.randn(
            K, len(start), generator=generator, dtype=torch.float64
        )
        own = vmap(self.algorithm.start)(self.shared)
        self.own = own + 0.01 * torch.randn(own.shape, generator=generator, dtype=torch.float64)

    def train(self, engine):
        trainer = engine(self.algorithm, self.model, self.task)
        batches = TensorBatches(self.x, self.y, self.mask.numpy())
        return trainer.train(self.own, self.shared, batches, LR)


def parts(trained):
    return trained.kept, trained.uploads, trained.losses


#: Convolutions are tried with one algorithm always, and with the others at length.
ONE = {"femnist_cnn": "pmtl", "celeba_cnn": "ditto"}
CASES = [
    pytest.param(algorithm, model, marks=[pytest.mark.thorough] if long else [])
    for algorithm in BY_STEPS
    for model in MODELS
    for long in [model.endswith("_cnn") and algorithm != ONE[model]]
]


@pytest.mark.parametrize(("algorithm", "model"), CASES)
def test_every_engine_computes_what_debug_computes(model, algorithm):
    """Debug is a loop over `train_client`, which tests/client/test_step.py compares with the
    algorithm called by hand."""
    cohort = Cohort(model, algorithm)
    expected = parts(cohort.train(DebugTrainer))
    for name, engine in ENGINES.items():
        # What is compiled is the step that "axis" runs: every model once, every algorithm once.
        if name == "compiled" and algorithm != "pmtl" and not model.startswith("mlp"):
            continue
        if name == "as it is" and (algorithm, model) != ("pmtl", "femnist_cnn"):
            continue
        for wanted, given_ in zip(expected, parts(cohort.train(engine)), strict=True):
            assert wanted.shape == given_.shape, name
            assert torch.allclose(wanted, given_, rtol=0, atol=1e-10), name
    # Of the same model, threads and debug compute the same bits.
    for wanted, given_ in zip(expected, parts(cohort.train(ThreadsTrainer)), strict=True):
        assert torch.equal(wanted, given_)


def table(sizes, seed=0):
    random = np.random.default_rng(seed)
    owner = np.repeat([f"c{k:03d}" for k in range(len(sizes))], sizes)
    x = random.normal(size=(len(owner), 4)).astype(np.float32)
    split = np.full(len(owner), "train")
    y = random.integers(0, 3, len(owner))
    return FederatedData.from_arrays(x, y, owner, split, outputs=3, validation=0.0)


def federation(sizes=(3, 9, 40, 5, 6, 7, 8, 4), local=None, factory=None, rounds=4, **changes):
    data = table(sizes)
    m = len(sizes)
    plan = PrivacyPlan(m, changes.pop("cohort", m // 2), "poisson", 0.4, 0.1, rounds, 1e-3)
    model = build_model(factory or "mlp:hidden=6", data.input_shape, 3, data.task, 0)
    local = local or LocalTraining(epochs=2, batch=4, halve_every=1)
    algorithm = build_algorithm(changes.pop("algorithm", "pmtl"))
    return simulate(data, model, algorithm, plan, local, 0, **changes)


def run(made):
    progress = made.start()
    return progress, list(made.rounds(progress))


@pytest.mark.parametrize("local", [{"epochs": 2, "batch": 4}, {"steps": 3, "batch": 0}])
def test_a_run_is_the_same_with_every_engine_but_for_the_last_bits(local):
    """Cohorts, batches and noise are drawn elsewhere; the noise would show if it were not."""
    settings = {"local": LocalTraining(**local), "dtype": torch.float64}
    expected, reports = run(federation(engine="axis", **settings))
    changes = ({"engine": "threads"}, {"engine": "debug"}, {"engine": "axis", "compile": True})
    for change in changes:
        made = federation(**settings, **change)
        if made.sites.compile:
            made.sites.trainer = compiled(made.algorithm, made.model, made.data.task)
        assert made.noise_key.text == federation(**settings).noise_key.text
        actual, others = run(made)
        assert torch.allclose(actual.shared, expected.shared, rtol=0, atol=1e-12)
        assert torch.allclose(actual.store.vectors, expected.store.vectors, rtol=0, atol=1e-12)
        for one, two in zip(reports, others, strict=True):
            assert one.cohort == two.cohort
            assert one.train_loss == pytest.approx(two.train_loss, abs=1e-12)


class TestCompiling:
    def counted(self, sizes=(6,) * 60, **changes):
        made = federation(sizes, engine="axis", **changes)
        counter = CompileCounterWithBackend("eager")
        made.sites.trainer = AxisTrainer(
            made.algorithm, made.model, made.data.task, compile=True, backend=counter
        )
        return made, counter

    def test_rounds_of_any_size_and_step_size_compile_nothing_new(self):
        settings = {"rounds": 30, "local": LocalTraining(steps=1, halve_every=1)}
        made, counter = self.counted(**settings)
        cohorts = {len(made.server.sampler.draw(t)) for t in range(30)}
        _, reports = run(made)
        assert len(cohorts) > 8
        assert len({report.lr for report in reports}) == 30
        # Cohorts of 30 ± 4 clients fall into widths of 24, 28, 32, 40 and 48.
        before = counter.frame_count
        assert before == len({widths(n, [n], None)[0] for n in cohorts}) <= 5
        again, _ = self.counted(**settings)
        again.sites.trainer = made.sites.trainer
        run(again)
        assert counter.frame_count == before

    def test_a_cohort_in_pieces_needs_one_width(self, monkeypatch):
        made, counter = self.counted((6,) * 25, cohort=25, local=LocalTraining(steps=2))
        expected, _ = run(made)
        monkeypatch.setattr("pmtl.engines.choose.CHUNK_FLOATS", 9 * made.sites.client_floats)
        pieces, counter = self.counted((6,) * 25, cohort=25, local=LocalTraining(steps=2))
        assert [len(piece) for piece in pieces.sites.pieces(np.arange(25))] == [9, 8, 8]
        pieces.sites.trainer._width = 9
        actual, _ = run(pieces)
        assert counter.frame_count == 1
        assert torch.allclose(actual.store.vectors, expected.store.vectors, atol=1e-6)

    def test_clients_that_finish_leave_through_few_widths(self):
        sizes = (4,) * 40 + (200, 90, 60)
        made, counter = self.counted(
            sizes, cohort=42, rounds=2, local=LocalTraining(epochs=1, batch=4)
        )
        expected, _ = run(federation(sizes, cohort=42, rounds=2, local=made.sites.local))
        actual, _ = run(made)
        assert counter.frame_count <= 3
        assert torch.allclose(actual.store.vectors, expected.store.vectors, atol=1e-5)

    def test_there_is_an_end_to_it(self, monkeypatch):
        monkeypatch.setattr("pmtl.engines.compiled.MOST_SHAPES", 2)
        made, counter = self.counted(rounds=9, local=LocalTraining(steps=1))
        run(made)
        assert counter.frame_count == 2

    def test_a_compiler_that_fails_is_mentioned_once_and_done_without(self):
        def broken(graph, inputs):
            raise OSError("no compiler here")

        made = federation(engine="axis")
        made.sites.trainer = AxisTrainer(
            made.algorithm, made.model, made.data.task, compile=True, backend=broken
        )
        with pytest.warns(UserWarning, match="no compiler here") as caught:
            actual, _ = run(made)
        assert len(caught) == 1
        expected, _ = run(federation(engine="axis"))
        assert torch.allclose(actual.store.vectors, expected.store.vectors, atol=1e-6)


class TestPadding:
    def worked(self, made):
        """How many clients were in each step of each call."""
        clients = []
        trainer = made.sites.trainer
        step = trainer._step

        def counting(*arguments):
            clients.append(arguments[4].shape)
            return step(*arguments)

        trainer._step = counting
        return clients

    def test_one_large_client_does_not_make_the_others_wait(self):
        made = federation((4, 8, 4, 400), LocalTraining(epochs=1, batch=4), cohort=4, rounds=1)
        clients = self.worked(made)
        run(made)
        assert [n for n, _ in clients] == [4, 2, *[1] * 98]

    def test_with_whole_batches_small_clients_have_small_ones(self):
        made = federation((30, 9, 33, 4000), LocalTraining(steps=2, batch=0), cohort=4, rounds=1)
        clients = self.worked(made)
        run(made)
        assert clients == [(3, 63)] * 2 + [(1, 4000)] * 2

    def test_a_clients_result_does_not_depend_on_other_clients(self):
        local = LocalTraining(epochs=2, batch=4)
        made = federation((3, 9, 40, 5), local, dtype=torch.float32)
        own = made.start().store.vectors
        around = made.model.start().expand(4, -1)
        together = made.sites.train_clients(np.arange(4), own, around, 0, 0.1)
        for some in ([0], [1, 3], [0, 1, 3]):
            few = made.sites.train_clients(np.array(some), own[some], around[some], 0, 0.1)
            for one, many in zip(parts(few), parts(together), strict=True):
                assert torch.equal(one, many[some])

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 5), min_size=1, max_size=9))
    def test_a_schedule_counts_clients_until_they_are_done(self, steps):
        active = np.arange(5) < np.array(steps)[:, None]
        order, left = schedule(active)
        assert sorted(order.tolist()) == list(range(len(steps)))
        for step, n in enumerate(left):
            still = active[:, step:].any(axis=1)
            assert n == still.sum() > 0
            assert set(order[:n]) == set(np.flatnonzero(still))
        assert not active[:, len(left) :].any()

    def test_a_step_of_padding_before_real_rows_is_refused(self):
        with pytest.raises(ValueError, match="without real rows before"):
            schedule(np.array([[True, True], [False, True]]))

    @given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.booleans())
    def test_widths_are_few_and_wide_enough(self, numbers, fixed):
        left = sorted(numbers, reverse=True)
        sizes = widths(left[0], left, left[0] if fixed else None)
        assert all(size >= n for size, n in zip(sizes, left, strict=True))
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] <= (left[0] if fixed else max(left[0] * 1.25, 1))
        assert len({widths(n, [n], None)[0] for n in range(1, 3001)}) < 50

    @given(st.lists(st.integers(0, 500), min_size=1, max_size=8))
    def test_groups_fit_their_rows_and_every_client_has_one(self, counts):
        mask = np.arange(500) < np.array(counts)[:, None, None]
        groups = row_groups(mask)
        assert sorted(np.concatenate([who for who, _ in groups]).tolist()) == list(
            range(len(counts))
        )
        for who, rows in groups:
            for k in who:
                assert rows == min(room for room in (500, 125, 32) if room >= counts[k])


class TestThreads:
    def test_how_many_there_are_changes_not_one_bit_and_is_put_back(self):
        before = torch.get_num_threads()
        results = []
        try:
            for threads in (1, 3):
                torch.set_num_threads(threads)
                results.append(run(federation(engine="threads"))[0])
                assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        one, three = results
        assert torch.equal(one.store.vectors, three.store.vectors)
        assert torch.equal(one.shared, three.shared)

    def test_what_goes_wrong_in_one_is_raised(self):
        trainer = ThreadsTrainer(Failing(stage="step"), *linear())
        with pytest.raises(OSError, match="the disk is gone"):
            trainer.train(*clients(), LR)


@dataclass(frozen=True)
class Failing(PMTL):
    """Fails in one of its functions, for a client whose vector begins with 7."""

    stage: str = ""

    def _fail(self, stage, w):
        if stage == self.stage and w[0] > 6:
            raise OSError("the disk is gone")

    def begin(self, own, shared):
        self._fail("begin", own)
        return super().begin(own, shared)

    def step(self, w, shared, gradient, lr):
        self._fail("step", w)
        return super().step(w, shared, gradient, lr)

    def upload(self, w, own, shared):
        self._fail("upload", own)
        return super().upload(w, own, shared)

    def keep(self, w):
        self._fail("keep", w)
        return super().keep(w)


def linear():
    return build_model("logistic", (3,), 2, "classification", 0), "classification"


def clients(steps=3):
    """Two clients; the second one's vector begins with 7."""
    vectors = torch.zeros(2, 8)
    vectors[1, 0] = 7
    x, y = torch.zeros(2, steps, 4, 3), torch.zeros(2, steps, 4, dtype=torch.int64)
    return vectors, torch.zeros(2, 8), Named(x, y, np.ones((2, steps, 4), dtype=bool))


class Named(TensorBatches):
    def name(self, k):
        return ("anna", "erin")[k]


class TestDebug:
    @pytest.mark.parametrize(
        ("stage", "expected"),
        [("begin", "begin"), ("step", "step 1"), ("upload", "upload"), ("keep", "keep")],
    )
    def test_an_error_names_the_client_and_the_stage(self, stage, expected):
        trainer = DebugTrainer(Failing(stage=stage), *linear())
        with pytest.raises(PmtlError, match=f"'erin' failed in '{expected}'") as caught:
            trainer.train(*clients(), LR)
        assert isinstance(caught.value.__cause__, OSError)
        assert "OSError: the disk is gone" in str(caught.value)
        assert "test_engines.py, line" in str(caught.value)

    def test_an_error_names_the_number_of_the_step(self):
        model, task = linear()
        vectors, shared, batches = clients()
        batches.targets[1, 1] = 5  # A class that does not exist, in the second step.
        with pytest.raises(PmtlError, match="'erin' failed in 'step 2'"):
            DebugTrainer(PMTL(), model, task).train(vectors, shared, batches, LR)

    def test_uploads_may_be_shorter_than_the_billboard(self):
        own = {"upload": lambda self, w, own, shared: w[:3], "upload_size": lambda self, round: 3}
        short = type("Short", (PMTL,), own)()
        assert DebugTrainer(short, *linear()).train(*clients(), LR).uploads.shape[1] == 3

    def test_a_step_that_asks_for_no_gradient(self):
        wrong = type("Wrong", (PMTL,), {"step": lambda self, w, shared, gradient, lr: w})()
        with pytest.raises(PmtlError, match=r"'anna' failed in 'step 1'.*asked for no gradient"):
            DebugTrainer(wrong, *linear()).train(*clients(), LR)

    def test_rows_that_cannot_be_read(self):
        class Gone(TensorBatches):
            def select(self, clients, rows):
                return self

            def read(self, step, n):
                raise OSError("the disk is gone")

        vectors, shared, batches = clients()
        gone = Gone(batches.inputs, batches.targets, batches.mask)
        with pytest.raises(PmtlError, match="'number 0' failed in 'reading"):
            DebugTrainer(PMTL(), *linear()).train(vectors, shared, gone, LR)

    def test_a_federation_says_whose_rows_it_was(self):
        def fail(self, w, shared, gradient, lr):
            if gradient(w).std() > 0:  # As it is on rows.
                raise OSError("the disk is gone")
            return w

        made = federation(engine="debug", algorithm=type("Wrong", (PMTL,), {"step": fail})())
        progress = made.start()
        cohort = made.server.sampler.draw(0)
        with pytest.raises(PmtlError, match=f"client '{made.data.clients[cohort[0]]}' failed in"):
            made.advance(progress)

    @pytest.mark.parametrize("stage", ["compute_uploads", "finish"])
    def test_a_method_without_steps_names_the_client_and_the_stage(self, stage, small):
        def fail(self, rows, *rest):
            raise ValueError("a mistake")

        method, first = type("Wrong", (Pooling,), {stage: fail})(), small.clients[0]
        with pytest.raises(PmtlError, match=f"client '{first}' failed in '{stage}.*a mistake"):
            pmtl.train(small, algorithm=method, privacy=2.0, engine="debug")

    def test_production_refuses_it_in_a_sentence(self):
        model = build_model("logistic", (5,), 3, "classification", 0)
        cpu, work = torch.device("cpu"), {"client_floats": 10, "cohort": 1, "steps": 1}
        with pytest.raises(PmtlError, match="Production does not run the engine 'debug'"):
            choose("debug", None, model, cpu, **work, isolate=True)


def dropping(input_shape, outputs):
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, outputs))


@pytest.mark.parametrize("change", [{"engine": "threads"}, {"engine": "axis", "compile": True}])
def test_dropout_is_repeatable_with_every_engine_but_has_other_masks(change):
    def trained(change):
        made = federation(factory=dropping, rounds=1, **change)
        if made.sites.compile:
            made.sites.trainer = compiled(made.algorithm, made.model, made.data.task)
        before = torch.random.get_rng_state()
        progress, _ = run(made)
        assert torch.equal(torch.random.get_rng_state(), before)
        return progress.store.vectors

    torch.manual_seed(1)
    one = trained(change)
    torch.manual_seed(2)
    assert torch.equal(one, trained(change))
    # Not a promise, but the reason why engines are compared without it.
    plain = trained({"engine": "axis"})
    assert not torch.allclose(one, plain, atol=1e-3) or change.get("compile")


SHORT = {"client_floats": 10**4, "cohort": 100, "steps": 100}
LONG = {"client_floats": 10**4, "cohort": 100, "steps": 10**6}
LARGE = {"client_floats": 10**7, "cohort": 100, "steps": 100}


class TestChoice:
    CPU, CARD = torch.device("cpu"), torch.device("cuda")

    def model(self, name):
        shape, outputs, task = MODELS[name]
        return build_model(name, shape, outputs, task, 0)

    def test_by_device_and_model(self):
        cnn, line = self.model("femnist_cnn"), self.model("logistic")
        assert choose("auto", None, cnn, self.CPU, **LONG) == ("threads", False)
        assert choose("auto", None, line, self.CPU, **LONG) == ("axis", False)
        assert choose("auto", None, cnn, self.CARD, **LONG) == ("axis", True)
        assert choose("auto", None, cnn, self.CARD, **SHORT) == ("axis", False)
        assert choose("auto", None, line, self.CPU, **LARGE) == ("threads", False)

    def test_a_network_pays_for_compiling_sooner_than_one_layer(self):
        """Launches are what compiling saves first, and three layers have about three times as many:
        13 ms a step at q = 100, as was measured."""
        cnn, line = self.model("femnist_cnn"), self.model("logistic")
        some = {"client_floats": 2 * 10**6, "cohort": 100, "steps": 4000}
        assert choose("auto", None, cnn, self.CARD, **some) == ("axis", True)
        assert choose("auto", None, line, self.CARD, **some) == ("axis", False)
        fewer = {"client_floats": 2 * 10**6, "cohort": 100, "steps": 2000}
        assert choose("auto", None, cnn, self.CARD, **fewer) == ("axis", False)
        wider = {"client_floats": 2 * 10**6, "cohort": 1000, "steps": 2000}
        assert choose("auto", None, cnn, self.CARD, **wider) == ("axis", True)

    def test_what_was_asked_for_is_done(self):
        cnn, line = self.model("femnist_cnn"), self.model("logistic")
        assert choose("axis", None, cnn, self.CPU, **LONG) == ("axis", False)
        assert choose("axis", True, cnn, self.CPU, **SHORT) == ("axis", True)
        assert choose("auto", True, cnn, self.CPU, **SHORT) == ("axis", True)
        assert choose("axis", False, cnn, self.CARD, **LONG) == ("axis", False)
        assert choose("threads", None, line, self.CPU, **LONG) == ("threads", False)

    def test_convolutions_with_dropout_stay_together(self):
        def factory(input_shape, outputs):
            return nn.Sequential(
                nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 1, 28), nn.Dropout(), nn.Flatten()
            )

        model = build_model(factory, (784,), 1, "regression", 0)
        assert choose("auto", None, model, self.CPU, **LONG) == ("axis", False)

    @pytest.mark.parametrize(
        ("engine", "compile", "device", "sentence"),
        [
            ("axes", None, "cpu", "Did you mean 'axis'"),
            ("threads", None, "cuda", "the device is cuda"),
            ("threads", True, "cpu", "compiles nothing"),
            ("debug", True, "cpu", "compiles nothing"),
        ],
    )
    def test_what_cannot_be_is_refused_in_a_sentence(self, engine, compile, device, sentence):
        with pytest.raises(PmtlError, match=sentence):
            check_engine(engine, compile, device)

    def test_a_federation_says_what_it_chose(self):
        made = federation()
        assert (made.sites.engine, made.sites.compile) == ("axis", False)
        assert isinstance(federation(engine="threads").sites.trainer, ThreadsTrainer)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert federation(engine="axis", compile=True).sites.trainer.compiled
