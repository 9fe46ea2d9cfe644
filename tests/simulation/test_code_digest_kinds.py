"""Values whose kind hides a part of what they compute: the digest counts that part, too."""

from __future__ import annotations

import enum
import functools
import os
import subprocess
import sys
from collections import defaultdict
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from pmtl.simulation.code_digest import code_digest

#: A function or value of a user's, in which FACTOR is replaced by a number.
CODES = {
    "a method of a named tuple": """
class Schedule(NamedTuple):
    base: float = 1.0
    def at(self): return self.base * FACTOR
VALUE = Schedule()
""",
    "a method of a float": """
class Step(float):
    def of(self, x): return x * FACTOR
VALUE = Step(1.0)
""",
    "a method of a text": """
class Word(str):
    def of(self, x): return x * FACTOR
VALUE = Word("a")
""",
    "a method of a list": """
class Rates(list):
    def total(self): return FACTOR
VALUE = Rates([1])
""",
    "a method of a set": """
class Rates(frozenset):
    def total(self): return FACTOR
VALUE = Rates([1])
""",
    "what a dict has for other keys": """
class Rates(dict):
    def __missing__(self, key): return FACTOR
VALUE = Rates()
""",
    "a method of a tensor": """
class Scaled(torch.Tensor):
    def more(self): return FACTOR
VALUE = torch.ones(2).as_subclass(Scaled)
""",
    "a method of an array": """
class Scaled(np.ndarray):
    def more(self): return FACTOR
VALUE = np.ones(2).view(Scaled)
""",
    "a method of a partial function": """
class Scaled(functools.partial):
    def more(self): return FACTOR
VALUE = Scaled(max)
""",
    "the default of a dict": "VALUE = defaultdict(lambda: FACTOR)",
    "a proxy of a dict": "VALUE = MappingProxyType({'a': FACTOR})",
    "an attribute of a float": """
class Step(float): pass
VALUE = Step(1.0)
VALUE.by = FACTOR
VALUE.itself = VALUE
""",
    "an attribute of a tensor": "VALUE = torch.ones(1)\nVALUE.scale = FACTOR",
    "an attribute of a function": """
def VALUE(x): return x * VALUE.by
VALUE.by = FACTOR
""",
    "an object that answers to any name": """
class Settings:
    def __init__(self, **given): self.__dict__["given"] = given
    def __getattr__(self, name): return self.given.get(name)
VALUE = Settings(scale=FACTOR)
""",
    "an attribute of a decorator": """
class Scaled:
    def __init__(self, function, by):
        functools.update_wrapper(self, function)
        self.by = by
    def __call__(self, x): return self.by * self.__wrapped__(x)
def same(x): return x
VALUE = Scaled(same, FACTOR)
""",
    "a function that wraps one of a package": """
@functools.wraps(torch.relu_)
def first(x): return FACTOR * x
@functools.wraps(nn.functional.relu)
def VALUE(x): return FACTOR * x
""",
    "one of a function's kinds": """
@functools.singledispatch
def VALUE(x): return 0
@VALUE.register
def _(x: torch.Tensor): return x * FACTOR
""",
    "an attribute with the name training": """
class Settings: pass
VALUE = Settings()
VALUE.training = FACTOR
""",
}


def made(code, factor):
    names = {
        "__name__": "code_of_a_user",
        "torch": torch,
        "nn": nn,
        "np": np,
        "functools": functools,
        "NamedTuple": NamedTuple,
        "defaultdict": defaultdict,
        "MappingProxyType": MappingProxyType,
    }
    exec(code.replace("FACTOR", str(factor)), names)
    return names["VALUE"]


@pytest.mark.parametrize("what", CODES)
def test_every_part_of_a_value_that_computes_counts(what):
    code = CODES[what]
    assert code_digest(made(code, 1.0)) == code_digest(made(code, 1.0))
    assert code_digest(made(code, 1.0)) != code_digest(made(code, 2.0))


def test_a_function_of_several_kinds_has_the_same_digest_after_a_call():
    value = made(CODES["one of a function's kinds"], 2.0)
    before = code_digest(value)
    value(torch.ones(1)), value(1)
    assert code_digest(value) == before


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2

    def is_warm(self):
        return self in WARM


WARM = {Colour.RED}


def test_an_element_may_refer_to_a_set_that_it_is_in():
    assert code_digest(WARM) == code_digest({Colour.RED}) != code_digest({Colour.BLUE})


# --- TorchScript ---

SCRIPT = """
import warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
from pmtl.simulation.code_digest import code_digest

def inner(x: torch.Tensor): return x * FACTOR
def outer(x: torch.Tensor): return inner(x)

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = FACTOR
        self.register_buffer("table", torch.ones(2))
    def forward(self, x: torch.Tensor): return self.table * x * self.by

def table(x: torch.Tensor): return x * torch.full((3,), FACTOR)

def scripts():
    return [
        torch.jit.script(outer),
        torch.jit.trace(table, torch.ones(3)),
        torch.jit.script(Scaled()),
        torch.jit.trace(Scaled(), torch.ones(2)),
    ]

scripts()  # Names are numbered in the order in which a process makes them.
for again in range(AGAIN):
    scripts()
print(*[code_digest(script) for script in scripts()])
"""


def scripts(folder, factor, again=0):
    """The digests of functions and modules of TorchScript, in another process."""
    folder.mkdir()
    program = folder / "program.py"  # TorchScript reads the source.
    program.write_text(SCRIPT.replace("FACTOR", str(factor)).replace("AGAIN", str(again)))
    done = subprocess.run(
        [sys.executable, str(program)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.split()


def test_scripts_and_traces_count_by_what_they_compute(tmp_path):
    one = scripts(tmp_path / "one", 1.0)
    assert one == scripts(tmp_path / "again", 1.0, again=2)
    two = scripts(tmp_path / "two", 2.0)
    assert len(one) == 4
    assert not set(one) & set(two)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Torch prefers its newer exports.
def test_a_script_has_the_same_digest_in_training_mode():
    module = torch.jit.script(nn.Linear(2, 2))
    assert code_digest(module.train()) == code_digest(module.eval())
