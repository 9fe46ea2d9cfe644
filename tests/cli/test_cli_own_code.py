"""Mistakes in what users bring are sentences of the command, before anything is trained."""

from __future__ import annotations

import sys

import pytest

ALGORITHMS = '''
from dataclasses import dataclass
import pmtl
from pmtl.algorithms import FedAvg

@dataclass(frozen=True)
class Refuses(FedAvg):
    """Fails when it is made."""
    name = "refuses"
    def __post_init__(self):
        raise KeyError("made")

class NotMarked(FedAvg):
    strength: float = 1.0

@dataclass(frozen=True)
class Nameless(pmtl.Algorithm):
    strength: float = 1.0
    def start(self, shared): return shared
    def begin(self, own, shared): return shared
    def step(self, state, shared, gradient, lr): return state
    def upload(self, state, own, shared): return state - shared
    def keep(self, state): return state
    def predict(self, own, shared): return shared

@dataclass(frozen=True)
class Unfinished(pmtl.Algorithm):
    name = "unfinished"
    def start(self, shared): return shared

def fails(self, *given):
    return {}["such"]

def nothing(self, *given):
    return None

for hook in HOOKS:
    for kind in (fails, nothing):
        made = type(kind)(kind.__code__, globals(), hook)
        parts = {"name": "mine", hook: made, "__module__": __name__}
        name = f"{hook}_{kind.__name__}"
        globals()[name] = dataclass(frozen=True)(type(name, (FedAvg,), parts))
'''
HOOKS = [
    *("bind", "to", "blocks", "billboard", "billboard_size", "billboard_start"),
    *("published", "server_start", "upload_size", "warning", "target_spans"),
]
#: They may return None.
OPTIONAL = ("upload_size", "warning", "target_spans")

OTHERS = """
import numpy as np
from torch import nn
import pmtl
from pmtl.privacy.sampling import SamplingScheme

class First(SamplingScheme):
    def draw(self, sampler, round):
        return np.arange(sampler.plan.cohort)
    def chance(self, rate):
        return 1.0

class DrawFails(First):
    def draw(self, sampler, round):
        raise KeyError("drawn")

class DrawsNothing(First):
    def draw(self, sampler, round):
        return None

class DrawsWords(First):
    def draw(self, sampler, round):
        return "everybody"

class NoDraw(SamplingScheme):
    def chance(self, rate):
        return 1.0

class ChanceFails(First):
    def chance(self, rate):
        raise KeyError("chance")

class CheckFails(First):
    def check(self, clients, cohort):
        raise KeyError("checked")

class WordsFail(First):
    def in_words(self, plan, also):
        raise KeyError("said")

class Net(nn.Module):
    def __init__(self, input_shape, outputs):
        super().__init__()
        self.layer = nn.Linear(input_shape[0], outputs)
    def forward(self, x):
        return self.no_such_layer(x)

class Silent(Net):
    def forward(self, x):
        assert x is None

def accuracy(y_true, y_pred):
    return 0.5

def loss(y_true, y_pred):
    return 0.5

class Watch(pmtl.Callback):
    def __init__(self):
        raise KeyError("made")

def no_rows(path):
    return None

def fails(path):
    raise KeyError("read")

def one_name(path):
    return {"x": [[1.0], [2.0]], "y": [0, 1], "client": ["a", "b"], "feature_names": "age"}
"""


@pytest.fixture
def train(tmp_path, monkeypatch, pmtl_command):
    """Train on a small federation with the user's own code; the error, on one line."""
    own = {"own_algorithms": f"HOOKS = {HOOKS}\n{ALGORITHMS}", "own_others": OTHERS}
    own |= {"own_typo": "import no_such_package\n", "own_syntax": "def f(:\n"}
    for name, text in own.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "rows.own").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*words):
        usual = ["--rounds", "1", "--epsilon", "5", "--out", "run"]
        if "--data" not in words:
            usual += ["--data", "synthetic:clients=6,samples=20"]
        if "--algorithm" not in words:
            usual += ["--algorithm", "fedavg"]
        done = pmtl_command("train", *words, *usual)
        assert done.status == 2, done.err
        return " ".join(done.err.split())

    yield run
    for name in own:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_function_of_an_algorithm_that_fails_is_named_with_its_place(train, tmp_path, hook):
    said = train("--algorithm", f"own_algorithms:{hook}_fails")
    assert f"The algorithm own_algorithms:{hook}_fails failed in " in said
    assert "(own_algorithms.py, line " in said
    assert said.endswith("KeyError: 'such'.")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook not in OPTIONAL])
