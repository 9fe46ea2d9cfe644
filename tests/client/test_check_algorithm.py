"""An algorithm whose functions are not pure is refused before anything is spent."""

from dataclasses import dataclass

import pytest
import torch

import pmtl
from pmtl.algorithms import ALGORITHMS
from pmtl.client.batches import LocalTraining
from pmtl.client.check_algorithm import check_algorithm
from pmtl.data.synthetic import synthetic
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import simulate

MODEL = build_model("logistic", (3,), 2, "classification", 0)


@dataclass(frozen=True)
class Good(pmtl.Algorithm):
    """FedAvg, written out."""

    name = "good"

    def start(self, shared):
        return shared[:0]

    def begin(self, own, shared):
        return shared

    def step(self, state, shared, gradient, lr):
        return state - lr * gradient(state)

    def upload(self, state, own, shared):
        return state - shared

    def keep(self, state):
        return state[:0]

    def predict(self, own, shared):
        return shared


def changed(**functions):
    return type("Changed", (Good,), functions)()


def in_place(self, state, shared, gradient, lr):
    state -= lr * gradient(state)
    return state


def past_autograd(self, state, shared, gradient, lr):
    state.data -= lr * gradient(state)
    return state


def in_place_later(self, state, own, shared):
    shared.neg_()
    return state - shared


def branch(self, state, shared, gradient, lr):
    return state - lr * gradient(state) if gradient(state).norm() > 1 else state


WRONG = {
    "step in place": ({"step": in_place}, "step .* changes a tensor"),
    "upload in place": ({"upload": in_place_later}, "upload .* changes a tensor"),
    "step past autograd": ({"step": past_autograd}, "step .* changes a tensor"),
    "no return": ({"step": lambda *given: None}, "step .* must return a tensor.* NoneType"),
    "start without a vector": ({"start": lambda *given: None}, "start .* NoneType"),
    "a matrix to start": (
        {"start": lambda self, shared: shared.expand(2, -1)},
        r"start .* must return one vector, but returned shape \(2, 8\)",
    ),
    "too few arguments": ({"keep": lambda self: None}, "keep .* failed .*line .*TypeError"),
    "a wrong size of uploads": (
        {"upload_size": lambda self, round: 3},
        r"upload .* shape \(3,\), but returned shape \(8,\)",
    ),
    "a long upload": (
        {"upload": lambda self, state, own, shared: torch.cat([state, state])},
        r"upload .* shape \(8,\), but returned shape \(16,\)",
    ),
    "division by zero": (
        {"upload": lambda self, state, own, shared: (state - shared) / 0},
        r"upload .* shape \(8,\), but returned infinite or NaN values",
    ),
    "an array": (
        {"upload": lambda self, state, own, shared: state.numpy()},
        "upload .* must return a tensor.* ndarray",
    ),
    "two vectors to keep": (
        {"keep": lambda self, state: (state, state)},
        "keep .* but returned several parts",
    ),
    "half a model": (
        {"predict": lambda self, own, shared: shared[:4]},
        r"predict .* shape \(8,\), but returned shape \(4,\)",
    ),
}


