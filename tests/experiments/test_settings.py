"""What experiments are run with: the grids, longer runs without noise, and how clients tune."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tiny import TINY, filled

from pmtl.experiments.results import Point, Results
from pmtl.experiments.settings import SETTINGS, measured_rounds, setting_of
from pmtl.experiments.tasks import Cell
from pmtl.personalize import choosing
from pmtl.simulation import LocalTraining


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_small_one(name):
    whole, small = setting_of(name, quick=False), setting_of(name, quick=True)
    assert len(small.seeds) * len(small.sigmas) * len(small.clips) * len(small.lams) <= 8
    assert small.rounds < whole.rounds
    assert measured_rounds(whole.rounds)[-1] == whole.rounds
    assert whole.free_rounds is None or whole.free_rounds > whole.rounds


def test_each_method_has_its_own_strengths(tmp_path):
    setting = replace(TINY, lams=(0.1,), free_lams=(7.0,), tune_lams=(2.0,), at_the_mean=True)
    results = Results(setting, tmp_path, device="cpu")
    (cell, *_), (free,) = results.grid("pmtl"), results.grid("pmtl", private=False)
    assert cell.algorithm == "pmtl:lam=0.1,server=0.6"  # q/m
    assert free.algorithm == "pmtl:lam=7,server=0.6"
    assert [one.algorithm for one in results.grid("fedprox", private=False)] == ["fedprox:mu=7"]
    assert {one.algorithm for one in results.grid("fedavg")} == {"fedavg"}
    found = filled(results, results.tuned, cell, 1)
    assert {name.partition("-")[0]: result["lam"] for name, result in found.items()} == {
        "vanilla": None,
        "mean": 0.1,
        "kl": 2.0,
        "ewc": 2.0,
    }


def test_without_noise_there_may_be_more_rounds(tmp_path):
    """What is not paid for need not be short; and seeds and fine-tuning are of the same run."""
    results = Results(replace(TINY, free_rounds=6), tmp_path, device="cpu")
    (free,) = results.grid("fedavg", private=False)
    assert free == Cell("fedavg", 0.0, math.inf, 0, rounds=6)
    assert {cell.rounds for cell in results.grid("fedavg")} == {None}
    assert [point["round"] for point in filled(results, results.curve, free)] == [1, 2, 4, 6]
    assert len(filled(results, results.reported, Point(free, 6), "shared")) == 2
    tuned = filled(results, results.tuned, free, 6)
    short = filled(results, results.tuned, replace(free, rounds=None), 4)
    assert tuned["vanilla-shared"]["test"] != short["vanilla-shared"]["test"]
    names = {file.name for file in (results.out / "cells").iterdir()}
    assert "fedavg-sigma0-clipinf-seed1-of6.json" in names
    assert "fedavg-sigma0-clipinf-seed0-of6-rounds6-tuned.json" in names


def test_who_trains_alone_does_so_as_in_a_run():
    """Fine-tuning may take smaller steps than training does."""
    setting = replace(
        TINY,
        rounds=6,
        local=LocalTraining(epochs=5, batch=4, lr=2.0),
        tune=LocalTraining(epochs=10, batch=8, lr=0.5),
    )
    tuned, alone, times = setting.shortest_training()
    assert (tuned, alone) == (
        LocalTraining(epochs=2, batch=8, lr=0.5),
        LocalTraining(epochs=2, batch=4, lr=2.0),
    )
    assert times * 2 == 6 * 5


def test_clients_choose_between_fine_tuning_and_training_as_in_a_run(tmp_path, monkeypatch):
    offers = []

    def recorded(*args, **options):
        offers.extend(choosing.candidates(*args, **options))
        return offers

    monkeypatch.setattr("pmtl.experiments.tasks.candidates", recorded)
    results = Results(replace(TINY, tune=replace(TINY.tune, lr=0.01)), tmp_path, device="cpu")
    assert filled(results, results.chosen, Cell("pmtl:lam=0.1", 0.05, 0.5, 0), 1)
    steps = {(offer.start, offer.local.lr) for offer in offers if offer.local}
    assert steps == {("fresh", TINY.local.lr), ("shared", 0.01), ("personal", 0.01)}


def test_the_grid_is_the_papers(results):
    cells = results.grid("pmtl")
    assert [(cell.sigma, cell.clip) for cell in cells] == [(0.05, 0.5), (0.2, 0.5)]
    assert results.grid("fedavg", private=False) == [Cell("fedavg", 0.0, math.inf, 0)]
    femnist = SETTINGS["femnist"]
    assert (femnist.sigmas, femnist.clips) == ((0.02, 0.05, 0.1), (0.2, 0.5, 1.0))


def test_the_long_setting_has_the_papers_rounds():
    long, paper = SETTINGS["femnist_long"], SETTINGS["femnist"]
    assert (long.free_rounds, long.local.epochs) == (1000, 1)
    assert (long.data, long.model, long.cohort) == (paper.data, paper.model, paper.cohort)
    assert set(long.sigmas) <= set(paper.sigmas)
