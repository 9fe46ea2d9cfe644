"""Grids: which runs they mean, and what cannot be varied."""

from __future__ import annotations

import pytest

from pmtl.errors import PmtlError
from pmtl.experiments.sweep.grid import (
    Candidate,
    Cell,
    Grid,
    config_of,
    parse_axes,
    with_settings,
)
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig
from pmtl.simulation import LocalTraining


def test_a_grid_is_every_combination_and_each_setting_goes_where_it_belongs():
    axes = parse_axes(["lr=.1,.3", "pmtl:lam=0.03,0.3", "rounds=4", "model=linear,mlp:hidden=8"])
    grid = Grid(("pmtl:server=0.5", "fedavg"), (1.0, 2.0), (0, 1), axes=axes)
    candidates = grid.candidates()
    assert len(candidates) == 2 * 2 * 2 + 2 * 2  # λ is a setting of PMTL alone
    assert len(grid.cells()) == len(candidates) * 2 * 2
    names = [str(candidate) for candidate in candidates]
    assert names[0] == "pmtl:server=0.5,lam=0.03, lr=0.1, rounds=4, model=linear"
    assert names[-1] == "fedavg, lr=0.3, rounds=4, model=mlp:hidden=8"
    last = Cell(candidates[-1], 2.0, 7)
    config = config_of(TrainConfig(local=LocalTraining(batch=3)), last)
    assert (config.local.lr, config.local.batch) == (0.3, 3)
    assert (config.privacy.rounds, config.privacy.epsilon) == (4, 2.0)
    assert (config.model, config.algorithm, config.seed) == ("mlp:hidden=8", "fedavg", 7)


def test_a_setting_that_an_algorithm_does_not_use_is_not_varied_for_it():
    axes = {"lr": (0.1, 0.3), "rounds": (2, 3), "clip": (0.5, 1.0)}
    grid = Grid(("pmtl", "local", "pooling"), (1.0,), (0,), axes=axes)
    by_method = [candidate.method for candidate in grid.candidates()]
    assert [by_method.count(name) for name in ("pmtl", "local", "pooling")] == [8, 4, 1]
    # Pooling decides its releases itself, also if the others have a number of rounds.
    base = TrainConfig(privacy=PrivacyRequest(rounds=5, clip=0.2))
    privacy = config_of(base, Cell(Candidate("pooling"), 1.0, 0)).privacy
    assert (privacy.rounds, privacy.clip, privacy.epsilon) == (None, None, 1.0)


def test_what_a_method_does_not_use_is_said():
    base = TrainConfig(privacy=PrivacyRequest(rounds=5))
    grid = Grid(("pmtl", "pooling"), base=base, axes={"lr": (0.1, 0.3), "cohort": (5, 9)})
    assert grid.notes() == ["pooling does not use rounds and lr: the others do."]
    assert Grid(("pmtl", "fedavg"), base=base).notes() == []


def test_a_setting_replaces_the_one_that_it_excludes():
    assert with_settings(TrainConfig(), {"epochs": 2}).local == LocalTraining(epochs=2)
    assert with_settings(TrainConfig(), {}) == TrainConfig()


def test_different_candidates_have_different_folders():
    cells = [
        Cell(Candidate("pmtl", (("model", model),)), 1.0, 0)
        for model in ("mlp:hidden=8", "mlp-hidden=8", "m" * 300, "m" * 301)
    ]
    folders = {str(cell) for cell in cells}
    assert len(folders) == 4
    assert all(len(name) < 200 and "/" not in name for name in folders)
    # Without a grid the names are those that earlier versions gave.
    assert str(Cell(Candidate("pmtl"), 1.0, 0)) == "pmtl-eps1.0-seed0"


def test_values_with_commas_can_be_given():
    assert parse_axes(["model=mlp:hidden=8%2Clayers=2"]) == {"model": ("mlp:hidden=8,layers=2",)}
    assert parse_axes(["evaluate-every=0,5"]) == {"evaluate_every": ("0", "5")}


def test_equal_values_are_one():
    assert Grid(axes={"lr": ("0.1", ".1", 0.3)}).axes == {"lr": (0.1, 0.3)}


@pytest.mark.parametrize("text", ["lr", "=1", "lr=", "lr=1,,2"])
def test_a_text_without_name_or_values_is_refused(text):
    with pytest.raises(PmtlError, match="write a setting and its values"):
        parse_axes([text])


def test_an_axis_that_is_given_twice_is_refused():
    with pytest.raises(PmtlError, match="has lr twice"):
        parse_axes(["lr=1", "lr=2"])


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"lrr": (1,)}, "Did you mean 'lr'?"),
        ({"lr": ()}, "at least one value of lr"),
        ({"lr": "0.1"}, "at least one value of lr"),
        ({"lr": (-1,)}, "greater than 0"),
        ({"lr": ("fast",)}, "must be a number, but 'fast'"),
        ({"epsilon": (1, 2)}, "use --epsilon"),
        ({"data": ("a.csv",)}, "read the same data"),
        ({"delta": (0.1,)}, "at the same δ"),
        ({"noise": (0.1,)}, "sets ε"),
        ({"ditto:lam": (1,)}, "'ditto' is not compared"),
    ],
)
def test_what_cannot_be_varied_is_a_sentence(axes, words):
    with pytest.raises(PmtlError) as refused:
        Grid(axes=axes)
    assert words in str(refused.value)


def test_an_algorithms_setting_is_given_once():
    with pytest.raises(PmtlError, match="by --algorithm pmtl:lam=1 and by the grid"):
        Grid(("pmtl:lam=1",), axes={"pmtl:lam": (1, 2)}).candidates()
    with pytest.raises(PmtlError, match="Did you mean 'lam'"):
        Grid(("pmtl",), axes={"pmtl:lamm": (1, 2)}).candidates()