@pytest.mark.parametrize(("functions", "sentence"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("mapped", [True, False])
def test_what_is_wrong_is_named_with_its_stage(functions, sentence, mapped):
    with pytest.raises(pmtl.PmtlError, match=sentence):
        check_algorithm(changed(**functions), MODEL, mapped)


def item(self, state, shared, gradient, lr):
    return gradient(state) * state.sum().item()


def random_numbers(self, state, shared, gradient, lr):
    return gradient(state) + torch.randn_like(state)


@pytest.mark.parametrize("step", [branch, item, random_numbers])
def test_what_cannot_be_mapped_is_refused_only_where_it_is_mapped(step):
    check_algorithm(changed(step=step), MODEL, mapped=False)
    with pytest.raises(pmtl.PmtlError, match=r"many clients at once.*The algorithm is mapped"):
        check_algorithm(changed(step=step), MODEL, mapped=True)


def test_a_prediction_is_always_mapped():
    wrong = changed(predict=lambda self, own, shared: shared if shared.sum() > 0 else -shared)
    with pytest.raises(pmtl.PmtlError, match=r"many clients at once.*Predict is mapped"):
        check_algorithm(wrong, MODEL, mapped=False)


def trained_by(engine, step, model=MODEL):
    data = synthetic(clients=10, features=3, classes=2)
    plan = PrivacyPlan(data.m, data.m, "full", 1.0, 1.0, 2, 1e-3)
    given = data, model, changed(step=step), plan, LocalTraining(steps=1), 0
    simulation = simulate(*given, engine=engine, charge=lambda round: None)
    return simulation.advance(simulation.start())


@pytest.mark.parametrize("engine", ["threads", "debug"])
def test_engines_that_train_one_client_at_a_time_take_any_python(engine):
    assert trained_by(engine, branch).cohort == 10
    with pytest.raises(pmtl.PmtlError, match="many clients at once"):
        trained_by("axis", branch)


def test_with_dropout_a_step_may_draw_random_numbers():
    parts = torch.nn.Linear(3, 2), torch.nn.Dropout(0.5)
    model = build_model(lambda *_: torch.nn.Sequential(*parts), (3,), 2, "classification", 0)
    assert trained_by("axis", random_numbers, model).cohort == 10


def test_an_algorithm_that_remembers_other_clients_is_refused():
    memory = {}

    def step(self, state, shared, gradient, lr):
        memory["v"] = 0.9 * memory.get("v", 0) + gradient(state) * state
        return state - lr * memory["v"]

    with pytest.raises(pmtl.PmtlError, match="remembers something from one call to the next"):
        check_algorithm(changed(step=step), MODEL, mapped=False)


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("sampling", ["full", "fixed"])
def test_what_a_function_writes_does_not_reach_the_billboard(seed, sampling):
    def step(self, state, shared, gradient, lr):
        if lr < 0.05:  # The check tries another step size.
            state -= lr * gradient(state)
            return state
        return state - lr * gradient(state)

    data = synthetic(clients=4, features=3, classes=2)
    model = build_model(lambda *_: torch.nn.Linear(3, 2), (3,), 2, "classification", 0)
    cohort = data.m if sampling == "full" else 1
    plan = PrivacyPlan(data.m, cohort, sampling, 1.0, 1.0, 2, 1e-3)
    given = data, model, changed(step=step), plan, LocalTraining(steps=2, lr=0.01), seed
    simulation = simulate(*given, engine="axis", charge=lambda round: None)
    state = simulation.start()
    before, add, seen = state.shared.clone(), simulation.server.gate.add, []

    def adding(tally, clients, uploads):
        seen.append(torch.equal(state.shared, before))
        add(tally, clients, uploads)

    simulation.server.gate.add = adding
    simulation.advance(state)
    assert seen
    assert all(seen)


def test_a_lack_of_memory_is_not_the_algorithms_mistake():
    def step(self, state, shared, gradient, lr):
        raise MemoryError

    with pytest.raises(MemoryError):
        check_algorithm(changed(step=step), MODEL, mapped=False)


@pytest.mark.parametrize(
    ("engine", "seed"),
    [("axis", 0), ("threads", 0), ("debug", 0), ("axis", None), ("threads", None)],
)
def test_no_engine_trains_with_an_algorithm_that_writes_into_its_arguments(engine, seed):
    data = synthetic(clients=10, features=3, classes=2)
    plan = PrivacyPlan(data.m, data.m, "full", 1.0, 1.0, 2, 1e-3)
    given = data, MODEL, changed(step=in_place), plan, LocalTraining(steps=1), seed
    with pytest.raises(pmtl.PmtlError, match="changes a tensor that it was given"):
        simulate(*given, engine=engine, charge=lambda round: None)


def test_the_librarys_algorithms_pass():
    for name, kind in ALGORITHMS.items():
        if name not in ("clustered", "related"):  # They need to know the clients.
            check_algorithm(kind().bind(MODEL.layout), MODEL, mapped=True)
