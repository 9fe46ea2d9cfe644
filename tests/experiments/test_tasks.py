"""Tasks: each gives what the same work by the front door gives, or says why not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import TINY, filled

import pmtl
from pmtl.experiments.results import Results
from pmtl.experiments.tasks import Cell, accuracy, histograms
from pmtl.models.hog import HogLinear
from pmtl.simulation import LocalTraining


def test_a_result_is_that_of_the_run_it_names(results):
    """The same as training by the front door."""
    cell = Cell("pmtl:lam=0.1", 0.05, 0.5, 1)
    plan = results.plan(0.05, 0.5, 4)
    run = pmtl.train(
        results.data,
        algorithm="pmtl:lam=0.1",
        privacy={
            "noise": 0.05,
            "clip": 0.5,
            "rounds": 4,
            "cohort": 12,
            "sampling": plan.sampling,
            "delta": plan.delta,
        },
        local={"steps": 2, "batch": 5},
        evaluate_every=0,
        seed=1,
        model="logistic",
    )
    last = filled(results, results.curve, cell)[-1]
    assert last["round"] == 4
    assert {split: last[split] for split in ("test", "validation")} == run.evaluate()


def test_fine_tuning_starts_from_the_models_of_its_round(results):
    """With a tiny step size it changes nothing: the metrics are those of the curve."""
    still = Results(
        replace(TINY, tune=LocalTraining(steps=1, batch=5, lr=1e-12)),
        results.out / "still",
        None,
        "cpu",
    )
    for name, view in (("pmtl:lam=0.1", "personal"), ("fedavg", "shared")):
        cell = Cell(name, 0.05, 0.5, 0)
        point = next(p for p in filled(still, still.curve, cell) if p["round"] == 2)
        for result in filled(still, still.tuned, cell, 2).values():
            assert accuracy(result, "test") == accuracy(point, "test", view)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_a_lack_of_memory_fails_one_run_only(results, monkeypatch, error):
    def full(*rest):
        raise error

    monkeypatch.setattr("pmtl.experiments.tasks.simulate", full)
    results.curve(Cell("local", 0.0, math.inf, 0))
    results.fill()
    (reason,) = results.failures.values()
    assert "fewer --jobs" in reason
    results.fill()  # Nothing is missing, and nothing is done.


def test_histograms_are_what_the_model_would_compute():
    random = np.random.default_rng(0)
    x = random.integers(0, 255, (60, 28, 28), dtype=np.uint8)
    y, owner = random.integers(0, 3, 60), np.arange(60) % 4
    data = pmtl.FederatedData.from_arrays(x, y, owner, outputs=3)
    made = histograms(data)
    assert made.clients == data.clients
    hog = HogLinear((28, 28), 3)
    for split in ("train", "test"):
        mine, theirs = made.rows(split), data.rows(split)
        assert mine.counts.tolist() == theirs.counts.tolist()
        features, targets = made.gather(mine.order)
        pixels, expected = data.gather(theirs.order)
        assert np.allclose(features, hog.features(torch.from_numpy(pixels)).numpy(), atol=1e-6)
        assert np.array_equal(targets, expected)
