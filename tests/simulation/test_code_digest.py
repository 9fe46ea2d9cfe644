"""Two experiments share noise only if they publish the same numbers; what decides that is read from
values and code, not from names."""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from weights import shared

import pmtl
from pmtl.algorithms import PMTL, FedAvg
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release
from pmtl.runs.folder import RunFolder
from pmtl.simulation import LocalTraining, simulate
from pmtl.simulation.code_digest import code_digest

PLAN = PrivacyPlan(12, 12, "full", 0.5, 0.1, 3, 1e-2)
METRICS = PrivacyPlan(12, 12, "full", 1.0, 0.05, 3, 1e-2)


def federation(
    factory="mlp:hidden=3", algorithm=None, metrics=None, every=1, bound=None, **changes
):
    x = np.random.default_rng(3).normal(size=(12 * 10, 4)).astype(np.float32)
    y, owner = (x[:, 0] > x[:, 1]).astype(np.int64), np.arange(120) % 12
    data = pmtl.FederatedData.from_arrays(x, y, owner, outputs=2)
    model = build_model(factory, data.input_shape, data.outputs, data.task, changes.pop("start", 0))
    local = LocalTraining(steps=2, batch=4)
    made = simulate(data, model, algorithm or PMTL(), PLAN, local, 0, **changes)
    if metrics is not None:
        made.prepare_metrics(metrics, bound, every=every)
    return made


def words(made):
    """Both kinds of noise of the first round, as far as there are both."""
    gates = [
        made.server.gate,
        *([] if made.released_metrics is None else [made.released_metrics.gate]),
    ]
    return [gate.noise(0, (1, 40)) for gate in gates]


def share_nothing(*made):
    drawn = torch.cat([part for one in made for part in words(one)])
    return len(drawn.unique()) == drawn.numel()


# --- the attacks ---


def test_two_metrics_plans_do_not_give_the_exact_accuracies(small, monkeypatch):
    """a₁ = a + σ₁n and a₂ = a + σ₂n would be two equations for a."""
    exact = {}
    publish = Release.publish

    def spy(self, tally, shared, *step):
        if self.plan.clip_norm == 1.0:  # the gate of the metrics: four values, norm √4/2
            exact[tally.round, self.plan.noise_std] = self.average(tally)[0, 0].item() + 0.5
        return publish(self, tally, shared, *step)

    monkeypatch.setattr(Release, "publish", spy)
    found = []
    for share in (0.5, 0.9):
        privacy = {"noise": 0.05, "rounds": 3, "metrics": share, "clip": 0.3}
        run = pmtl.train(small, privacy=privacy, local={"steps": 2}, evaluate_every=1, seed=1)
        noisy = [line["personal"]["accuracy_mean"] for line in run.released()]
        found.append((noisy, run.released()[0]["noise"]["accuracy_mean"]))
    (first, one), (second, two) = found
    assert one > 1.5 * two
    errors = []
    for round, (a, b) in enumerate(zip(first, second, strict=True), start=1):
        if 0 < a < 1 and 0 < b < 1:  # not cut off at the ends of the range
            guess = (one * b - two * a) / (one - two)
            errors.append(min(abs(guess - e) for (r, _), e in exact.items() if r == round))
    assert errors
    assert min(errors) > 1e-3


def factory_of(scale):
    """Makes factories that all have one name."""

    class Model(nn.Linear):
        def __init__(self, input_shape, outputs):
            super().__init__(input_shape[0], outputs)

        def forward(self, x):
            return super().forward(x) * scale

    def factory(input_shape, outputs):
        return Model(input_shape, outputs)

    return factory


def test_two_factories_of_one_name_do_not_give_the_exact_sum():
    """A model without a gradient publishes the noise alone, which another run would take off."""
    published = []
    for scale in (1.0, 0.0):
        made = federation(factory_of(scale), FedAvg())
        progress = made.start()
        made.advance(progress)
        published.append(progress.shared.double())
    bare = federation(factory_of(1.0), FedAvg(), noise=lambda round, shape: torch.zeros(shape))
    progress = bare.start()
    bare.advance(progress)
    exact = progress.shared.double() - bare.start().shared.double()
    guess = published[0] - published[1]
    assert float(exact.norm()) > 0.1
    assert float((guess - exact).abs().min()) > 1e-4


