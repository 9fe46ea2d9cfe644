"""A user's code that ends the program (`sys.exit`) does not end a run as if it were done: a
sentence says whose code it was."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest
from torch import nn

import pmtl
from pmtl.algorithms import FedAvg


class Leaves:
    """Ends the program when it is called often enough."""

    def __init__(self, calls):
        self.calls = calls

    def __call__(self):
        self.calls -= 1
        if self.calls < 0:
            sys.exit(0)


@dataclass(frozen=True)
class Leaving(FedAvg):
    """It ends the program in a step, after all checks."""

    leave = Leaves(0)

    def step(self, w, shared, gradient, lr):
        self.leave()
        return super().step(w, shared, gradient, lr)


class Net(nn.Module):
    """It ends the program in `forward`, after all checks."""

    leave = Leaves(0)

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x):
        self.leave()
        return self.layer(x)


def net(input_shape, outputs):
    return Net(input_shape[0], outputs)


def no_net(input_shape, outputs):
    sys.exit(0)


def leaving_metric(targets, predictions):
    sys.exit(0)


EXITS = [
    ({"algorithm": Leaving}, f"The algorithm {__name__}:Leaving failed in step .*SystemExit: 0"),
    ({"algorithm": Leaving, "engine": "debug"}, "Local training of the client '.*SystemExit: 0"),
    ({"model": net}, f"The model {__name__}:Net failed in forward .*SystemExit: 0"),
    ({"model": no_net}, "The factory 'no_net' failed: SystemExit: 0"),
    ({"metric": f"{__name__}:leaving_metric"}, "The metric 'leaving_metric' failed .*SystemExit"),
]


@pytest.mark.parametrize(("given", "sentence"), EXITS)
def test_it_is_named(given, sentence, small, monkeypatch):
    monkeypatch.setattr(Leaving, "leave", Leaves(60))
    monkeypatch.setattr(Net, "leave", Leaves(40))
    settings = {"algorithm": "fedavg", "engine": "threads", **given}
    privacy, local = {"epsilon": 2.0, "rounds": 20}, {"steps": 4}
    with pytest.raises(pmtl.PmtlError, match=sentence):
        pmtl.train(small, privacy=privacy, local=local, **settings)


def test_in_a_check_before_training_it_is_named_too(small):
    sentence = "step of the algorithm .* failed .*SystemExit: 0"
    with pytest.raises(pmtl.PmtlError, match=sentence):
        pmtl.train(small, algorithm=Leaving())


class Last(pmtl.Callback):
    """After this round the algorithm ends the program."""

    def on_round(self, event):
        Leaving.leave.calls = 0


def test_a_resumed_run_names_it_too(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Leaving, "leave", Leaves(10**6))
    path, called = tmp_path / "run", {"callbacks": [Last()]}
    options = {"privacy": {"epsilon": 2.0, "rounds": 9}, "checkpoint_seconds": 0, "out": path}
    with pytest.raises(pmtl.PmtlError, match="Leaving failed in step"):
        pmtl.train(small, algorithm=Leaving(), engine="threads", **options, **called)
    Leaving.leave.calls = 10**6
    with pytest.raises(pmtl.PmtlError, match="Leaving failed in step"):
        pmtl.resume(path, data=small, algorithm=Leaving(), **called)