def test_a_function_of_an_algorithm_that_returns_nothing_is_refused(train, tmp_path, hook):
    said = train("--algorithm", f"own_algorithms:{hook}_nothing")
    assert f"{hook} of the algorithm 'mine' must return " in said
    assert said.endswith("but returned None.")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "name", "sentence"),
    [
        ("algorithm", "own_algorithms:Refuses", "own_algorithms:Refuses failed in __post_init__ ("),
        ("algorithm", "own_algorithms:NotMarked", "write @dataclass(frozen=True) above its class"),
        ("algorithm", "own_algorithms:NotMarked:strength=2", "write @dataclass(frozen=True)"),
        ("algorithm", "own_algorithms:Nameless", 'write name = "…" in its class'),
        ("algorithm", "own_algorithms:Unfinished", "has no begin, keep, predict, step, upload"),
        ("algorithm", "own_algorithms:Refused", "has no 'Refused'. Did you mean 'Refuses'?"),
        ("algorithm", "own_typo:Mine", "'no_such_package'): correct its code (own_typo.py, line 1"),
        ("algorithm", "own_syntax:Mine", "(own_syntax.py, line 1)): correct its code."),
        ("algorithm", "own_nowhere:Mine", "name a module that Python finds from this folder."),
        ("sampling", "own_others:ChanceFails", "failed in chance (own_others.py, line "),
        ("sampling", "own_others:CheckFails", "failed in check (own_others.py, line "),
        ("sampling", "own_others:WordsFail", "failed in in_words (own_others.py, line "),
        ("sampling", "own_others:First:size=3", "A sampling scheme takes no options, but"),
        ("sampling", "poisson:rate=3", "A sampling scheme takes no options, but"),
        (
            "model",
            "own_others:Net",
            "AttributeError: 'Net' object has no attribute 'no_such_layer'",
        ),
        ("model", "own_others:Silent", "cannot read rows of shape (10,)"),
        ("metric", "own_others:loss", "would replace 'loss', which results have anyway"),
        ("metric", "f1+own_others:accuracy", "would replace 'accuracy', which results have anyway"),
        ("metric", "sklearn.metrics:f1_score:average=macro", "A metric takes no options, but"),
        ("callback", "own_others:Watch", "cannot be made (KeyError: 'made')"),
        ("data", "rows.own:reader=own_others:no_rows", "must return a dictionary with x, y and"),
        ("data", "rows.own:reader=builtins:max", "is not a function of `path`"),
        ("data", "rows.own:reader=own_others:fails", "failed on rows.own (KeyError: 'read')"),
        ("data", "rows.own:reader=own_others:one_name", "must return feature_names as a list, but"),
    ],
)
def test_a_mistake_is_one_sentence(train, tmp_path, option, name, sentence):
    said = train(f"--{option}", name, *(("--cohort", "3") if option == "sampling" else ()))
    assert said.startswith("error: ")
    assert sentence in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("DrawFails", "own_others:DrawFails failed in draw (own_others.py, line "),
        ("DrawsNothing", "drew a cohort that is not a sorted list"),
        ("DrawsWords", "drew a cohort that is not a sorted list"),
        ("NoDraw", "let its class implement draw(sampler, round)."),
    ],
)
def test_a_scheme_that_cannot_draw_is_a_sentence_too(train, name, sentence):
    said = train("--sampling", f"own_others:{name}", "--cohort", "3")
    assert sentence in said.partition("error: ")[2]


def test_other_commands_say_it_too(train, pmtl_command):
    numbers = ("--clients", "30", "--cohort", "10", "--noise", "1", "--rounds", "2")
    done = pmtl_command("privacy", "epsilon", *numbers, "--sampling", "own_others:ChanceFails")
    assert "failed in chance (own_others.py, line " in " ".join(done.err.split())
    assert done.status == 2


def test_a_comparison_goes_on_without_an_algorithm_that_fails(train, pmtl_command):
    done = pmtl_command(
        *("compare", "--data", "synthetic:clients=6,samples=20", "--epsilon", "5", "--rounds", "1"),
        *("--algorithm", "own_algorithms:published_fails", "--algorithm", "fedavg"),
        *("--seeds", "1", "--out", "both"),
    )
    assert done.status == 0, done.err
    assert "published_fails failed in" in " ".join((done.out + done.err).split())