# --- what decides, and what does not ---


def test_everything_that_decides_a_release_decides_both_kinds_of_noise():
    @dataclass(frozen=True)
    class Mine(PMTL):
        def server_step(self, shared, update, memory):
            return shared + 0.5 * update, memory

    class Yours(PMTL):
        """Another class of the same name as the one below."""

        def server_step(self, shared, update, memory):
            return shared + 0.25 * update, memory

    def called_yours():
        class Yours(PMTL):
            def server_step(self, shared, update, memory):
                return shared + 0.75 * update, memory

        return Yours

    made = [
        federation(metrics=METRICS),
        federation(),
        federation(metrics=replace(METRICS, noise_std=0.06)),
        federation(metrics=replace(METRICS, rounds=2)),
        federation(metrics=METRICS, bound=3.0),
        federation(metrics=METRICS, every=2),
        federation(metrics=METRICS, start=1),
        federation(metrics=METRICS, algorithm=PMTL(lam=0.2)),
        federation(metrics=METRICS, algorithm=Mine()),
        federation(metrics=METRICS, algorithm=Yours()),
        federation(metrics=METRICS, algorithm=called_yours()()),
        federation(factory_of(1.0), metrics=METRICS),
        federation(factory_of(2.0), metrics=METRICS),
        federation(metrics=METRICS, hardened=False, dtype=torch.float64),
    ]
    assert share_nothing(*made)
    hard = federation(metrics=METRICS, hardened=True)
    assert hard.noise_key.text not in {one.noise_key.text for one in made}


@pytest.mark.parametrize("change", [{"engine": "threads"}, {"engine": "axis"}, {"compile": True}])
def test_who_computes_does_not(change):
    change = {**change, "engine": "axis"} if "compile" in change else change
    plain, other = federation(metrics=METRICS), federation(metrics=METRICS, **change)
    assert plain.noise_key.text == other.noise_key.text
    assert all(map(torch.equal, words(plain), words(other)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no graphics card here")
def test_the_device_does_not():
    one, two = federation(), federation(device="cuda")
    assert one.noise_key.text == two.noise_key.text


def test_what_training_leaves_in_a_module_does_not():
    class Remembers(nn.Linear):
        def __init__(self, input_shape, outputs):
            super().__init__(input_shape[0], outputs)

        def forward(self, x):
            self.last = x
            return super().forward(x)

    made = federation(Remembers, metrics=METRICS)
    before = made.noise_key.text
    made.advance(made.start())
    assert made.noise_key.text == before == federation(Remembers, metrics=METRICS).noise_key.text


def test_metrics_are_decided_upon_before_noise_is_drawn():
    made = federation()
    made.advance(made.start())
    with pytest.raises(pmtl.PmtlError, match="before the first round"):
        made.prepare_metrics(METRICS)


# --- what is read of a value ---

SCALE = 1.0
HELPER = None


def uses_a_global(x):
    return SCALE * x


def uses_a_helper(x):
    return HELPER(x)


def closure(n):
    return lambda x: x + n


def defaults(n):
    def function(x, by=n, *, more=n):
        return x + by + more

    return function


def compiled(text):
    names: dict[str, object] = {}
    exec(text, names)  # As in a notebook or a console: there is no source file.
    return names["f"]


def with_attribute(**attributes):
    module = nn.Linear(2, 2)
    nn.init.zeros_(module.weight), nn.init.zeros_(module.bias)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def hooked(by):
    module = with_attribute()
    module.register_forward_hook(lambda module, inputs, answer: answer * by)
    return module


def frozen(yes):
    return with_attribute().requires_grad_(not yes)


def buffered(value):
    module = with_attribute()
    module.register_buffer("table", torch.tensor([value]), persistent=False)
    return module


def tied(yes):
    pair = nn.Sequential(with_attribute(), with_attribute())
    if yes:
        pair[1].weight = pair[0].weight
    return pair


def heir(by):
    class Base(nn.Module):
        def scale(self):
            return by

    class Heir(Base):
        def forward(self, x):
            return x * self.scale()

    return Heir()


def of_class(value):
    class Thing:
        __slots__ = ("inner",)
        constant = value

    thing = Thing()
    thing.inner = 1
    return thing


def slot(value):
    thing = of_class(0)
    thing.inner = value
    return thing


PAIRS = {
    "a number": (lambda: 1, lambda: 1.0),
    "a closure": (lambda: closure(1), lambda: closure(2)),
    "defaults": (lambda: defaults(1), lambda: defaults(2)),
    "partial": (lambda: functools.partial(max, 1), lambda: functools.partial(max, 2)),
    "cached": (lambda: functools.cache(closure(1)), lambda: functools.cache(closure(2))),
    "a method": (lambda: heir(1).scale, lambda: heir(2).scale),
    "code without a file": (
        lambda: compiled("def f(x): return x + 1"),
        lambda: compiled("def f(x): return x - 1"),
    ),
    "an attribute": (lambda: with_attribute(by=1), lambda: with_attribute(by=2)),
    "a forward of its own": (
        lambda: with_attribute(forward=closure(1)),
        lambda: with_attribute(forward=closure(2)),
    ),
    "a hook": (lambda: hooked(1), lambda: hooked(2)),
    "frozen": (lambda: frozen(True), lambda: frozen(False)),
    "a buffer": (lambda: buffered(1.0), lambda: buffered(2.0)),
    "tied weights": (lambda: tied(True), lambda: tied(False)),
    "a base class": (lambda: heir(1), lambda: heir(2)),
    "a class's constant": (lambda: of_class(1), lambda: of_class(2)),
    "a slot": (lambda: slot(1), lambda: slot(2)),
    "a generator": (
        lambda: torch.Generator().manual_seed(1),
        lambda: torch.Generator().manual_seed(2),
    ),
    "an array": (lambda: np.arange(3), lambda: np.arange(3).astype(np.int32)),
    "objects in an array": (
        lambda: np.array(["a", None], object),
        lambda: np.array(["b", None], object),
    ),
    "a set": (lambda: {"a", "b", "c"}, lambda: {"a", "b", "d"}),
    "nesting": (lambda: [[1], [2]], lambda: [[1, 2], []]),
}


@pytest.mark.parametrize("what", PAIRS)
def test_different_values_have_different_digests_and_equal_ones_the_same(what):
    one, other = PAIRS[what]
    assert code_digest(one()) == code_digest(one())
    assert code_digest(one()) != code_digest(other())


def test_globals_that_a_function_names_are_part_of_it(monkeypatch):
    here = sys.modules[__name__]
    plain = code_digest(uses_a_global)
    monkeypatch.setattr(here, "SCALE", 2.0)
    assert code_digest(uses_a_global) != plain
    digests = []
    for helper in (closure(1), closure(2), uses_a_helper):
        monkeypatch.setattr(here, "HELPER", helper)
        digests.append(code_digest(uses_a_helper))  # The last one calls itself: a circle.
    assert len(set(digests)) == 3


def test_where_a_module_lies_and_whether_it_trains_is_no_part_of_it():
    module = with_attribute(device=torch.device("cpu"))
    other = copy.deepcopy(module).eval()
    other.device = torch.device("meta")
    assert code_digest(module) == code_digest(other)


def test_a_very_deep_value_does_not_end_in_an_error():
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    assert len(code_digest(deep)) == 64


def test_another_process_says_the_same():
    """Python's hashes are salted, so sets come in another order there."""
    script = """
import torch
from torch import nn
from pmtl.simulation.code_digest import code_digest
class Model(nn.Linear):
    words = {"a", "bb", "ccc", "dddd"}
    def forward(self, x):
        return super().forward(x) if "a" in {"a", "b", "c"} else x
torch.manual_seed(0)
print(code_digest(Model(3, 2), torch.relu, frozenset("abcdef")))
"""
    digests = set()
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


# --- resuming ---


def test_a_run_whose_code_has_changed_does_not_go_on(small, tmp_path, monkeypatch):
    """A replayed round is charged once because it publishes the same bits; with other code it
    would not."""
    save = RunFolder.save_round

    def stop(self, line):
        save(self, line)
        if line["round"] == 2:
            raise SystemError("power cut")

    options = {"privacy": {"rounds": 4}, "local": {"steps": 1}, "checkpoint_seconds": 0.0}
    whole = pmtl.train(small, factory_of(1.0), **options)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", stop)
        with pytest.raises(SystemError):
            pmtl.train(small, factory_of(1.0), out=tmp_path / "run", **options)
    with pytest.raises(pmtl.PmtlError, match="code of its model, algorithm"):
        pmtl.resume(tmp_path / "run", data=small, model=factory_of(2.0))
    resumed = pmtl.resume(tmp_path / "run", data=small, model=factory_of(1.0))
    assert torch.equal(shared(resumed), shared(whole))


class Holder:
    """An attribute that may be anything."""

    def __init__(self, value):
        self.value = value


def reaching(module):
    """A function that uses a number in a user's module, by way of the module."""
    names = {"helpers": module, "__builtins__": __builtins__, "__package__": ""}
    exec("def scale(x):\n    return x * helpers.FACTOR\n", names)
    return names["scale"]


def importing(name):
    """The same with an import inside the function."""
    names = {"__builtins__": __builtins__, "__package__": ""}
    exec(f"def scale(x):\n    from {name} import FACTOR\n    return x * FACTOR\n", names)
    return names["scale"]


def helper_module(name, factor):
    module = ModuleType(name)
    module.FACTOR = factor
    return module


def test_what_code_reaches_through_a_module_of_the_users_counts(monkeypatch):
    """Two experiments that differ in a number of a helper module would share noise otherwise."""
    one, two = (helper_module("helpers_of_a_user", factor) for factor in (1.0, 5.0))
    assert code_digest(reaching(one)) == code_digest(
        reaching(helper_module("helpers_of_a_user", 1.0))
    )
    assert code_digest(reaching(one)) != code_digest(reaching(two))
    seen = []
    for module in (one, two):
        monkeypatch.setitem(sys.modules, "helpers_of_a_user", module)
        seen.append(code_digest(importing("helpers_of_a_user")))
    assert seen[0] != seen[1]


def imported(folder, name, number, monkeypatch):
    """The function of a new module `name` in `folder`, whose code has this number."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(f"def code(x):\n    return {number} * x\n", encoding="utf-8")
    spec = spec_from_file_location(name, folder / f"{name}.py")
    module = module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module.code


@pytest.mark.parametrize(
    ("folder", "name"),
    [("mine", "own_code"), ("mine", "cmd"), ("site-packages", "package_without_version")],
)
def test_code_counts_that_no_version_stands_for(folder, name, tmp_path, monkeypatch):
    """Also of a module with a name of Python's own. Two experiments would share noise otherwise."""
    seen = []
    for number in (2, 3):
        code = imported(tmp_path / str(number) / folder, name, number, monkeypatch)
        seen.append(code_digest(code))
    assert seen[0] != seen[1]


def kept_values(number):
    from scipy.sparse import csr_matrix

    large = np.full(5000, float(number))
    return [
        csr_matrix(np.diag([1.0, number])),
        SimpleNamespace(table=large),
        deque([large]),
        np.random.default_rng(number),
    ]


def test_objects_of_other_packages_count_by_what_they_hold():
    for same, again, other in zip(kept_values(1), kept_values(1), kept_values(2), strict=True):
        assert code_digest(Holder(same)) == code_digest(Holder(again)), type(same)
        assert code_digest(Holder(same)) != code_digest(Holder(other)), type(same)
